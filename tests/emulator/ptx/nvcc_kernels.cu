// Kernels that the emulator runs as nvcc 13.0 compiled them: nvcc -ptx -arch=sm_80, then .version
// lowered to 8.0 for older ptxas, comments removed.
#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda;

// Sum of n floats: grid-stride loop, shuffles, shared memory, one atomic per block.
extern "C" __global__ void reduce(const float* x, float* out, int n) {
  __shared__ float part[32];
  float v = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += x[i];
  for (int o = 16; o; o >>= 1) v += __shfl_down_sync(~0u, v, o);
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
  __syncthreads();
  if (threadIdx.x < 32) {
    v = threadIdx.x < (blockDim.x >> 5) ? part[threadIdx.x] : 0;
    for (int o = 16; o; o >>= 1) v += __shfl_down_sync(~0u, v, o);
    if (!threadIdx.x) atomicAdd(out, v);
  }
}

// Histogram of bytes with shared and global atomics.
extern "C" __global__ void histogram(const unsigned char* x, unsigned* h, int n) {
  __shared__ unsigned bins[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) bins[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&bins[x[i]], 1u);
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&h[i], bins[i]);
}

// One row of a softmax per block, dynamic shared memory.
extern "C" __global__ void softmax(const __half* x, __half* y, int n) {
  extern __shared__ float row[];
  __shared__ float part[32];
  float m = -1e30f, t = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    row[i] = __half2float(x[blockIdx.x * n + i]);
    m = fmaxf(m, row[i]);
  }
  for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = m;
  __syncthreads();
  m = part[0];
  for (int i = 1; i < blockDim.x / 32; i++) m = fmaxf(m, part[i]);
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    row[i] = expf(row[i] - m);
    t += row[i];
  }
  for (int o = 16; o; o >>= 1) t += __shfl_xor_sync(~0u, t, o);
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = t;
  __syncthreads();
  t = part[0];
  for (int i = 1; i < blockDim.x / 32; i++) t += part[i];
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    y[blockIdx.x * n + i] = __float2half(row[i] / t);
}

// 16 x 16 x 64 product with wmma fragments.
extern "C" __global__ void tensor(const __half* a, const __half* b, float* c) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
  wmma::fill_fragment(fc, 0.f);
  for (int k = 0; k < 64; k += 16) {
    wmma::load_matrix_sync(fa, a + k, 64);
    wmma::load_matrix_sync(fb, b + k, 64);
    wmma::mma_sync(fc, fa, fb, fc);
  }
  wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
}

// Steps of 3 n + 1: a device function that is not inlined, loops of very different lengths.
__device__ __noinline__ unsigned steps(unsigned n) {
  unsigned k = 0;
  while (n != 1) {
    n = (n & 1) ? 3 * n + 1 : n / 2;
    k++;
  }
  return k;
}
extern "C" __global__ void collatz(unsigned* o) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  o[i] = steps(i + 1);
}

// The last block adds the partial sums: a fence, an atomic ticket, volatile reads.
extern "C" __global__ void last_block(const float* x, float* part, unsigned* ticket, float* out) {
  __shared__ bool last;
  float v = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  if (!threadIdx.x) {
    part[blockIdx.x] = v;
    __threadfence();
    last = atomicAdd(ticket, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && !threadIdx.x) {
    __threadfence();
    float t = 0;
    for (int i = 0; i < gridDim.x; i++) t += ((volatile float*)part)[i];
    *out = t;
  }
}

// A branch table and an array on the stack.
extern "C" __global__ void dispatch(const int* op, int* o) {
  int i = threadIdx.x, v = i, stack[8];
  switch (op[i]) {
    case 0: v += 10; break;
    case 1: v *= 3; break;
    case 2: v ^= 255; break;
    case 3: v -= 7; break;
    case 4: v = v * v; break;
    case 5: v <<= 2; break;
    default: v = -1;
  }
  for (int k = 0; k < 8; k++) stack[k] = v + k;
  o[i] = stack[(i * 5) & 7] + (int)__popcll((long long)v);
}

// Double precision with a library exponential and a division.
extern "C" __global__ void doubles(const double* x, double* y) {
  int i = threadIdx.x;
  y[i] = sqrt(x[i]) * exp(-x[i]) + x[i] / 3.0;
}

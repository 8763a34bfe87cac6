#include "gemm_fill.h"

#include <algorithm>
#include <cstring>

namespace deepasm {
namespace {

constexpr uint32_t kRasterGroup = 8;  // tile rows; 4 to 32 measured within 1.5 %
constexpr int64_t kChunk = 8;         // elements of 2 bytes in a 16-byte load

int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

Major classify(uint64_t base, int64_t inner, int64_t s_inner, int64_t outer, int64_t s_outer,
               bool batch_ok) {
  Major result;
  if (inner != 1 && s_inner != 1) {
    result.why = "not contiguous in that dimension";
  } else if (base % 16 != 0) {
    result.why = "address not a multiple of 16 bytes";
  } else if (!batch_ok) {
    result.why = "batch stride not a multiple of 8 elements";
  } else if (outer != 1 && s_outer % kChunk != 0) {
    result.why = "row stride not a multiple of 8 elements";
  } else if (outer != 1 && s_outer < inner) {
    result.why = "rows overlap";
  } else if (outer != 1 && s_outer >= kMaxMapStride / 2) {
    result.why = "row stride of 2^40 bytes or more";
  } else {
    result.ok = true;
    result.pitch = outer == 1 ? round_up(inner, kChunk) : s_outer;
  }
  return result;
}

// d as lines of contiguous elements: rows, or columns for a kernel that writes along m.
struct Lines {
  int64_t length, count, pitch;  // pitch is legal even for a single line
};

Lines output_lines(const GemmProblem& p, bool along_m) {
  Lines lines = along_m ? Lines{p.m, p.n, p.d_sn} : Lines{p.n, p.m, p.d_sm};
  if (lines.count == 1) lines.pitch = lines.length;
  return lines;
}

bool tma_can_store(const GemmProblem& p, const Lines& d) {
  int size = element_size(p.out_dtype);
  // TMA stores clip at 16-byte granularity: a line must end on one, or its tail would be written.
  if (p.d % 16 != 0 || d.length * size % 16 != 0) return false;
  if (d.pitch * size % 16 != 0 || d.pitch >= kMaxMapStride / size) return false;
  for (int i = 0; i < p.n_batch; ++i) {
    if (p.batch[i].d * size % 16 != 0 || p.batch[i].d >= kMaxMapStride / size) return false;
  }
  return true;
}

// The batch part of a map: a broadcast dimension gets extent 1 and some legal stride.
void map_batch(TensorMapSpec* map, const BatchDim& z0, const BatchDim& z1, int64_t s0, int64_t s1,
               int size) {
  map->dims[2] = s0 == 0 ? 1 : z0.size;
  map->dims[3] = s1 == 0 ? 1 : z1.size;
  map->strides[1] = s0 == 0 ? map->strides[0] : s0 * size;
  map->strides[2] = s1 == 0 ? map->strides[0] : s1 * size;
  map->box[2] = map->box[3] = 1;
}

void operand_map(TensorMapSpec* map, uint64_t base, int64_t inner, int64_t outer, int64_t pitch,
                 uint32_t outer_box, uint32_t type) {
  *map = TensorMapSpec{};
  map->base = base;
  map->dims[0] = inner, map->dims[1] = outer;
  map->strides[0] = pitch * 2;
  map->box[0] = 64, map->box[1] = outer_box;  // 64 elements of 2 bytes: one swizzled row
  map->type = type;
  map->used = 1;
}

void fill_maps(const GemmProblem& p, const KernelInfo& kernel, const Classes& classes,
               const BatchDim& z0, const BatchDim& z1, const Lines& lines, bool tma_store,
               GemmPlan* plan) {
  std::memset(plan->maps, 0, sizeof plan->maps);
  if (!kernel_traits(plan->variant).tma) return;
  uint32_t type = p.dtype == DType::kBf16 ? kMapBf16 : kMapF16;
  TensorMapSpec &a = plan->maps[0], &b = plan->maps[1], &d = plan->maps[2];
  if (kernel.a_major == 'k') {
    operand_map(&a, p.a, p.k, p.m, classes.a_k.pitch, kernel.bm, type);
  } else {
    operand_map(&a, p.a, p.m, p.k, classes.a_m.pitch, 64, type);
  }
  map_batch(&a, z0, z1, z0.a, z1.a, 2);
  if (kernel.b_major == 'k') {
    operand_map(&b, p.b, p.k, p.n, classes.b_k.pitch, kernel.bn, type);
  } else {
    operand_map(&b, p.b, p.n, p.k, classes.b_n.pitch, 64, type);
  }
  map_batch(&b, z0, z1, z0.b, z1.b, 2);
  if (!tma_store) return;
  int size = element_size(p.out_dtype);
  d.base = p.d;
  d.dims[0] = lines.length, d.dims[1] = lines.count;
  d.strides[0] = lines.pitch * size;
  d.box[0] = 128 / size, d.box[1] = kernel_traits(plan->variant).along_m ? kernel.bn : 64;
  d.type = p.out_dtype == DType::kBf16 ? kMapBf16 : p.out_dtype == DType::kF16 ? kMapF16 : kMapF32;
  d.used = 1;
  // A size-1 dimension of d has stride 0 here; every real one is written through its own stride.
  map_batch(&d, z0, z1, z0.size == 1 ? 0 : z0.d, z1.size == 1 ? 0 : z1.d, size);
}

// Granlund and Montgomery: exact for dividends below 2^31, the same numbers as kernels/params.py.
FastDivisor fast_divisor(uint32_t d) {
  uint32_t shift = 0;
  while ((1ull << shift) < d) ++shift;
  uint64_t mul = (((1ull << shift) - d) << 32) / d + 1;
  return {static_cast<uint32_t>(mul), shift};
}

// What a kernel needs to turn a tile number into tile row, tile column and batch indices.
void fill_raster(const KernelInfo& kernel, int64_t batch, GemmParams* q) {
  q->tiles_m = tile_count(q->m, kernel.bm);
  q->tiles_n = tile_count(q->n, kernel.bn);
  q->per_batch = q->tiles_m * q->tiles_n;
  q->tiles = static_cast<uint32_t>(q->per_batch * batch);
  q->group_m = std::min(kRasterGroup, q->tiles_m);  // so that span fits 32 bits
  q->span = q->group_m * q->tiles_n;
  q->last_rows = q->tiles_m - (q->tiles_m - 1) / q->group_m * q->group_m;
  q->div_batch = fast_divisor(q->per_batch);
  q->div_nz0 = fast_divisor(q->nz0);
  q->div_span = fast_divisor(q->span);
  q->div_rows = fast_divisor(q->group_m);
  q->div_last = fast_divisor(q->last_rows);
}

void fill_params(const GemmProblem& p, const KernelInfo& kernel, const Classes& classes,
                 const BatchDim& z0, const BatchDim& z1, const Lines& lines, bool tma_store,
                 GemmPlan* plan) {
  GemmParams& q = plan->params;
  std::memset(&q, 0, sizeof q);
  q.a = p.a, q.b = p.b, q.d = p.d;
  q.a_sm = p.a_sm, q.a_sk = p.a_sk, q.a_sz0 = z0.a, q.a_sz1 = z1.a;
  q.b_sk = p.b_sk, q.b_sn = p.b_sn, q.b_sz0 = z0.b, q.b_sz1 = z1.b;
  if (!kernel_traits(plan->variant).any_strides) {
    // Dimensions of size 1 get the stride that the kernel's addressing expects.
    (kernel.a_major == 'k' ? q.a_sk : q.a_sm) = 1;
    (kernel.a_major == 'k' ? q.a_sm : q.a_sk) = classes.a(kernel.a_major).pitch;
    (kernel.b_major == 'k' ? q.b_sk : q.b_sn) = 1;
    (kernel.b_major == 'k' ? q.b_sn : q.b_sk) = classes.b(kernel.b_major).pitch;
  }
  q.d_sm = lines.pitch, q.d_sz0 = z0.d, q.d_sz1 = z1.d;
  q.alpha = p.alpha, q.beta = p.has_c ? p.beta : 0;
  q.m = static_cast<uint32_t>(p.m), q.n = static_cast<uint32_t>(p.n);
  q.k = static_cast<uint32_t>(p.k), q.nz0 = static_cast<uint32_t>(z0.size);
  q.k_blocks = tile_count(p.k, kernel.bk);
  fill_raster(kernel, z0.size * z1.size, &q);
  namespace f = gemm_flags;
  uint32_t flags = static_cast<uint32_t>(p.out_dtype) << f::out_dtype_shift;
  flags |= static_cast<uint32_t>(p.activation) << f::activation_shift;
  if (p.has_bias) {
    q.bias = p.bias;
    flags |= f::has_bias | (p.bias_dtype == DType::kF32 ? f::bias_f32 : 0);
  }
  if (p.has_c) {
    q.c = p.c;
    q.c_sm = p.c_sm, q.c_sn = p.c_sn, q.c_sz0 = z0.c, q.c_sz1 = z1.c;
    flags |= f::has_c | (p.c_dtype == DType::kF32 ? f::c_f32 : 0);
  }
  if (tma_store) flags |= f::tma_store;
  if (z0.size > 1 && z0.a != 0) flags |= f::a_z0;
  if (z1.size > 1 && z1.a != 0) flags |= f::a_z1;
  if (z0.size > 1 && z0.b != 0) flags |= f::b_z0;
  if (z1.size > 1 && z1.b != 0) flags |= f::b_z1;
  if (p.alpha != 1) flags |= f::scale_alpha;
  q.flags = flags;
}

}  // namespace

Classes classify_operands(const GemmProblem& p) {
  bool a_batch = true, b_batch = true;
  for (int i = 0; i < p.n_batch; ++i) {
    a_batch &= p.batch[i].a % kChunk == 0 && p.batch[i].a < kMaxMapStride / 2;
    b_batch &= p.batch[i].b % kChunk == 0 && p.batch[i].b < kMaxMapStride / 2;
  }
  Classes classes;
  classes.a_k = classify(p.a, p.k, p.a_sk, p.m, p.a_sm, a_batch);
  classes.a_m = classify(p.a, p.m, p.a_sm, p.k, p.a_sk, a_batch);
  classes.b_k = classify(p.b, p.k, p.b_sk, p.n, p.b_sn, b_batch);
  classes.b_n = classify(p.b, p.n, p.b_sn, p.k, p.b_sk, b_batch);
  return classes;
}

void split_batch(const GemmProblem& p, BatchDim* z0, BatchDim* z1, GemmPlan* plan) {
  int big[2] = {-1, -1};
  for (int i = p.n_batch - 1; i >= 0; --i) {
    if (big[0] < 0 || p.batch[i].size > p.batch[big[0]].size) {
      big[1] = big[0];
      big[0] = i;
    } else if (big[1] < 0 || p.batch[i].size > p.batch[big[1]].size) {
      big[1] = i;
    }
  }
  if (big[1] > big[0]) std::swap(big[0], big[1]);  // z0 is the inner one
  *z0 = big[0] < 0 ? BatchDim{1, 0, 0, 0, 0} : p.batch[big[0]];
  *z1 = big[1] < 0 ? BatchDim{1, 0, 0, 0, 0} : p.batch[big[1]];
  plan->loop_dims = 0;
  plan->launches = 1;
  int c_size = p.has_c ? element_size(p.c_dtype) : 0, d_size = element_size(p.out_dtype);
  for (int i = 0; i < p.n_batch; ++i) {
    if (i == big[0] || i == big[1]) continue;
    const BatchDim& dim = p.batch[i];
    plan->loop[plan->loop_dims++] = {dim.size, saturating_mul(dim.a, 2), saturating_mul(dim.b, 2),
                                     saturating_mul(dim.c, c_size), saturating_mul(dim.d, d_size)};
    plan->launches = saturating_mul(plan->launches, dim.size);
  }
}

void fill_plan(const GemmProblem& p, const Classes& classes, const BatchDim& z0, const BatchDim& z1,
               GemmPlan* plan) {
  const KernelTraits& traits = kernel_traits(plan->variant);
  Lines lines = output_lines(p, traits.along_m);
  bool tma_store = traits.tma && tma_can_store(p, lines);
  fill_params(p, *plan->kernel, classes, z0, z1, lines, tma_store, plan);
  fill_maps(p, *plan->kernel, classes, z0, z1, lines, tma_store, plan);
}

}  // namespace deepasm

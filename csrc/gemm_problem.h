// From tensors to a problem: matmul's shape rules, argument checks, folding of batch dimensions.
// Pure: no torch, no driver.
#pragma once

#include <cstdint>
#include <string>

namespace deepasm {

constexpr int kMaxDims = 16;  // per tensor; more falls back to torch

enum class DType : uint8_t { kBf16 = 0, kF16 = 1, kF32 = 2, kOther = 3 };

inline int element_size(DType type) { return type == DType::kF32 ? 4 : 2; }
const char* dtype_name(DType type);

// Sizes and strides are borrowed; strides count elements.
struct TensorView {
  const int64_t* sizes = nullptr;
  const int64_t* strides = nullptr;
  int ndim = 0;
  DType dtype = DType::kOther;
  uint64_t data = 0;
};

// act(alpha * a @ b + beta * c + bias), as the caller described it.
struct GemmArgs {
  TensorView a, b, bias, c;
  bool has_bias = false, has_c = false;
  float alpha = 1, beta = 0;
  int activation = 0;
  DType out_dtype = DType::kOther;
};

struct BatchDim {
  int64_t size;
  int64_t a, b, c, d;  // element strides, 0 for a broadcast
};

// One GEMM per batch index: d[m, n] = sum_k a[m, k] * b[k, n], and so on.
struct GemmProblem {
  int64_t m, n, k;
  int64_t a_sm, a_sk, b_sk, b_sn, c_sm, c_sn, d_sm, d_sn;
  int64_t bias_stride;
  uint64_t a, b, c, d, bias;  // addresses
  int n_batch;
  BatchDim batch[kMaxDims];  // outermost first
  DType dtype, out_dtype, bias_dtype, c_dtype;
  bool has_bias, has_c;
  bool transposed;  // computes d^T = b^T a^T: the fields named a describe the caller's b
  bool bias_as_c;   // the bias is read through c, because a kernel wants it contiguous along n
  bool bias_copy;   // the bias must first be copied to a contiguous one of size n
  bool a_vector, b_vector;
  float alpha, beta;
  int activation;

  int out_ndim;
  int64_t out_sizes[kMaxDims];
};

// Throws unless `fits`: bias and c have a's dtype or float32.
void check_addend_dtype(const char* name, const char* given, const char* like, bool fits);

void check_activation(int64_t activation);

// Shape rules of torch.matmul, plus bias (1-D, size n or 1) and c (broadcastable), and `out` (exact
// shape, no element twice) unless it is null.  Fills everything but d and the flags that depend on
// it.  Throws Error in the words of checks.py.
void prepare_problem(const GemmArgs& args, const TensorView* out, GemmProblem* problem);

// x * y for numbers that are not negative, INT64_MAX instead of a wrapped product: described
// tensors, and expanded ones, can have more elements than 64 bits count.
inline int64_t saturating_mul(int64_t x, int64_t y) {
  int64_t product;
  return __builtin_mul_overflow(x, y, &product) ? INT64_MAX : product;
}

// Number of output elements.
int64_t out_numel(const GemmProblem& problem);

enum class OutUse {
  kDirect,  // the kernels can write it
  kCopy,    // compute into a contiguous temporary, then copy
};

// Replaces the bias by a contiguous copy at `data`, when bias_copy asks for one.
void use_bias_copy(GemmProblem* problem, uint64_t data);

// Sets d from the output's strides (out_ndim of them), decides whether to compute the transposed
// problem, then normalises: drops size-1 dimensions, folds batch into m, merges batch dimensions.
OutUse set_output(GemmProblem* problem, uint64_t data, const int64_t* strides);

// set_output for the caller's tensor.  kCopy, with the problem left as it was, when the kernels
// cannot write it, when it may overlap itself, or when it shares bytes with an input.  Tensors at
// address 0 share bytes with nothing: their place is not known.
OutUse use_output(const GemmArgs& args, const TensorView& out, GemmProblem* problem);

// The transposed problem, for kernels that write d along m; its bias belongs to m.
void transposed_twin(const GemmProblem& problem, GemmProblem* twin);

// Row-major strides for out_sizes.
void contiguous_strides(const GemmProblem& problem, int64_t* strides);

std::string shape_text(const TensorView& view);

}  // namespace deepasm

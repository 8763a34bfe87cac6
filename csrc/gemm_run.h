// One gemm call on CUDA tensors: checks, output, plan, launch, or the fallback to torch.
#pragma once

#include <cstdint>

#include "torch_api.h"

namespace deepasm {

// The arguments of _gemm, owned.
struct GemmCall {
  Tensor a, b, bias, c;
  double alpha = 1, beta = 0;
  int64_t activation = 0;
  int32_t out_dtype = -1;  // -1: a's
  int64_t variant = -1;
};

// Throws unless a and b have one supported dtype; needs no shapes.
void check_dtypes(int32_t a, int32_t b);

// The CUDA kernel of every gemm op.  Returns the result, or nothing when it went into `out`.
Tensor run_gemm(GemmCall& call, const Tensor* out);

}  // namespace deepasm

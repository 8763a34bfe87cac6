// Between choosing a kernel and launching it: how operands can be read, and filling the parameter
// block and the tensor maps of the chosen kernel.
#pragma once

#include "gemm_plan.h"

namespace deepasm {

constexpr int64_t kMaxExtent = INT32_MAX;     // coordinates are signed 32-bit in the kernels
constexpr int64_t kMaxMapStride = 1ll << 40;  // bytes; limit of a tensor map

// Extents are below 2^31 here, and a 32-bit division is several times faster.
inline uint32_t tile_count(int64_t extent, int tile) {
  return (static_cast<uint32_t>(extent) + static_cast<uint32_t>(tile) - 1) /
         static_cast<uint32_t>(tile);
}

// How an operand of `inner` x `outer` elements can be read with 16-byte loads along `inner`.
struct Major {
  bool ok = false;
  const char* why = "";  // when not ok
  int64_t pitch = 0;     // elements from one outer index to the next; legal even for outer == 1
};

struct Classes {
  Major a_k, a_m, b_k, b_n;

  const Major& a(char major) const { return major == 'k' ? a_k : a_m; }
  const Major& b(char major) const { return major == 'k' ? b_k : b_n; }

  // Bit set of the layouts (layout_bit) that kernels may read the operands in.
  unsigned layouts() const {
    unsigned mask = 1u << layout_bit('*', '*');
    for (char a_major : {'k', 'm'}) {
      for (char b_major : {'k', 'n'}) {
        if (a(a_major).ok && b(b_major).ok) mask |= 1u << layout_bit(a_major, b_major);
      }
    }
    return mask;
  }
};

Classes classify_operands(const GemmProblem& problem);

// The two largest batch dimensions go into the launch (z0 is the inner one), any others become a
// loop on the host.
void split_batch(const GemmProblem& problem, BatchDim* z0, BatchDim* z1, GemmPlan* plan);

// Parameter block and tensor maps of plan->kernel, for the first launch.
void fill_plan(const GemmProblem& problem, const Classes& classes, const BatchDim& z0,
               const BatchDim& z1, GemmPlan* plan);

}  // namespace deepasm

// Which kernel computes a GEMM, and with which launch parameters.  Pure: a problem, a device
// record and the kernel table go in, a plan comes out; nothing is launched or loaded.
#pragma once

#include <string>
#include <vector>

#include "gemm_params.h"
#include "gemm_problem.h"
#include "kernels.h"
#include "tensor_map.h"

namespace deepasm {

// What planning needs to know about a GPU and the current options.
struct PlanTarget {
  int cc_major, cc_minor;
  int sms;
  int smem_per_block;
  int tier_limit;  // 0: none
  int max_sms;     // 0: none
  int device;      // kernels that failed to load on this device are left out; -1: no device
};

struct LoopDim {
  int64_t count;
  int64_t a, b, c, d;  // bytes to advance each pointer by
};

struct GemmPlan {
  int variant = -1;
  const KernelInfo* kernel = nullptr;
  uint32_t grid = 0;
  double cost = 0;        // cycles, by the cost model
  GemmParams params;      // pointers and maps of the first launch; maps are still empty
  TensorMapSpec maps[3];  // a, b, d
  int loop_dims = 0;      // batch dimensions beyond two: one launch per index
  LoopDim loop[kMaxDims];
  int64_t launches = 1;
  std::string reason;       // why there is no kernel, when `kernel` is null
  GemmProblem twin;         // the transposed problem, when `transposed`
  bool transposed = false;  // the kernel solves `twin`
};

struct Candidate {
  int variant;
  double cost;  // negative when `reason` says why it cannot run
  std::string reason;
};

// Fills `plan`; false, with plan->reason, when no kernel can run the problem.  `forced` >= 0 asks
// for one row of the table.  `trace`, when given, receives every row of the problem's dtype.
bool plan_gemm(const GemmProblem& problem, const PlanTarget& target, int forced, GemmPlan* plan,
               std::vector<Candidate>* trace = nullptr);

// Blocks of a kernel that fit on one SM together.
int blocks_per_sm(int variant, const PlanTarget& target);

// Estimated SM cycles of a kernel on a problem; see gemm_cost.cpp for the model.
double gemm_cost(int variant, int64_t m, int64_t n, int64_t k, int64_t batch,
                 const PlanTarget& target);

}  // namespace deepasm

// The planner as Python sees it: a described problem in, JSON out; no torch, no driver.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gemm_plan.h"

namespace deepasm {

// A tensor described by numbers instead of held.
struct TensorSpec {
  bool given = false;
  int dtype = 3;         // DType
  uint64_t address = 0;  // only its alignment and overlaps matter
  std::vector<int64_t> sizes, strides;

  TensorView view() const;
};

struct PlanQuery {
  TensorSpec a, b, bias, c, out;
  double alpha = 1, beta = 0;
  int activation = 0;
  int out_dtype = 3;  // used when there is no `out`
  PlanTarget target{};
  bool disabled = false;
  int variant = -1;
};

// The plan for a query as a JSON object.  Throws Error for arguments that the op would refuse.
std::string plan_json(const PlanQuery& query);

}  // namespace deepasm

// Launching a planned GEMM.
#pragma once

#include "driver.h"
#include "gemm_plan.h"

namespace deepasm {

// Launches every kernel of `plan` on `stream`.  Needs the device's context to be current.
void launch_gemm(const Driver& cu, const GemmPlan& plan, CUfunction function, CUstream stream);

}  // namespace deepasm

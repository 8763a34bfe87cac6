#include "gemm_launch.h"

#include "error.h"

namespace deepasm {
namespace {

void launch_once(const Driver& cu, const GemmPlan& plan, CUfunction function, CUstream stream,
                 GemmParams* params, const TensorMapSpec* maps) {
  if (maps[0].used) encode_tensor_map(cu, maps[0], &params->map_a);
  if (maps[1].used) encode_tensor_map(cu, maps[1], &params->map_b);
  if (maps[2].used) encode_tensor_map(cu, maps[2], &params->map_d);
  void* arguments[] = {params};
  const KernelInfo& kernel = *plan.kernel;
  auto threads = static_cast<uint32_t>(kernel.threads), smem = static_cast<uint32_t>(kernel.smem);
  CUresult code;
  if (kernel.tier < 90) {
    code = cu.cuLaunchKernel(function, plan.grid, 1, 1, threads, 1, 1, smem, stream, arguments,
                             nullptr);
  } else {
    if (cu.cuLaunchKernelEx == nullptr) fail("the NVIDIA driver has no cuLaunchKernelEx");
    CudaLaunchAttribute attributes[2] = {};
    // Lets the next kernel's prologue overlap this one's tail; ours wait with griddepcontrol.
    attributes[0].id = CudaLaunchAttribute::kProgrammaticStreamSerialization;
    attributes[0].value.allowed = 1;
    uint32_t count = 1;
    if (kernel.cluster > 1) {
      attributes[1].id = CudaLaunchAttribute::kClusterDimension;
      attributes[1].value.cluster[0] = static_cast<uint32_t>(kernel.cluster);
      attributes[1].value.cluster[1] = attributes[1].value.cluster[2] = 1;
      count = 2;
    }
    CudaLaunchConfig config = {{plan.grid, 1, 1}, {threads, 1, 1}, smem, stream, attributes, count};
    code = cu.cuLaunchKernelEx(&config, function, arguments, nullptr);
  }
  if (code != kCudaSuccess) {
    fail("launching ", kernel.name, " (grid ", plan.grid, ", block ", threads, ", ", smem,
         " bytes of shared memory): ", driver_error_text(cu, code));
  }
}

}  // namespace

void launch_gemm(const Driver& cu, const GemmPlan& plan, CUfunction function, CUstream stream) {
  GemmParams params = plan.params;
  if (plan.launches == 1) {
    launch_once(cu, plan, function, stream, &params, plan.maps);
    return;
  }
  int64_t index[kMaxDims] = {};
  for (int64_t i = 0; i < plan.launches; ++i) {
    TensorMapSpec maps[3] = {plan.maps[0], plan.maps[1], plan.maps[2]};
    params.a = plan.params.a, params.b = plan.params.b;
    params.c = plan.params.c, params.d = plan.params.d;
    for (int dim = 0; dim < plan.loop_dims; ++dim) {
      const LoopDim& loop = plan.loop[dim];
      params.a += index[dim] * loop.a, params.b += index[dim] * loop.b;
      params.c += index[dim] * loop.c, params.d += index[dim] * loop.d;
    }
    maps[0].base = params.a, maps[1].base = params.b, maps[2].base = params.d;
    launch_once(cu, plan, function, stream, &params, maps);
    for (int dim = plan.loop_dims - 1; dim >= 0; --dim) {
      if (++index[dim] < plan.loop[dim].count) break;
      index[dim] = 0;
    }
  }
}

}  // namespace deepasm

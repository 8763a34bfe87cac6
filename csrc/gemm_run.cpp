#include "gemm_run.h"

#include <string>

#include "gemm_launch.h"
#include "gemm_plan.h"
#include "gemm_problem.h"
#include "options.h"

namespace deepasm {
namespace {

struct Metadata {
  TensorView view;
  int32_t dtype, device_type, device_index;
};

DType to_dtype(int32_t code) {
  const TorchCodes& c = codes();
  return code == c.bf16  ? DType::kBf16
         : code == c.f16 ? DType::kF16
         : code == c.f32 ? DType::kF32
                         : DType::kOther;
}

// Borrowed views: `tensor` must outlive them.
Metadata read_metadata(const Tensor& tensor) {
  Metadata meta{};
  int64_t ndim = 0;
  int64_t *sizes = nullptr, *strides = nullptr;
  check_shim(aoti_torch_get_dim(tensor.get(), &ndim), "aoti_torch_get_dim");
  check_shim(aoti_torch_get_sizes(tensor.get(), &sizes), "aoti_torch_get_sizes");
  check_shim(aoti_torch_get_strides(tensor.get(), &strides), "aoti_torch_get_strides");
  check_shim(aoti_torch_get_dtype(tensor.get(), &meta.dtype), "aoti_torch_get_dtype");
  check_shim(aoti_torch_get_device_type(tensor.get(), &meta.device_type), "reading a device");
  check_shim(aoti_torch_get_device_index(tensor.get(), &meta.device_index), "reading a device");
  meta.view.sizes = sizes;
  meta.view.strides = strides;
  meta.view.ndim = static_cast<int>(ndim);
  meta.view.dtype = to_dtype(meta.dtype);
  return meta;
}

uint64_t input_address(const Tensor& tensor) {
  const void* data = nullptr;
  check_shim(torch_get_const_data_ptr(tensor.get(), &data), "torch_get_const_data_ptr");
  return reinterpret_cast<uint64_t>(data);
}

uint64_t output_address(const Tensor& tensor) {
  void* data = nullptr;
  check_shim(torch_get_mutable_data_ptr(tensor.get(), &data), "torch_get_mutable_data_ptr");
  return reinterpret_cast<uint64_t>(data);
}

std::string device_name(const Metadata& meta) {
  if (meta.device_type == codes().cuda) return cat("cuda:", meta.device_index);
  return meta.device_type == codes().cpu ? "cpu" : cat("device type ", meta.device_type);
}

constexpr const char* kInputDTypes = "bfloat16, float16, float32 or float64";

void check_addend(const char* name, const Metadata& addend, int32_t like) {
  bool fits = addend.dtype == like || addend.dtype == codes().f32;
  check_addend_dtype(name, dtype_info(addend.dtype).name, dtype_info(like).name, fits);
}

void check_same_device(const char* name, const Metadata& want, const Metadata& got) {
  if (want.device_type == got.device_type && want.device_index == got.device_index) return;
  fail("gemm: Expected all tensors to be on the same device, but found at least two devices, ",
       device_name(want), " (a) and ", device_name(got), " (", name, "); move it with ", name,
       ".to(a.device)");
}

// Everything read from the tensors of one call.
struct Inputs {
  Metadata a, b, bias, c;
  GemmArgs args;
};

void read_inputs(const GemmCall& call, Inputs* in) {
  in->a = read_metadata(call.a);
  in->b = read_metadata(call.b);
  check_same_device("b", in->a, in->b);
  check_dtypes(in->a.dtype, in->b.dtype);
  check_activation(call.activation);
  GemmArgs& args = in->args;
  args.a = in->a.view, args.b = in->b.view;
  if (call.bias) {
    in->bias = read_metadata(call.bias);
    check_same_device("bias", in->a, in->bias);
    check_addend("bias", in->bias, in->a.dtype);
    args.bias = in->bias.view, args.has_bias = true;
  }
  if (call.c) {
    in->c = read_metadata(call.c);
    check_same_device("c", in->a, in->c);
    check_addend("c", in->c, in->a.dtype);
    args.c = in->c.view, args.has_c = true;
  }
  args.alpha = static_cast<float>(call.alpha), args.beta = static_cast<float>(call.beta);
  args.activation = static_cast<int>(call.activation);
}

void read_addresses(const GemmCall& call, GemmArgs* args) {
  args->a.data = input_address(call.a);
  args->b.data = input_address(call.b);
  if (args->has_bias) args->bias.data = input_address(call.bias);
  if (args->has_c) args->c.data = input_address(call.c);
}

void copy_into(const Tensor& to, const Tensor& from) {
  check_shim(aoti_torch_copy_(to.get(), from.get(), 0), "aoti_torch_copy_");
}

// torch's own composition of the same computation; consumes the call's tensors.
Tensor reference(GemmCall& call) {
  StableIValue stack[8] = {box(std::move(call.a)),
                           box(std::move(call.b)),
                           box_optional(std::move(call.bias)),
                           box_optional(std::move(call.c)),
                           box(call.alpha),
                           box(call.beta),
                           box(call.activation),
                           box_optional_dtype(call.out_dtype)};
  call_op("deepasm::_gemm_reference", "", stack);
  return take_tensor(stack[0]);
}

Tensor finish_reference(GemmCall& call, const Tensor* out) {
  Tensor result = reference(call);
  if (out == nullptr) return result;
  copy_into(*out, result);
  return Tensor();
}

Tensor fall_back(GemmCall& call, const Tensor* out, const std::string& reason) {
  if (call.variant >= 0) {
    fail("gemm: variant ", call.variant, " cannot run this problem: ", reason);
  }
  gemm_counter().fell_back(reason);
  return finish_reference(call, out);
}

PlanTarget plan_target(const DeviceInfo& device) {
  const Options& o = options();
  return {device.cc_major, device.cc_minor, device.sms,  device.smem_per_block,
          o.tier,          o.max_sms,       device.index};
}

Tensor allocate_out(const GemmProblem& problem, const Metadata& like, int32_t dtype,
                    int64_t* strides) {
  contiguous_strides(problem, strides);
  return empty_strided(problem.out_ndim, problem.out_sizes, strides, dtype, like.device_type,
                       like.device_index);
}

// What can be said against a native kernel before anything is allocated.
const char* not_native(const GemmArgs& args) {
  if (options().disable) return "disabled by DEEPASM_DISABLE=1 or set_option('disable', 1)";
  if (args.a.dtype != DType::kBf16 && args.a.dtype != DType::kF16) {
    return "a and b are neither bfloat16 nor float16";
  }
  if (args.out_dtype == DType::kOther) {
    return "the output dtype is none of bfloat16, float16 and float32";
  }
  return nullptr;
}

// Plans, loads and launches on the current stream; false with `reason` when nothing can run it.
bool launch(const GemmProblem& problem, int device_index, int64_t variant, std::string* reason) {
  const Driver& cu = driver();
  const DeviceInfo& device = device_info(device_index);
  PlanTarget target = plan_target(device);
  GemmPlan plan;
  for (;;) {
    if (!plan_gemm(problem, target, static_cast<int>(variant), &plan)) {
      *reason = plan.reason;
      return false;
    }
    auto stream = static_cast<CUstream>(current_cuda_stream(device_index));
    ContextGuard context(cu, device);
    const LoadedKernel& loaded = load_kernel(cu, device, plan.variant, stream, true);
    if (loaded.function == nullptr) continue;  // the next plan leaves this kernel out
    launch_gemm(cu, plan, loaded.function, stream);
    gemm_counter().launched(static_cast<int>(plan.launches));
    count_kernel_launch(plan.variant, static_cast<int>(plan.launches));
    return true;
  }
}

}  // namespace

void check_dtypes(int32_t a, int32_t b) {
  DTypeInfo ia = dtype_info(a), ib = dtype_info(b);
  for (const DTypeInfo* info : {&ia, &ib}) {
    if (!info->supported) {
      fail("gemm: ", info == &ia ? "a" : "b", " has dtype ", info->name, ", expected ",
           kInputDTypes,
           ", the same for a and b; use torch.matmul, or convert with .to(torch.bfloat16)");
    }
  }
  if (a != b) {
    fail("gemm: expected m1 and m2 to have the same dtype, but got: a is ", ia.name, " and b is ",
         ib.name, "; convert one of them with .to(), or use torch.autocast");
  }
}

Tensor run_gemm(GemmCall& call, const Tensor* out) {
  Inputs in{};
  read_inputs(call, &in);
  if (in.a.device_type != codes().cuda) {
    fail("gemm: a is on ", device_name(in.a), ", expected a CUDA device");
  }
  Metadata out_meta{};
  if (out != nullptr) {
    out_meta = read_metadata(*out);
    check_same_device("out", in.a, out_meta);
  }
  int32_t out_dtype = out != nullptr        ? out_meta.dtype
                      : call.out_dtype >= 0 ? call.out_dtype
                                            : in.a.dtype;
  if (!dtype_info(out_dtype).supported) {
    fail("gemm: ", out != nullptr ? "out has dtype " : "out_dtype is ", dtype_info(out_dtype).name,
         ", expected ", kInputDTypes, "; ",
         out != nullptr ? "allocate it with one of these" : "convert the result instead");
  }
  if (out != nullptr && call.out_dtype >= 0 && call.out_dtype != out_dtype) {
    fail("gemm: out has dtype ", dtype_info(out_dtype).name, " but out_dtype is ",
         dtype_info(call.out_dtype).name, "; leave out_dtype away, out decides");
  }
  call.out_dtype = out_dtype;
  in.args.out_dtype = to_dtype(out_dtype);
  if (in.a.view.ndim > kMaxDims || in.b.view.ndim > kMaxDims || in.c.view.ndim > kMaxDims) {
    if (out != nullptr)
      fail("gemm: out= supports at most ", kMaxDims, " dimensions; leave it away");
    return fall_back(call, out, "a tensor has more than 16 dimensions");  // torch checks the shapes
  }
  const char* foreign = not_native(in.args);
  if (foreign == nullptr) read_addresses(call, &in.args);
  GemmProblem problem;
  prepare_problem(in.args, out != nullptr ? &out_meta.view : nullptr, &problem);
  int64_t strides[kMaxDims];
  if (out_numel(problem) == 0) {
    return out != nullptr ? Tensor() : allocate_out(problem, in.a, out_dtype, strides);
  }
  if (foreign != nullptr) return fall_back(call, out, foreign);
  if (problem.k == 0) return finish_reference(call, out);  // an empty sum: nothing to multiply

  Tensor bias_copy;
  if (problem.bias_copy) {
    const int64_t one = 1;
    bias_copy =
        empty_strided(1, &problem.n, &one, in.bias.dtype, in.a.device_type, in.a.device_index);
    copy_into(bias_copy, call.bias);
    use_bias_copy(&problem, output_address(bias_copy));
    gemm_counter().copied();
  }
  Tensor result;
  bool through_copy = false;
  if (out != nullptr) {
    out_meta.view.data = output_address(*out);
    through_copy = use_output(in.args, out_meta.view, &problem) == OutUse::kCopy;
  }
  if (out == nullptr || through_copy) {
    result = allocate_out(problem, in.a, out_dtype, strides);
    set_output(&problem, output_address(result), strides);
  }
  std::string reason;
  if (!launch(problem, in.a.device_index, call.variant, &reason)) {
    return fall_back(call, out, reason);
  }
  if (!through_copy) return result;
  copy_into(*out, result);
  gemm_counter().copied();
  return Tensor();
}

}  // namespace deepasm

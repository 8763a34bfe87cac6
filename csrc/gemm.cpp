#include "gemm.h"

#include <string>

#include "gemm_problem.h"
#include "gemm_run.h"
#include "torch_api.h"

namespace deepasm {
namespace {

// ---- boxed kernels: stack layouts follow the schemas in kSchemas ----

// _gemm(a, b, bias?, c?, alpha, beta, activation, out_dtype?, variant)
GemmCall take_internal_call(StableIValue* stack) {
  GemmCall call;
  call.a = take_tensor(stack[0]);
  call.b = take_tensor(stack[1]);
  call.bias = take_optional_tensor(stack[2]);
  call.c = take_optional_tensor(stack[3]);
  call.alpha = take_double(stack[4]);
  call.beta = take_double(stack[5]);
  call.activation = take_int(stack[6]);
  call.out_dtype = take_optional_dtype(stack[7]);
  call.variant = take_int(stack[8]);
  return call;
}

void internal_gemm(StableIValue* stack) {
  GemmCall call = take_internal_call(stack);
  stack[0] = box(run_gemm(call, nullptr));
}

void internal_gemm_out(StableIValue* stack) {
  GemmCall call = take_internal_call(stack);
  Tensor out = take_tensor(stack[9]);
  run_gemm(call, &out);
}

// gemm(a, b, bias?, activation, out_dtype?), below autograd: inference mode
void gemm_cuda(StableIValue* stack) {
  GemmCall call;
  call.a = take_tensor(stack[0]);
  call.b = take_tensor(stack[1]);
  call.bias = take_optional_tensor(stack[2]);
  call.activation = take_int(stack[3]);
  call.out_dtype = take_optional_dtype(stack[4]);
  stack[0] = box(run_gemm(call, nullptr));
}

// gemm.out(a, b, bias?, activation, out)
void gemm_out_cuda(StableIValue* stack) {
  GemmCall call;
  call.a = take_tensor(stack[0]);
  call.b = take_tensor(stack[1]);
  call.bias = take_optional_tensor(stack[2]);
  call.activation = take_int(stack[3]);
  Tensor out = take_tensor(stack[4]);
  run_gemm(call, &out);
}

bool is_cuda(AtenTensorHandle tensor) {
  int32_t type = -1;
  check_shim(aoti_torch_get_device_type(tensor, &type), "aoti_torch_get_device_type");
  return type == codes().cuda;
}

// Checks that need no shapes, for tensors of any kind (fake, functional, sparse, ...).  Their text
// must reach the user from here: beyond the dispatcher call it is lost on torch before 2.13.
void check_kinds(StableIValue a, StableIValue b, int64_t activation) {
  int32_t dtype[2], layout[2];
  for (int i = 0; i < 2; ++i) {
    auto handle = reinterpret_cast<AtenTensorHandle>(i == 0 ? a : b);
    check_shim(aoti_torch_get_dtype(handle, &dtype[i]), "aoti_torch_get_dtype");
    check_shim(aoti_torch_get_layout(handle, &layout[i]), "aoti_torch_get_layout");
    if (layout[i] != codes().strided) {
      fail("gemm: ", i == 0 ? "a" : "b",
           " is sparse or nested, expected a strided "
           "(dense) tensor; convert it with .to_dense() (nested: torch.nested.to_padded_tensor) or "
           "use torch.matmul");
    }
  }
  check_dtypes(dtype[0], dtype[1]);
  check_activation(activation);
}

// Keeps references to a and b of a call that does not run our CUDA kernel, to find out afterwards
// whether it failed because of the shapes.
class ShapeWitness {
 public:
  ShapeWitness(StableIValue a, StableIValue b) {
    auto ha = reinterpret_cast<AtenTensorHandle>(a), hb = reinterpret_cast<AtenTensorHandle>(b);
    if (is_cuda(ha) && is_cuda(hb)) return;
    AtenTensorHandle copy = nullptr;
    check_shim(aoti_torch_new_tensor_handle(ha, &copy), "aoti_torch_new_tensor_handle");
    a_ = Tensor(copy);
    check_shim(aoti_torch_new_tensor_handle(hb, &copy), "aoti_torch_new_tensor_handle");
    b_ = Tensor(copy);
  }

  // Throws a clearer Error when the shapes are to blame.
  void explain() const {
    if (!a_) return;
    GemmArgs args;
    int64_t *sizes[2], *strides[2], ndim[2];
    const Tensor* tensors[2] = {&a_, &b_};
    for (int i = 0; i < 2; ++i) {
      AtenTensorHandle t = tensors[i]->get();
      // These fail for symbolic sizes; then there is nothing to explain with.
      if (aoti_torch_get_dim(t, &ndim[i]) || ndim[i] > kMaxDims ||
          aoti_torch_get_sizes(t, &sizes[i]) || aoti_torch_get_strides(t, &strides[i])) {
        return;
      }
    }
    args.a.sizes = sizes[0], args.a.strides = strides[0], args.a.ndim = static_cast<int>(ndim[0]);
    args.b.sizes = sizes[1], args.b.strides = strides[1], args.b.ndim = static_cast<int>(ndim[1]);
    GemmProblem problem;
    prepare_problem(args, nullptr, &problem);
  }

 private:
  Tensor a_, b_;
};

// Frees what a stack still owns when a check throws before the stack is handed on.
struct StackOwner {
  StableIValue* stack;
  unsigned tensors, optional_tensors, optional_dtypes;  // bit masks of positions
  bool armed = true;

  ~StackOwner() {
    for (int i = 0; armed && i < 16; ++i) {
      if (tensors >> i & 1) take_tensor(stack[i]);
      if (optional_tensors >> i & 1) take_optional_tensor(stack[i]);
      if (optional_dtypes >> i & 1) take_optional_dtype(stack[i]);
    }
  }
};

void call_explained(const char* op, const char* overload, StableIValue* stack,
                    const ShapeWitness& witness) {
  try {
    call_op(op, overload, stack);
  } catch (const Error&) {
    witness.explain();
    throw;
  }
}

// gemm's Autograd kernel.  Without grad mode it goes straight to the internal op: no Python.  It
// must go through the dispatcher even so: modes and tensor subclasses are served below this key.
void gemm_autograd(StableIValue* stack) {
  StackOwner owner{stack, 0b00011, 0b00100, 0b10000};
  check_kinds(stack[0], stack[1], take_int(stack[3]));
  ShapeWitness witness(stack[0], stack[1]);
  owner.armed = false;
  if (aoti_torch_grad_mode_is_enabled()) {
    StableIValue args[5] = {stack[0], stack[1], stack[2], stack[3], stack[4]};
    call_explained("deepasm::_gemm_grad", "", args, witness);
    stack[0] = args[0];
    return;
  }
  StableIValue args[9] = {stack[0], stack[1], stack[2],        0, box(1.0), box(0.0),
                          stack[3], stack[4], box(int64_t{-1})};
  call_explained("deepasm::_gemm", "", args, witness);
  stack[0] = args[0];
}

const char* const kSchemas[] = {
    "gemm(Tensor a, Tensor b, Tensor? bias=None, *, int activation=0, ScalarType? out_dtype=None) "
    "-> Tensor",
    "gemm.out(Tensor a, Tensor b, Tensor? bias=None, *, int activation=0, Tensor(a!) out) -> ()",
    "_gemm(Tensor a, Tensor b, Tensor? bias, Tensor? c, float alpha, float beta, int activation, "
    "ScalarType? out_dtype, int variant) -> Tensor",
    "_gemm.out(Tensor a, Tensor b, Tensor? bias, Tensor? c, float alpha, float beta, "
    "int activation, ScalarType? out_dtype, int variant, *, Tensor(a!) out) -> ()",
    "_gemm_grad(Tensor a, Tensor b, Tensor? bias, int activation, ScalarType? out_dtype) -> Tensor",
    "_gemm_reference(Tensor a, Tensor b, Tensor? bias, Tensor? c, float alpha, float beta, "
    "int activation, ScalarType? out_dtype) -> Tensor",
};

struct Registration {
  const char* key;
  const char* op;
  void (*kernel)(StableIValue*, uint64_t, uint64_t);
};

const Registration kRegistrations[] = {
    {"Autograd", "gemm", boxed<gemm_autograd>},      {"CUDA", "gemm", boxed<gemm_cuda>},
    {"CUDA", "gemm.out", boxed<gemm_out_cuda>},      {"CUDA", "_gemm", boxed<internal_gemm>},
    {"CUDA", "_gemm.out", boxed<internal_gemm_out>},
};

void check_registration(AOTITorchError code, const std::string& what) {
  if (code == AOTI_TORCH_SUCCESS) return;
  std::string text = torch_error_text();
  fail("deepasm_torch: torch refused ", what, text.empty() ? "" : ": ", text);
}

}  // namespace

void register_ops() {
  // The library objects are never deleted: deleting one takes its registrations back.
  TorchLibraryHandle library = nullptr;
  check_registration(aoti_torch_library_init_def("deepasm", "csrc/gemm.cpp", __LINE__, &library),
                     "the op namespace deepasm (is another copy of deepasm_torch loaded?)");
  for (const char* schema : kSchemas) {
    check_registration(aoti_torch_library_def(library, schema), cat("the schema ", schema));
  }
  for (const char* key : {"Autograd", "CUDA"}) {
    check_registration(
        aoti_torch_library_init_impl("deepasm", key, "csrc/gemm.cpp", __LINE__, &library),
        cat("kernels for dispatch key ", key));
    for (const Registration& r : kRegistrations) {
      if (std::strcmp(r.key, key) != 0) continue;
      check_registration(torch_library_impl(library, r.op, r.kernel, TORCH_ABI_VERSION),
                         cat("the ", key, " kernel of ", r.op));
    }
  }
}

}  // namespace deepasm

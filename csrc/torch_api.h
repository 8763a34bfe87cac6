// A thin layer over LibTorch's stable C shims: owned handles, checked return codes, and the few
// symbols that only some builds of torch have, found at run time.
#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "error.h"

namespace deepasm {

// Owns one tensor reference.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(AtenTensorHandle handle) : handle_(handle) {}
  Tensor(Tensor&& other) noexcept : handle_(other.release()) {}
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Tensor() {
    if (handle_ != nullptr) aoti_torch_delete_tensor_object(handle_);
  }

  AtenTensorHandle get() const { return handle_; }
  explicit operator bool() const { return handle_ != nullptr; }
  AtenTensorHandle release() { return std::exchange(handle_, nullptr); }

 private:
  AtenTensorHandle handle_ = nullptr;
};

// Throws Error with the most specific text known when a shim reports failure.
void check_shim(AOTITorchError code, const char* what);

// Calls an op.  `stack` holds its arguments, which are consumed even on failure, and receives its
// results.  A failure becomes Error with the text of the original exception where it survived.
void call_op(const char* name, const char* overload, StableIValue* stack);

// Values on an op's stack.  Optionals are null or a heap cell.
inline StableIValue box(const Tensor&) = delete;  // use box(std::move(tensor))
inline StableIValue box(Tensor&& t) { return reinterpret_cast<StableIValue>(t.release()); }
inline StableIValue box(int64_t v) { return static_cast<StableIValue>(v); }
inline StableIValue box(double v) {
  StableIValue raw;
  std::memcpy(&raw, &v, sizeof raw);
  return raw;
}
StableIValue box_optional(Tensor&& tensor);      // an empty tensor is None
StableIValue box_optional_dtype(int32_t dtype);  // a negative dtype is None

inline Tensor take_tensor(StableIValue v) { return Tensor(reinterpret_cast<AtenTensorHandle>(v)); }
inline int64_t take_int(StableIValue v) { return static_cast<int64_t>(v); }
inline double take_double(StableIValue v) {
  double value;
  std::memcpy(&value, &v, sizeof value);
  return value;
}
Tensor take_optional_tensor(StableIValue v);
int32_t take_optional_dtype(StableIValue v);  // -1 for None

// Numbers that torch hides behind functions, read once.
struct TorchCodes {
  int32_t bf16, f16, f32;
  int32_t cpu, cuda;
  int32_t strided;
};
const TorchCodes& codes();

struct DTypeInfo {
  const char* name;  // "torch.bfloat16"
  bool
      supported;  // by a kernel or by the fallback to torch: real floating point of 16 bits or more
};
DTypeInfo dtype_info(int32_t dtype);

// A new uninitialised tensor; a failure's text says "CUDA out of memory" on a GPU.
Tensor empty_strided(int ndim, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                     int32_t device_type, int32_t device_index);

// The cudaStream_t of torch's current stream on a device.
void* current_cuda_stream(int32_t device_index);

// The text of the exception that most recently left one of our kernels on this thread.  torch
// before 2.13 drops it when the exception crosses a C shim, so the outer kernel picks it up here.
void remember_error(const char* text);

// Wraps a kernel body for registration: remembers the text of what it throws.
template <void (*body)(StableIValue*)>
void boxed(StableIValue* stack, uint64_t /*inputs*/, uint64_t /*outputs*/) {
  try {
    body(stack);
  } catch (const std::exception& error) {
    remember_error(error.what());
    throw;
  }
}

// A symbol of the loaded libtorch_cpu.so (or `library`), or null.
void* find_torch_symbol(const char* name, const char* library = "libtorch_cpu.so");

// The text of torch's last exception on this thread, or "" when this torch does not keep it.
std::string torch_error_text();

}  // namespace deepasm

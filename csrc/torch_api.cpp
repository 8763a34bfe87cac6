#include "torch_api.h"

#include <dlfcn.h>

#include <cstdint>

namespace deepasm {
namespace {

std::string& last_error() {
  thread_local std::string text;
  return text;
}

// Heap cells of optional values: through torch's own allocator where it has one (2.13), otherwise
// with the operators that its headers used until then.
struct CellFunctions {
  AOTITorchError (*make)(StableIValue**);
  AOTITorchError (*destroy)(StableIValue*);
};

const CellFunctions& cell_functions() {
  static const CellFunctions functions = [] {
    CellFunctions found{};
    found.make =
        reinterpret_cast<decltype(found.make)>(find_torch_symbol("torch_new_stable_ivalue"));
    found.destroy =
        reinterpret_cast<decltype(found.destroy)>(find_torch_symbol("torch_delete_stable_ivalue"));
    if (found.make == nullptr || found.destroy == nullptr) found = {};
    return found;
  }();
  return functions;
}

StableIValue new_cell(StableIValue value) {
  StableIValue* cell = nullptr;
  if (cell_functions().make != nullptr) {
    check_shim(cell_functions().make(&cell), "torch_new_stable_ivalue");
    *cell = value;
  } else {
    cell = new StableIValue(value);
  }
  return reinterpret_cast<StableIValue>(cell);
}

StableIValue take_cell(StableIValue pointer) {
  auto* cell = reinterpret_cast<StableIValue*>(pointer);
  StableIValue value = *cell;
  if (cell_functions().destroy != nullptr) {
    cell_functions().destroy(cell);
  } else {
    delete cell;
  }
  return value;
}

// Python exceptions arrive as "RuntimeError: text\n\nAt:\n  file(line): function".
std::string tidy(std::string text) {
  size_t at = text.find("\n\nAt:\n");
  if (at != std::string::npos) text.resize(at);
  const std::string prefix = "RuntimeError: ";
  if (text.compare(0, prefix.size(), prefix) == 0) text.erase(0, prefix.size());
  return text;
}

}  // namespace

void* find_torch_symbol(const char* name, const char* library) {
  // RTLD_NOLOAD: only ask a library that torch itself has loaded.
  void* handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  return handle == nullptr ? nullptr : dlsym(handle, name);
}

std::string torch_error_text() {
  static const auto get = reinterpret_cast<const char* (*)()>(
      find_torch_symbol("torch_exception_get_what_without_backtrace"));
  const char* text = get == nullptr ? nullptr : get();
  return text == nullptr ? "" : text;
}

void remember_error(const char* text) { last_error() = text; }

namespace {

// Call right after a shim failed.
std::string failure_text(const char* what) {
  std::string ours;
  ours.swap(last_error());
  std::string theirs = torch_error_text();
  // The nested text is ours when one of our kernels threw it; take it without torch's additions.
  if (!ours.empty() && (theirs.empty() || theirs.find(ours) != std::string::npos)) return ours;
  if (!theirs.empty()) return tidy(theirs);
  return cat(what,
             " failed inside torch, which printed the reason to stderr (torch 2.13 or newer "
             "passes it on)");
}

}  // namespace

void check_shim(AOTITorchError code, const char* what) {
  if (code != AOTI_TORCH_SUCCESS) throw Error(failure_text(what));
}

void call_op(const char* name, const char* overload, StableIValue* stack) {
  last_error().clear();
  check_shim(torch_call_dispatcher(name, overload, stack, TORCH_ABI_VERSION), name);
}

StableIValue box_optional(Tensor&& tensor) {
  if (!tensor) return 0;
  return new_cell(reinterpret_cast<StableIValue>(tensor.release()));
}

StableIValue box_optional_dtype(int32_t dtype) {
  if (dtype < 0) return 0;
  return new_cell(static_cast<StableIValue>(static_cast<uint32_t>(dtype)));
}

Tensor take_optional_tensor(StableIValue v) {
  return v == 0 ? Tensor() : take_tensor(take_cell(v));
}

int32_t take_optional_dtype(StableIValue v) {
  return v == 0 ? -1 : static_cast<int32_t>(static_cast<uint32_t>(take_cell(v)));
}

const TorchCodes& codes() {
  static const TorchCodes instance = {aoti_torch_dtype_bfloat16(),   aoti_torch_dtype_float16(),
                                      aoti_torch_dtype_float32(),    aoti_torch_device_type_cpu(),
                                      aoti_torch_device_type_cuda(), aoti_torch_layout_strided()};
  return instance;
}

DTypeInfo dtype_info(int32_t dtype) {
  struct Row {
    int32_t code;
    DTypeInfo info;
  };
  static const Row rows[] = {
      {aoti_torch_dtype_bfloat16(), {"torch.bfloat16", true}},
      {aoti_torch_dtype_float16(), {"torch.float16", true}},
      {aoti_torch_dtype_float32(), {"torch.float32", true}},
      {aoti_torch_dtype_float64(), {"torch.float64", true}},
      {aoti_torch_dtype_float8_e4m3fn(), {"torch.float8_e4m3fn", false}},
      {aoti_torch_dtype_float8_e5m2(), {"torch.float8_e5m2", false}},
      {aoti_torch_dtype_bool(), {"torch.bool", false}},
      {aoti_torch_dtype_uint8(), {"torch.uint8", false}},
      {aoti_torch_dtype_int8(), {"torch.int8", false}},
      {aoti_torch_dtype_int16(), {"torch.int16", false}},
      {aoti_torch_dtype_int32(), {"torch.int32", false}},
      {aoti_torch_dtype_int64(), {"torch.int64", false}},
      {aoti_torch_dtype_uint16(), {"torch.uint16", false}},
      {aoti_torch_dtype_uint32(), {"torch.uint32", false}},
      {aoti_torch_dtype_uint64(), {"torch.uint64", false}},
      {aoti_torch_dtype_complex32(), {"torch.complex32", false}},
      {aoti_torch_dtype_complex64(), {"torch.complex64", false}},
      {aoti_torch_dtype_complex128(), {"torch.complex128", false}},
  };
  for (const Row& row : rows) {
    if (row.code == dtype) return row.info;
  }
  return {"a dtype that deepasm does not know", false};
}

Tensor empty_strided(int ndim, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                     int32_t device_type, int32_t device_index) {
  AtenTensorHandle handle = nullptr;
  AOTITorchError code =
      aoti_torch_empty_strided(ndim, sizes, strides, dtype, device_type, device_index, &handle);
  if (code == AOTI_TORCH_SUCCESS) return Tensor(handle);
  std::string text = torch_error_text();
  if (!text.empty()) throw Error(text);
  int64_t elements = 1;
  for (int i = 0; i < ndim; ++i) elements *= sizes[i];
  fail("CUDA out of memory, or another allocation failure: gemm asked torch for ", elements,
       " elements of ", dtype_info(dtype).name, " on cuda:", device_index);
}

void* current_cuda_stream(int32_t device_index) {
  using Shim = AOTITorchError (*)(int32_t, void**);
  using NativeHandle = AOTITorchError (*)(StreamHandle, void**);
  // CUDA-only shims are missing from a CPU libtorch, so they must not be strong references.
  static const auto shim = reinterpret_cast<Shim>(
      find_torch_symbol("aoti_torch_get_current_cuda_stream", "libtorch_cuda.so"));
  static const auto native =
      reinterpret_cast<NativeHandle>(find_torch_symbol("torch_stream_native_handle"));
  void* stream = nullptr;
  if (shim != nullptr) {
    check_shim(shim(device_index, &stream), "aoti_torch_get_current_cuda_stream");
    return stream;
  }
  StreamHandle handle = nullptr;
  check_shim(aoti_torch_get_current_stream(device_index, &handle), "aoti_torch_get_current_stream");
  int64_t id = -1;
  AOTITorchError code =
      native != nullptr ? native(handle, &stream) : aoti_torch_stream_id(handle, &id);
  aoti_torch_delete_stream(handle);
  check_shim(code, "reading the current stream");
  // A stream id is a handle only for the default stream.
  if (native == nullptr && id != 0) {
    fail(
        "this build of torch does not tell which CUDA stream is current; run on the default "
        "stream or install torch 2.13 or newer");
  }
  return stream;
}

}  // namespace deepasm

#include "driver.h"

#include <dlfcn.h>

#include <atomic>

#include "error.h"

namespace deepasm {
namespace {

// CUdevice_attribute
constexpr int kAttrSms = 16;
constexpr int kAttrL2Bytes = 38;
constexpr int kAttrMajor = 75;
constexpr int kAttrMinor = 76;
constexpr int kAttrSmemOptin = 97;

void* open_libcuda() {
  // The last two are where WSL and some containers keep the driver, outside the loader's path.
  for (const char* name : {"libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1",
                           "/usr/local/nvidia/lib64/libcuda.so.1"}) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

template <class F>
bool find(void* library, const char* name, F* slot) {
  *slot = reinterpret_cast<F>(dlsym(library, name));
  return *slot != nullptr;
}

// Every required entry point is one whose unsuffixed symbol is the current ABI (none has a _v2),
// so a plain dlsym gives the right version.
std::string load(Driver* cu) {
  void* library = open_libcuda();
  if (library == nullptr) {
    return "the NVIDIA driver library libcuda.so.1 was not found; deepasm's CUDA kernels need a "
           "machine with an NVIDIA driver";
  }
#define DEEPASM_FIND(name) \
  if (!find(library, #name, &cu->name)) return "the NVIDIA driver has no " #name "; it is too old"
  DEEPASM_FIND(cuInit);
  DEEPASM_FIND(cuDriverGetVersion);
  DEEPASM_FIND(cuGetErrorName);
  DEEPASM_FIND(cuGetErrorString);
  DEEPASM_FIND(cuDeviceGet);
  DEEPASM_FIND(cuDeviceGetCount);
  DEEPASM_FIND(cuDeviceGetName);
  DEEPASM_FIND(cuDeviceGetAttribute);
  DEEPASM_FIND(cuDevicePrimaryCtxRetain);
  DEEPASM_FIND(cuCtxGetCurrent);
  DEEPASM_FIND(cuCtxSetCurrent);
  DEEPASM_FIND(cuModuleLoadDataEx);
  DEEPASM_FIND(cuModuleUnload);
  DEEPASM_FIND(cuModuleGetFunction);
  DEEPASM_FIND(cuFuncSetAttribute);
  DEEPASM_FIND(cuStreamIsCapturing);
  DEEPASM_FIND(cuThreadExchangeStreamCaptureMode);
  DEEPASM_FIND(cuLaunchKernel);
#undef DEEPASM_FIND
  find(library, "cuLaunchKernelEx", &cu->cuLaunchKernelEx);
  find(library, "cuTensorMapEncodeTiled", &cu->cuTensorMapEncodeTiled);
  if (CUresult code = cu->cuInit(0)) {
    return "cuInit failed: " + driver_error_text(*cu, code);
  }
  cu->cuDriverGetVersion(&cu->version);
  return "";
}

struct Loaded {
  Driver cu{};
  std::string error;
};

}  // namespace

const Driver& driver() {
  // A failure is remembered: a driver does not appear while a process runs.
  static const Loaded* loaded = [] {
    auto* result = new Loaded;
    result->error = load(&result->cu);
    return result;
  }();
  if (!loaded->error.empty()) throw Error(loaded->error);
  return loaded->cu;
}

std::string driver_error_text(const Driver& cu, CUresult code) {
  const char* name = nullptr;
  const char* text = nullptr;
  cu.cuGetErrorName(code, &name);
  cu.cuGetErrorString(code, &text);
  return cat(name ? name : "CUDA error", " (", code, ")", text ? ": " : "", text ? text : "");
}

void check_driver(const Driver& cu, CUresult code, const char* what) {
  if (code != kCudaSuccess) fail(what, ": ", driver_error_text(cu, code));
}

const DeviceInfo& device_info(int index) {
  static std::atomic<const DeviceInfo*> cache[kMaxDevices];
  if (index < 0 || index >= kMaxDevices) {
    fail("device index ", index, " is out of range; 0 to ", kMaxDevices - 1, " are supported");
  }
  if (const DeviceInfo* known = cache[index].load(std::memory_order_acquire)) return *known;
  const Driver& cu = driver();
  int count = 0;
  check_driver(cu, cu.cuDeviceGetCount(&count), "cuDeviceGetCount");
  if (index >= count) fail("there is no CUDA device ", index, "; the driver sees ", count);
  auto* info = new DeviceInfo;
  info->index = index;
  check_driver(cu, cu.cuDeviceGet(&info->device, index), "cuDeviceGet");
  check_driver(cu, cu.cuDeviceGetName(info->name, sizeof info->name, info->device),
               "cuDeviceGetName");
  auto attribute = [&](int id, int* value) {
    check_driver(cu, cu.cuDeviceGetAttribute(value, id, info->device), "cuDeviceGetAttribute");
  };
  attribute(kAttrMajor, &info->cc_major);
  attribute(kAttrMinor, &info->cc_minor);
  attribute(kAttrSms, &info->sms);
  attribute(kAttrSmemOptin, &info->smem_per_block);
  attribute(kAttrL2Bytes, &info->l2_bytes);
  const DeviceInfo* expected = nullptr;
  if (!cache[index].compare_exchange_strong(expected, info, std::memory_order_acq_rel)) {
    delete info;  // another thread was first
    return *expected;
  }
  return *info;
}

namespace {

CUcontext primary_context(const Driver& cu, const DeviceInfo& device) {
  // Retained once and never released: torch owns the context's life, and releasing at interpreter
  // exit would race with it.
  static std::atomic<CUcontext> contexts[kMaxDevices];
  CUcontext context = contexts[device.index].load(std::memory_order_acquire);
  if (context == nullptr) {
    check_driver(cu, cu.cuDevicePrimaryCtxRetain(&context, device.device),
                 "cuDevicePrimaryCtxRetain");
    contexts[device.index].store(context, std::memory_order_release);
  }
  return context;
}

}  // namespace

ContextGuard::ContextGuard(const Driver& cu, const DeviceInfo& device) : cu_(cu) {
  CUcontext wanted = primary_context(cu, device);
  check_driver(cu, cu.cuCtxGetCurrent(&previous_), "cuCtxGetCurrent");
  if (previous_ != wanted) {
    check_driver(cu, cu.cuCtxSetCurrent(wanted), "cuCtxSetCurrent");
    switched_ = true;
  }
}

ContextGuard::~ContextGuard() {
  if (switched_) cu_.cuCtxSetCurrent(previous_);
}

}  // namespace deepasm

// The CUDA driver, loaded lazily: nothing here is linked, so the module imports on any machine.
//
// The few types and constants of cuda.h that are needed are declared below with their documented
// binary layout; no CUDA header is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace deepasm {

using CUresult = int;
using CUdevice = int;
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUstream = struct CUstream_st*;

constexpr CUresult kCudaSuccess = 0;

struct CudaLaunchAttribute {
  static constexpr uint32_t kClusterDimension = 4;
  static constexpr uint32_t kProgrammaticStreamSerialization = 6;
  uint32_t id;
  uint32_t pad;
  union {
    uint32_t cluster[3];
    int32_t allowed;
    unsigned char bytes[64];
  } value;
};
static_assert(sizeof(CudaLaunchAttribute) == 72);

struct CudaLaunchConfig {
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_bytes;
  CUstream stream;
  CudaLaunchAttribute* attributes;
  uint32_t attribute_count;
};
static_assert(offsetof(CudaLaunchConfig, stream) == 32 && sizeof(CudaLaunchConfig) == 56);

struct Driver {
  CUresult (*cuInit)(unsigned);
  CUresult (*cuDriverGetVersion)(int*);
  CUresult (*cuGetErrorName)(CUresult, const char**);
  CUresult (*cuGetErrorString)(CUresult, const char**);
  CUresult (*cuDeviceGet)(CUdevice*, int);
  CUresult (*cuDeviceGetCount)(int*);
  CUresult (*cuDeviceGetName)(char*, int, CUdevice);
  CUresult (*cuDeviceGetAttribute)(int*, int, CUdevice);
  CUresult (*cuDevicePrimaryCtxRetain)(CUcontext*, CUdevice);
  CUresult (*cuCtxGetCurrent)(CUcontext*);
  CUresult (*cuCtxSetCurrent)(CUcontext);
  CUresult (*cuModuleLoadDataEx)(CUmodule*, const void*, unsigned, int*, void**);
  CUresult (*cuModuleUnload)(CUmodule);
  CUresult (*cuModuleGetFunction)(CUfunction*, CUmodule, const char*);
  CUresult (*cuFuncSetAttribute)(CUfunction, int, int);
  CUresult (*cuStreamIsCapturing)(CUstream, int*);
  CUresult (*cuThreadExchangeStreamCaptureMode)(int*);
  // Null on a driver older than 11.8 / 12.0: only tier sm90 and launch attributes need them.
  CUresult (*cuLaunchKernelEx)(const CudaLaunchConfig*, CUfunction, void**, void**);
  CUresult (*cuLaunchKernel)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                             unsigned, CUstream, void**, void**);
  CUresult (*cuTensorMapEncodeTiled)(void*, int, uint32_t, void*, const uint64_t*, const uint64_t*,
                                     const uint32_t*, const uint32_t*, int, int, int, int);
  int version;  // 12090 for CUDA 12.9
};

// The table, after a successful cuInit.  Throws Error saying what is missing when there is no
// usable driver.  Thread safe; the first call pays for dlopen and cuInit.
const Driver& driver();

// "CUDA_ERROR_INVALID_VALUE (1): invalid argument"
std::string driver_error_text(const Driver& cu, CUresult code);

// Throws Error("<what>: <driver text>") unless `code` is success.
void check_driver(const Driver& cu, CUresult code, const char* what);

// What a planner needs to know about a GPU, and what `info` prints.
struct DeviceInfo {
  int index = -1;
  CUdevice device = 0;
  char name[128] = {};
  int cc_major = 0, cc_minor = 0;
  int sms = 0;
  int smem_per_block = 0;  // opt-in limit, bytes
  int l2_bytes = 0;
};

// Attributes of device `index` (torch's numbering, which is the driver's); cached.  No context is
// created.  Throws Error when there is no such device.
const DeviceInfo& device_info(int index);

// Makes the primary context of a device current for a scope.  The autograd thread and plain Python
// threads may have no context, or another GPU's; whatever was current is put back.
class ContextGuard {
 public:
  ContextGuard(const Driver& cu, const DeviceInfo& device);
  ~ContextGuard();
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  const Driver& cu_;
  CUcontext previous_ = nullptr;
  bool switched_ = false;
};

constexpr int kMaxDevices = 64;

}  // namespace deepasm

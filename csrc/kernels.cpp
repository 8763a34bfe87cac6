#include "kernels.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "error.h"
#include "inflate.h"

// kernels.blob is found through the assembler's include path, which setup.py passes.
__asm__(
    ".pushsection .rodata\n"
    ".balign 16\n"
    ".hidden deepasm_blob\n"
    ".hidden deepasm_blob_end\n"
    ".globl deepasm_blob\n"
    ".globl deepasm_blob_end\n"
    "deepasm_blob:\n"
    ".incbin \"kernels.blob\"\n"
    "deepasm_blob_end:\n"
    ".byte 0\n"
    ".popsection\n");

extern "C" __attribute__((visibility("hidden"))) const uint8_t deepasm_blob[];
extern "C" __attribute__((visibility("hidden"))) const uint8_t deepasm_blob_end[];

namespace deepasm {
namespace {

constexpr KernelInfo kKernels[] = {
#include "kernel_table.inc"
};

#include "ptxas_version.inc"

constexpr ImageInfo kImages[] = {
#include "image_table.inc"
};

constexpr int kKernelCount = static_cast<int>(sizeof kKernels / sizeof kKernels[0]);
constexpr int kImageCount = static_cast<int>(sizeof kImages / sizeof kImages[0]);

constexpr bool same(const char* x, const char* y) {
  while (*x != '\0' && *x == *y) ++x, ++y;
  return *x == *y;
}

struct TraitsTable {
  KernelTraits rows[kKernelCount];
};

constexpr TraitsTable make_traits() {
  TraitsTable table{};
  for (int i = 0; i < kKernelCount; ++i) {
    const KernelInfo& k = kKernels[i];
    table.rows[i] = {same(k.op, "gemm"),   same(k.loads, "any"),
                     same(k.loads, "tma"), same(k.schedule, "pingpong"),
                     k.d_major == 'm',     layout_bit(k.a_major, k.b_major)};
  }
  return table;
}

constexpr TraitsTable kTraits = make_traits();

// CUresult codes that say "this image does not suit this device or driver" and nothing worse.
bool refused_image(CUresult code) {
  switch (code) {
    case 200:  // INVALID_IMAGE
    case 209:  // NO_BINARY_FOR_GPU
    case 218:  // INVALID_PTX
    case 221:  // JIT_COMPILER_NOT_FOUND
    case 222:  // UNSUPPORTED_PTX_VERSION
    case 223:  // JIT_COMPILATION_DISABLED
    case 300:  // INVALID_SOURCE
    case 500:  // NOT_FOUND (no such entry point)
    case 801:  // NOT_SUPPORTED
      return true;
    default:
      return false;
  }
}

// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED up to ..._WRONG_THREAD
constexpr int kFirstCaptureError = 900, kLastCaptureError = 908, kCudaStreamCaptureImplicit = 906;
constexpr int kFuncMaxDynamicSharedSize = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr int kCaptureModeRelaxed = 2;        // CU_STREAM_CAPTURE_MODE_RELAXED
constexpr int kDriverLoadsInCapture = 12030;  // from CUDA 12.3 on a module may load in a capture
constexpr int kJitErrorLog = 5, kJitErrorLogSize = 6;  // CU_JIT_ERROR_LOG_BUFFER and its size

bool cubin_suits(const ImageInfo& image, const DeviceInfo& device) {
  int cc = device.cc_major * 10 + device.cc_minor;
  if (image.suffix == 'a') return image.arch == cc;
  return image.arch / 10 == device.cc_major && image.arch <= cc;
}

bool ptx_suits(const ImageInfo& image, const DeviceInfo& device) {
  int cc = device.cc_major * 10 + device.cc_minor;
  return image.suffix == 'a' ? image.arch == cc : image.arch <= cc;
}

// Images worth trying, best first: the cubin of the nearest architecture, then the newest PTX.
std::vector<int> images_for(const KernelInfo& kernel, const DeviceInfo& device) {
  std::vector<int> order;
  for (int kind : {0, 1}) {
    size_t from = order.size();
    for (int i = kernel.first_image; i < kernel.first_image + kernel.images; ++i) {
      const ImageInfo& image = kImages[i];
      if (image.kind != kind) continue;
      if (kind == 0 ? !cubin_suits(image, device) : !ptx_suits(image, device)) continue;
      size_t at = order.size();
      order.push_back(i);
      while (at > from && kImages[order[at - 1]].arch < image.arch) {
        std::swap(order[at], order[at - 1]);
        --at;
      }
    }
  }
  return order;
}

// Lifts this thread's capture mode to "relaxed" for a scope, so that a load is not refused (and a
// capture on another thread not broken) because of a global-mode capture.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& cu) : cu_(cu) {
    active_ = cu_.cuThreadExchangeStreamCaptureMode(&mode_) == kCudaSuccess;
  }
  ~RelaxedCapture() {
    if (active_) cu_.cuThreadExchangeStreamCaptureMode(&mode_);
  }

 private:
  const Driver& cu_;
  int mode_ = kCaptureModeRelaxed;
  bool active_;
};

struct Slot {
  std::atomic<const LoadedKernel*> record{nullptr};
};

Slot& slot(int device, int kernel) {
  static Slot slots[kMaxDevices][kKernelCount];
  return slots[device][kernel];
}

std::mutex& load_mutex(int device) {
  static std::mutex mutexes[kMaxDevices];
  return mutexes[device];
}

std::atomic<long long>& launch_count(int kernel) {
  static std::atomic<long long> counts[kKernelCount];
  return counts[kernel];
}

// One image: module, entry point, shared memory limit.  Empty `error` means success.
CUresult load_image(const Driver& cu, const KernelInfo& kernel, int image, CUfunction* function,
                    std::string* error) {
  std::string bytes = unpack_image(image);  // PTX needs the terminating zero that string has
  char log[4096] = {};
  int names[2] = {kJitErrorLog, kJitErrorLogSize};
  void* values[2] = {log, reinterpret_cast<void*>(sizeof log - 1)};
  CUmodule module = nullptr;
  CUresult code = cu.cuModuleLoadDataEx(&module, bytes.data(), 2, names, values);
  const char* step = "cuModuleLoadDataEx";
  if (code == kCudaSuccess) {
    step = "cuModuleGetFunction";
    code = cu.cuModuleGetFunction(function, module, kernel.name);
  }
  if (code == kCudaSuccess && kernel.smem > 0) {
    step = "cuFuncSetAttribute(max dynamic shared memory)";
    code = cu.cuFuncSetAttribute(*function, kFuncMaxDynamicSharedSize, kernel.smem);
  }
  if (code != kCudaSuccess) {
    if (module != nullptr) cu.cuModuleUnload(module);
    *function = nullptr;
    *error = cat(step, ": ", driver_error_text(cu, code));
    if (log[0] != '\0') *error += cat(" [", log, "]");
  }
  return code;
}

}  // namespace

std::string arch_name(const ImageInfo& image) {
  std::string name = cat("sm_", image.arch);
  if (image.suffix) name += image.suffix;
  return name;
}

const char* ptxas_version() { return kPtxasVersion; }
int kernel_count() { return kKernelCount; }
const ImageInfo& image_info(int index) { return kImages[index]; }
const KernelInfo& kernel_info(int index) { return kKernels[index]; }
const KernelTraits& kernel_traits(int index) { return kTraits.rows[index]; }

bool tier_runs_on(int tier, int major, int minor) {
  return tier == 90 ? major == 9 && minor == 0 : major >= 8;
}

std::string unpack_image(int index) {
  if (index < 0 || index >= kImageCount) {
    fail("image ", index, " does not exist; there are ", kImageCount);
  }
  const ImageInfo& image = kImages[index];
  std::string bytes(image.raw, '\0');
  size_t blob = static_cast<size_t>(deepasm_blob_end - deepasm_blob);
  if (image.offset > blob || image.packed > blob - image.offset ||
      !inflate_raw(deepasm_blob + image.offset, image.packed, reinterpret_cast<uint8_t*>(&bytes[0]),
                   image.raw)) {
    fail("embedded image ", index, " is damaged; reinstall deepasm_torch");
  }
  return bytes;
}

const LoadedKernel* loaded_kernel(int device, int kernel) {
  return slot(device, kernel).record.load(std::memory_order_acquire);
}

const LoadedKernel& load_kernel(const Driver& cu, const DeviceInfo& device, int index,
                                CUstream stream, bool launching) {
  if (const LoadedKernel* known = loaded_kernel(device.index, index)) return *known;
  const KernelInfo& kernel = kKernels[index];
  if (launching) {
    int capturing = 0;
    CUresult code = cu.cuStreamIsCapturing(stream, &capturing);
    // The null stream cannot be asked while another stream captures; say yes to be safe.
    if (code == kCudaStreamCaptureImplicit) {
      capturing = 1;
    } else {
      check_driver(cu, code, "cuStreamIsCapturing");
    }
    if (capturing && cu.version < kDriverLoadsInCapture) {
      fail(
          "kernel ", kernel.name,
          " is needed during CUDA graph capture but is not loaded yet, and "
          "this driver (CUDA ",
          cu.version / 1000, ".", cu.version % 1000 / 10,
          ") cannot load a kernel while capturing; call deepasm_torch.warmup() before the capture");
    }
  }
  // Held only around the driver's own work, which waits for nothing of ours.
  std::lock_guard<std::mutex> lock(load_mutex(device.index));
  if (const LoadedKernel* known = loaded_kernel(device.index, index)) return *known;
  auto record = std::make_unique<LoadedKernel>();
  RelaxedCapture relaxed(cu);
  for (int image : images_for(kernel, device)) {
    auto start = std::chrono::steady_clock::now();
    std::string error;
    CUresult code = load_image(cu, kernel, image, &record->function, &error);
    const char* what = kImages[image].kind == 0 ? "cubin " : "PTX ";
    if (code == kCudaSuccess) {
      record->how = cat(what, arch_name(kImages[image]));
      if (kImages[image].kind == 1) {
        double ms =
            std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
                .count();
        record->how += cat(", compiled by the driver in ", static_cast<int>(ms), " ms");
      }
      break;
    }
    if (code >= kFirstCaptureError && code <= kLastCaptureError) {
      fail("kernel ", kernel.name, " cannot be loaded during this CUDA graph capture (", error,
           "); call deepasm_torch.warmup() before the capture");
    }
    if (!refused_image(code)) {
      fail("loading kernel ", kernel.name, " (", what, arch_name(kImages[image]), "): ", error);
    }
    if (!record->error.empty()) record->error += "; ";
    record->error += cat(what, arch_name(kImages[image]), ": ", error);
  }
  if (record->function == nullptr && record->error.empty()) {
    record->error =
        cat("no embedded image runs on compute capability ", device.cc_major, ".", device.cc_minor);
  }
  if (record->function != nullptr) record->error.clear();
  const LoadedKernel* published = record.release();  // lives as long as the process
  slot(device.index, index).record.store(published, std::memory_order_release);
  return *published;
}

void warm_up(int device_index) {
  const Driver& cu = driver();
  const DeviceInfo& device = device_info(device_index);
  ContextGuard context(cu, device);
  bool any = false;
  std::string error;
  for (int i = 0; i < kKernelCount; ++i) {
    if (!tier_runs_on(kKernels[i].tier, device.cc_major, device.cc_minor)) continue;
    if (kKernels[i].smem > device.smem_per_block) continue;
    const LoadedKernel& kernel = load_kernel(cu, device, i, nullptr, false);
    any |= kernel.function != nullptr;
    if (kernel.function == nullptr) error = cat(kKernels[i].name, ": ", kernel.error);
  }
  if (!any && !error.empty()) fail("warmup: no kernel could be loaded; ", error);
}

void count_kernel_launch(int kernel, int launches) {
  launch_count(kernel).fetch_add(launches, std::memory_order_relaxed);
}
long long kernel_launches(int kernel) { return launch_count(kernel); }
void reset_kernel_launches() {
  for (int i = 0; i < kKernelCount; ++i) launch_count(i) = 0;
}

}  // namespace deepasm

// A stand-in for libcuda.so.1 that tests of kernel loading run against: a GPU of any compute
// capability, with any kind of image refused.  Controlled by environment variables:
//   FAKE_CC      "9.0"           compute capability
//   FAKE_SMEM    "232448"        shared memory a block may opt in to
//   FAKE_REFUSE  "cubin,ptx"     kinds of image that cuModuleLoadDataEx refuses
//   FAKE_LOG     path            one line per call that matters
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

const char* env(const char* name, const char* fallback) {
  const char* text = std::getenv(name);
  return text != nullptr ? text : fallback;
}

void note(const char* text) {
  const char* path = std::getenv("FAKE_LOG");
  if (path == nullptr) return;
  if (FILE* file = std::fopen(path, "a")) {
    std::fprintf(file, "%s\n", text);
    std::fclose(file);
  }
}

void* current = nullptr;
int capture_mode = 0;
int context, module, function;

__attribute__((constructor)) void loaded() { note("dlopen"); }

}  // namespace

extern "C" {

int cuInit(unsigned) {
  note("cuInit");
  return 0;
}
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
int cuGetErrorName(int code, const char** name) {
  *name = code == 209 ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : "CUDA_ERROR_SOMETHING";
  return 0;
}
int cuGetErrorString(int, const char** text) {
  *text = "a fake reason";
  return 0;
}
int cuDeviceGet(int* device, int index) {
  *device = index;
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = 1;
  return 0;
}
int cuDeviceGetName(char* name, int size, int) {
  std::snprintf(name, size, "Fake GPU");
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  const char* cc = env("FAKE_CC", "9.0");
  switch (attribute) {
    case 16: *value = 132; break;
    case 38: *value = 50 << 20; break;
    case 75: *value = std::atoi(cc); break;
    case 76: *value = std::atoi(std::strchr(cc, '.') + 1); break;
    case 97: *value = std::atoi(env("FAKE_SMEM", "232448")); break;
    default: return 1;
  }
  return 0;
}
int cuDevicePrimaryCtxRetain(void** result, int) {
  note("cuDevicePrimaryCtxRetain");
  *result = &context;
  return 0;
}
int cuCtxGetCurrent(void** result) {
  *result = current;
  return 0;
}
int cuCtxSetCurrent(void* value) {
  note(value != nullptr ? "cuCtxSetCurrent context" : "cuCtxSetCurrent null");
  current = value;
  return 0;
}
int cuModuleLoadDataEx(void** result, const void* image, unsigned, int*, void**) {
  if (current == nullptr) return 201;  // invalid context
  if (capture_mode != 2) return 900;   // as during a global-mode capture
  bool cubin = std::memcmp(image, "\177ELF", 4) == 0;
  if (!cubin && std::strstr(static_cast<const char*>(image), ".version") == nullptr) return 218;
  if (std::strstr(env("FAKE_REFUSE", ""), cubin ? "cubin" : "ptx") != nullptr) {
    return cubin ? 209 : 222;
  }
  *result = &module;
  return 0;
}
int cuModuleUnload(void*) {
  note("cuModuleUnload");
  return 0;
}
int cuModuleGetFunction(void** result, void*, const char* name) {
  *result = &function;
  return name[0] != '\0' ? 0 : 500;
}
int cuFuncSetAttribute(void*, int attribute, int value) {
  return attribute == 8 && value <= std::atoi(env("FAKE_SMEM", "232448")) ? 0 : 1;
}
int cuStreamIsCapturing(void*, int* status) {
  *status = 0;
  return 0;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  int previous = capture_mode;
  capture_mode = *mode;
  *mode = previous;
  return 0;
}
int cuLaunchKernel() { return 1; }
int cuLaunchKernelEx() { return 1; }
int cuTensorMapEncodeTiled() { return 1; }

}  // extern "C"

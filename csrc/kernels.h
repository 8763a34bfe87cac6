// The kernels embedded in this module: their table, and loading them onto a device.
#pragma once

#include <cstdint>
#include <string>

#include "driver.h"

namespace deepasm {

// One row of kernel_table.inc, which the build writes; the order of the members is that file's.
struct KernelInfo {
  const char* name;  // also the entry point in the image
  const char* op;
  int tier;   // 80 or 90
  int dtype;  // inputs: 0 bf16, 1 f16
  char a_major, b_major;
  char d_major;  // 'n', or 'm' for kernels that compute the transposed product of few rows
  const char* schedule;
  int bm, bn, bk;
  int stages;
  int threads;
  int cluster;
  int smem;  // dynamic shared memory, bytes
  int regs;
  const char* loads;  // "tma", "cp16" or "any"
  int first_image, images;
};

// One embedded image: a row of image_table.inc.
struct ImageInfo {
  int arch;     // 90 for sm_90
  char suffix;  // 'a', 'f' or 0
  int kind;     // 0 cubin, 1 PTX text
  size_t offset, packed, raw;
};

const ImageInfo& image_info(int index);
std::string arch_name(const ImageInfo& image);  // "sm_90a"

// What the planner asks of every row on every call, as flags instead of strings.
struct KernelTraits {
  bool gemm, any_strides, tma, pingpong;
  bool along_m;    // writes d along m
  uint8_t layout;  // which operand majors it reads: a bit number, see layout_bit
};

// 0 to 3 for the four pairs of majors, 4 for any strides.
constexpr uint8_t layout_bit(char a_major, char b_major) {
  if (a_major == '*') return 4;
  return static_cast<uint8_t>((a_major == 'm' ? 2 : 0) + (b_major == 'n' ? 1 : 0));
}

const char* ptxas_version();  // of the ptxas that assembled the images
int kernel_count();
const KernelTraits& kernel_traits(int index);
const KernelInfo& kernel_info(int index);

// True when a tier's instructions exist on a GPU of compute capability `major`.`minor`.  wgmma and
// setmaxnreg are sm_90a: architecture-specific, so 9.0 exactly and nothing newer.
bool tier_runs_on(int tier, int major, int minor);

struct LoadedKernel {
  CUfunction function = nullptr;  // null when no image of this kernel loads on the device
  std::string how;                // "cubin sm_90a", "PTX sm_80 compiled by the driver", ...
  std::string error;              // why `function` is null
};

// Loads a kernel on a device, once; later calls return the same record.  `stream` is where the
// caller is about to launch, or null when it is not launching: if that stream is being captured
// and the driver cannot load modules then, Error names warmup().  Failures that say something is
// wrong with the process (a dead context, no memory) throw; an image that the device refuses is
// recorded in `error`.  Needs the device's context to be current.
const LoadedKernel& load_kernel(const Driver& cu, const DeviceInfo& device, int kernel,
                                CUstream stream, bool launching);

// The record if load_kernel already ran, else null.
const LoadedKernel* loaded_kernel(int device, int kernel);

// Loads every kernel that can run on the device.  Throws when nothing can be loaded at all.
void warm_up(int device_index);

void count_kernel_launch(int kernel, int launches);
long long kernel_launches(int kernel);
void reset_kernel_launches();

// kernels_report.cpp: the table, what it was built with, and what is known about a device, as JSON.
std::string kernels_json();
std::string build_json();
std::string device_json(int index);

// The unpacked bytes of an embedded image, for tests.  Throws Error when it is damaged.
std::string unpack_image(int image);

}  // namespace deepasm

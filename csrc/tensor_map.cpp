#include "tensor_map.h"

#include <cstring>

#include "error.h"

namespace deepasm {
namespace {

constexpr int kSwizzle128B = 3;  // CU_TENSOR_MAP_SWIZZLE_128B
constexpr int kPromote128B = 2;  // CU_TENSOR_MAP_L2_PROMOTION_L2_128B

constexpr int kCacheEntries = 64;  // direct mapped; a training step touches a few dozen operands

struct Entry {
  TensorMapSpec spec;
  TensorMapBytes map;
};

// Allocated on first use: thread-local storage of a dlopen'ed module is scarce.
struct Cache {
  Entry entries[kCacheEntries];
};

Cache& thread_cache() {
  struct Holder {
    Cache* cache = new Cache();
    ~Holder() { delete cache; }
  };
  thread_local Holder holder;
  return *holder.cache;
}

uint32_t slot_of(const TensorMapSpec& spec) {
  uint64_t words[sizeof(TensorMapSpec) / 8];
  std::memcpy(words, &spec, sizeof spec);
  uint64_t hash = 0;
  for (uint64_t word : words) hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
  return static_cast<uint32_t>(hash >> 58);
}

}  // namespace

static_assert(sizeof(TensorMapSpec) == 88, "no padding: the cache compares bytes");

void encode_tensor_map(const Driver& cu, const TensorMapSpec& spec, TensorMapBytes* out) {
  Entry& entry = thread_cache().entries[slot_of(spec)];
  if (std::memcmp(&entry.spec, &spec, sizeof spec) == 0 && spec.used) {
    *out = entry.map;
    return;
  }
  if (cu.cuTensorMapEncodeTiled == nullptr) {
    fail(
        "the NVIDIA driver has no cuTensorMapEncodeTiled; tier sm90 needs a driver for CUDA 12.0 "
        "or newer (set DEEPASM_TIER=sm80 to do without)");
  }
  const uint32_t element_strides[4] = {1, 1, 1, 1};
  CUresult code = cu.cuTensorMapEncodeTiled(
      &entry.map, static_cast<int>(spec.type), 4, reinterpret_cast<void*>(spec.base), spec.dims,
      spec.strides, spec.box, element_strides, 0, kSwizzle128B, kPromote128B, 0);
  if (code != kCudaSuccess) {
    entry.spec.used = 0;
    fail("cuTensorMapEncodeTiled refused dims (", spec.dims[0], ", ", spec.dims[1], ", ",
         spec.dims[2], ", ", spec.dims[3], "), byte strides (", spec.strides[0], ", ",
         spec.strides[1], ", ", spec.strides[2], "): ", driver_error_text(cu, code));
  }
  entry.spec = spec;
  *out = entry.map;
}

}  // namespace deepasm

// TMA tensor maps: a plain description that a test can read, and its encoding by the driver.
#pragma once

#include <cstdint>

#include "driver.h"
#include "gemm_params.h"

namespace deepasm {

// Rank 4, innermost dimension first.  Every map uses the 128-byte swizzle, 128-byte L2 promotion
// and zero fill.  Strides are bytes and leave out the innermost dimension, which is contiguous.
struct TensorMapSpec {
  uint64_t base;
  uint64_t dims[4];
  uint64_t strides[3];
  uint32_t box[4];
  uint32_t type;  // kMapBf16, kMapF16 or kMapF32
  uint32_t used;  // 0: leave the map zero
};

constexpr uint32_t kMapF16 = 6, kMapF32 = 7, kMapBf16 = 9;  // CUtensorMapDataType

// Encodes `spec` into `out`, or copies it from a small per-thread cache of maps already encoded.
// The map depends only on the spec's contents, so a cached one is never stale.
void encode_tensor_map(const Driver& cu, const TensorMapSpec& spec, TensorMapBytes* out);

}  // namespace deepasm

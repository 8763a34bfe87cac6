// Raw DEFLATE (RFC 1951) decoder, so that a machine without zlib can unpack the embedded kernels.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deepasm {

// Decodes `packed` into exactly `raw_size` bytes at `raw`.  False when the stream is damaged, ends
// early, or does not decode to exactly `raw_size` bytes; never reads or writes out of bounds.
bool inflate_raw(const uint8_t* packed, size_t packed_size, uint8_t* raw, size_t raw_size);

}  // namespace deepasm

#include "inflate.h"

#include <cstring>

namespace deepasm {
namespace {

constexpr int kMaxBits = 15;

class BitReader {
 public:
  BitReader(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  // Reads `count` (<= 16) bits, lowest first; past the end it returns zeros and sets bad().
  uint32_t take(int count) {
    while (have_ < count) {
      if (at_ == size_) {
        bad_ = true;
        return 0;
      }
      bits_ |= static_cast<uint32_t>(data_[at_++]) << have_;
      have_ += 8;
    }
    uint32_t value = bits_ & ((1u << count) - 1);
    bits_ >>= count;
    have_ -= count;
    return value;
  }

  // Drops the rest of the current byte and copies whole bytes.
  bool copy_bytes(uint8_t* to, size_t count) {
    if (count > size_ - at_) return false;
    std::memcpy(to, data_ + at_, count);
    at_ += count;
    return true;
  }
  void align() { bits_ = 0, have_ = 0; }  // at most 7 bits are ever held between reads

  bool bad() const { return bad_; }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
  uint32_t bits_ = 0;
  int have_ = 0;
  bool bad_ = false;
};

// Canonical Huffman code: symbols sorted by code length, decoded one bit at a time.
class Huffman {
 public:
  // False for an over-subscribed set of lengths.  Incomplete sets are legal: an unused code is
  // reported when it turns up in the stream.
  bool build(const uint8_t* lengths, int symbols) {
    std::memset(count_, 0, sizeof count_);
    for (int s = 0; s < symbols; ++s) ++count_[lengths[s]];
    int room = 1;
    for (int bits = 1; bits <= kMaxBits; ++bits) {
      room = (room << 1) - count_[bits];
      if (room < 0) return false;
    }
    uint16_t next[kMaxBits + 2] = {};
    for (int bits = 1; bits <= kMaxBits; ++bits) next[bits + 1] = next[bits] + count_[bits];
    for (int s = 0; s < symbols; ++s) {
      if (lengths[s] != 0) symbol_[next[lengths[s]]++] = static_cast<uint16_t>(s);
    }
    return true;
  }

  int decode(BitReader& in) const {
    int code = 0, first = 0, index = 0;
    for (int bits = 1; bits <= kMaxBits; ++bits) {
      code |= static_cast<int>(in.take(1));
      if (in.bad()) return -1;
      int count = count_[bits];
      if (code - first < count) return symbol_[index + code - first];
      index += count;
      first = (first + count) << 1;
      code <<= 1;
    }
    return -1;
  }

 private:
  uint16_t count_[kMaxBits + 1];
  uint16_t symbol_[288];
};

constexpr uint16_t kLengthBase[29] = {3,  4,  5,  6,   7,   8,   9,   10,  11, 13,
                                      15, 17, 19, 23,  27,  31,  35,  43,  51, 59,
                                      67, 83, 99, 115, 131, 163, 195, 227, 258};
constexpr uint8_t kLengthExtra[29] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                      2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
constexpr uint16_t kDistanceBase[30] = {
    1,   2,   3,   4,   5,   7,    9,    13,   17,   25,   33,   49,   65,    97,    129,
    193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
constexpr uint8_t kDistanceExtra[30] = {0, 0, 0, 0, 1, 1, 2, 2,  3,  3,  4,  4,  5,  5,  6,
                                        6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13};

bool read_tables(BitReader& in, bool fixed, Huffman* literals, Huffman* distances) {
  uint8_t lengths[288 + 32];
  if (fixed) {
    for (int s = 0; s < 288; ++s) lengths[s] = s < 144 ? 8 : s < 256 ? 9 : s < 280 ? 7 : 8;
    if (!literals->build(lengths, 288)) return false;
    for (int s = 0; s < 30; ++s) lengths[s] = 5;
    return distances->build(lengths, 30);
  }
  int n_literals = static_cast<int>(in.take(5)) + 257;
  int n_distances = static_cast<int>(in.take(5)) + 1;
  int n_codes = static_cast<int>(in.take(4)) + 4;
  if (in.bad() || n_literals > 286 || n_distances > 30) return false;
  static constexpr uint8_t kOrder[19] = {16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                         11, 4,  12, 3, 13, 2, 14, 1, 15};
  uint8_t code_lengths[19] = {};
  for (int i = 0; i < n_codes; ++i) code_lengths[kOrder[i]] = static_cast<uint8_t>(in.take(3));
  Huffman codes;
  if (in.bad() || !codes.build(code_lengths, 19)) return false;
  for (int i = 0; i < n_literals + n_distances;) {
    int symbol = codes.decode(in);
    if (symbol < 0) return false;
    if (symbol < 16) {
      lengths[i++] = static_cast<uint8_t>(symbol);
      continue;
    }
    uint8_t value = 0;
    int repeat;
    if (symbol == 16) {
      if (i == 0) return false;
      value = lengths[i - 1];
      repeat = 3 + static_cast<int>(in.take(2));
    } else if (symbol == 17) {
      repeat = 3 + static_cast<int>(in.take(3));
    } else {
      repeat = 11 + static_cast<int>(in.take(7));
    }
    if (in.bad() || i + repeat > n_literals + n_distances) return false;
    while (repeat-- > 0) lengths[i++] = value;
  }
  return literals->build(lengths, n_literals) &&
         distances->build(lengths + n_literals, n_distances);
}

}  // namespace

bool inflate_raw(const uint8_t* packed, size_t packed_size, uint8_t* raw, size_t raw_size) {
  BitReader in(packed, packed_size);
  size_t at = 0;
  for (bool last = false; !last;) {
    last = in.take(1) != 0;
    uint32_t type = in.take(2);
    if (in.bad() || type == 3) return false;
    if (type == 0) {
      in.align();
      uint32_t size = in.take(16);
      uint32_t check = in.take(16);
      if (in.bad() || (size ^ 0xffff) != check || size > raw_size - at) return false;
      if (!in.copy_bytes(raw + at, size)) return false;
      at += size;
      continue;
    }
    Huffman literals, distances;
    if (!read_tables(in, type == 1, &literals, &distances)) return false;
    for (;;) {
      int symbol = literals.decode(in);
      if (symbol < 0) return false;
      if (symbol == 256) break;
      if (symbol < 256) {
        if (at == raw_size) return false;
        raw[at++] = static_cast<uint8_t>(symbol);
        continue;
      }
      if (symbol > 285) return false;
      size_t length = kLengthBase[symbol - 257] + in.take(kLengthExtra[symbol - 257]);
      int code = distances.decode(in);
      if (code < 0 || code > 29) return false;
      size_t distance = kDistanceBase[code] + in.take(kDistanceExtra[code]);
      if (in.bad() || distance > at || length > raw_size - at) return false;
      for (; length > 0; --length, ++at) raw[at] = raw[at - distance];  // may overlap on purpose
    }
  }
  return at == raw_size;
}

}  // namespace deepasm

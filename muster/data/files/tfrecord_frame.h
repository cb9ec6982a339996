// What stands around the bytes of a record in a TFRecord file: a uint64 length and its sum before them, their sum after
// them, all little-endian.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "muster/io/crc32c.h"

namespace muster {

static_assert(std::endian::native == std::endian::little, "the numbers of a file are little-endian, and not converted");

constexpr size_t kTfRecordHeadBytes = 12, kTfRecordTailBytes = 4;

// Of one record in a compressed file, whose length nobody can compare with what the file has.
constexpr uint64_t kMaxCompressedRecordBytes = uint64_t{1} << 30;

// The sum as TensorFlow writes it. Masked, since the sum of bytes that hold their own sum is always the same.
inline uint32_t tfrecord_sum(std::string_view bytes) {
  return std::rotr(crc32c(std::as_bytes(std::span(bytes))), 15) + 0xa282ead8u;
}

}  // namespace muster

// What stands around the bytes of a record in a TFRecord file: a uint64 length and its sum before them, their sum after
// them, all little-endian.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
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

// What stands before and behind a record.
inline std::array<char, kTfRecordHeadBytes> tfrecord_head(std::string_view record) {
  std::array<char, kTfRecordHeadBytes> head;
  const uint64_t length = record.size();
  std::memcpy(head.data(), &length, sizeof(length));
  const uint32_t sum = tfrecord_sum({head.data(), sizeof(length)});
  std::memcpy(head.data() + sizeof(length), &sum, sizeof(sum));
  return head;
}
inline std::array<char, kTfRecordTailBytes> tfrecord_tail(std::string_view record) {
  return std::bit_cast<std::array<char, kTfRecordTailBytes>>(tfrecord_sum(record));
}

}  // namespace muster

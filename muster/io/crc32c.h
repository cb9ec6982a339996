#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace muster {

// CRC-32C (Castagnoli). `before` is the sum of the bytes that come before these, so that a sum can be made in pieces.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

// The same, also where the CPU has an instruction for it: what crc32c() does where it has none.
uint32_t crc32c_by_tables(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace muster

#include "muster/io/crc32c.h"

#include <array>
#include <cstring>

namespace muster {
namespace {

// kTables[k][b] is what byte b does to the sum k bytes later: eight lookups that do not wait for one another take eight
// bytes, which keeps up with a disk, where one lookup a byte does not.
constexpr auto kTables = [] {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t sum = i;
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ ((sum & 1) ? 0x82F63B78u : 0u);
    tables[0][i] = sum;
  }
  for (uint32_t i = 0; i < 256; ++i) {
    for (int k = 1; k < 8; ++k) {
      tables[k][i] = (tables[k - 1][i] >> 8) ^ tables[0][tables[k - 1][i] & 0xFF];
    }
  }
  return tables;
}();

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
  uint64_t sum = ~before;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    uint64_t word;
    std::memcpy(&word, bytes.data(), 8);  // little-endian, as are the files (safetensors.cc asserts it)
    word ^= sum;
    const auto at = [word](int k) { return kTables[7 - k][(word >> (8 * k)) & 0xFF]; };
    sum = at(0) ^ at(1) ^ at(2) ^ at(3) ^ at(4) ^ at(5) ^ at(6) ^ at(7);
  }
  for (std::byte byte : bytes) sum = (sum >> 8) ^ kTables[0][(sum ^ static_cast<uint64_t>(byte)) & 0xFF];
  return ~static_cast<uint32_t>(sum);
}

}  // namespace muster

#include "muster/io/crc32c.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <nmmintrin.h>
#endif

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

using Sum = uint32_t (*)(std::span<const std::byte> bytes, uint32_t before);

// With the CPU's instruction, whose next word waits two or three cycles for the one before: 8 GB/s and more.
#if defined(__aarch64__) && defined(__linux__)

// Not <arm_acle.h>, which compilers offer only to files that are for CPUs with the instruction as a whole.
uint32_t word_added(uint32_t sum, uint64_t word) {
  asm(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(sum) : "r"(word));
  return sum;
}

uint32_t byte_added(uint32_t sum, std::byte byte) {
  asm(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(sum) : "r"(static_cast<uint32_t>(byte)));
  return sum;
}

uint32_t by_instruction(std::span<const std::byte> bytes, uint32_t before) {
  uint32_t sum = ~before;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    uint64_t word;
    std::memcpy(&word, bytes.data(), 8);
    sum = word_added(sum, word);
  }
  for (std::byte byte : bytes) sum = byte_added(sum, byte);
  return ~sum;
}

Sum fastest() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0 ? by_instruction : crc32c_by_tables; }

#elif defined(__x86_64__)

__attribute__((target("sse4.2"))) uint32_t by_instruction(std::span<const std::byte> bytes, uint32_t before) {
  uint64_t sum = ~before;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    uint64_t word;
    std::memcpy(&word, bytes.data(), 8);
    sum = _mm_crc32_u64(sum, word);
  }
  auto last = static_cast<uint32_t>(sum);
  for (std::byte byte : bytes) last = _mm_crc32_u8(last, static_cast<unsigned char>(byte));
  return ~last;
}

Sum fastest() { return __builtin_cpu_supports("sse4.2") ? by_instruction : crc32c_by_tables; }

#else

Sum fastest() { return crc32c_by_tables; }

#endif

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
  static const Sum sum = fastest();
  return sum(bytes, before);
}

uint32_t crc32c_by_tables(std::span<const std::byte> bytes, uint32_t before) {
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

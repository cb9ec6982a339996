#include "muster/io/crc32c.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace muster {
namespace {

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(Crc32c, GivesThePublishedSums) {  // RFC 3720, B.4
  std::string rising;
  for (char c = 0; c < 32; ++c) rising += c;

  for (const auto sum : {crc32c, crc32c_by_tables}) {
    EXPECT_EQ(sum({}, 0), 0u);
    EXPECT_EQ(sum(bytes("123456789"), 0), 0xE3069283u);
    EXPECT_EQ(sum(bytes(std::string(32, '\0')), 0), 0x8A9136AAu);
    EXPECT_EQ(sum(bytes(std::string(32, '\xFF')), 0), 0x62A8AB43u);
    EXPECT_EQ(sum(bytes(rising), 0), 0x46DD794Eu);
  }
}

TEST(Crc32c, IsTheSameInPiecesOfAnySize) {
  const std::string text = "the quick brown fox jumps over the lazy dog";

  for (size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(crc32c(bytes(text).subspan(cut), crc32c(bytes(text).first(cut))), crc32c(bytes(text))) << cut;
  }
}

TEST(Crc32c, IsTheSameOnEveryCpu) {
  std::string noise;
  for (uint32_t i = 0, state = 1; i < 1000; ++i)
    noise += static_cast<char>((state = state * 1664525 + 1013904223) >> 24);

  for (size_t begin = 0; begin < 9; ++begin) {
    for (size_t count : {0, 1, 7, 8, 9, 15, 16, 63, 64, 65, 500, 991}) {
      const auto some = bytes(noise).subspan(begin, count);
      EXPECT_EQ(crc32c(some, 17), crc32c_by_tables(some, 17)) << count << " from " << begin;
    }
  }
}

}  // namespace
}  // namespace muster

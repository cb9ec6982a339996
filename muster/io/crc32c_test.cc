#include "muster/io/crc32c.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace muster {
namespace {

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(Crc32c, GivesThePublishedSums) {  // RFC 3720, B.4
  std::string rising;
  for (char c = 0; c < 32; ++c) rising += c;

  EXPECT_EQ(crc32c({}), 0u);
  EXPECT_EQ(crc32c(bytes("123456789")), 0xE3069283u);
  EXPECT_EQ(crc32c(bytes(std::string(32, '\0'))), 0x8A9136AAu);
  EXPECT_EQ(crc32c(bytes(std::string(32, '\xFF'))), 0x62A8AB43u);
  EXPECT_EQ(crc32c(bytes(rising)), 0x46DD794Eu);
}

TEST(Crc32c, IsTheSameInPiecesOfAnySize) {
  const std::string text = "the quick brown fox jumps over the lazy dog";

  for (size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(crc32c(bytes(text).subspan(cut), crc32c(bytes(text).first(cut))), crc32c(bytes(text))) << cut;
  }
}

}  // namespace
}  // namespace muster

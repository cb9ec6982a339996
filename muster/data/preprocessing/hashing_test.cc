#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/status.h"
#include "muster/data/preprocessing/fingerprint.h"
#include "muster/data/preprocessing/preprocessing_layers.h"
#include "muster/data/preprocessing/test_columns.h"

namespace muster::hashing_test {

// The expected numbers are those of TensorFlow 2.21 and Keras 3.15.

TEST(Fingerprint64, IsThatOfTensorFlowForEachLength) {
  EXPECT_EQ(fingerprint64(""), 11160318154034397263u);
  EXPECT_EQ(fingerprint64("A"), 16915294056622060564u);
  EXPECT_EQ(fingerprint64("word"), 16498804621125554880u);
  EXPECT_EQ(fingerprint64("u12345678"), 7923249294497791937u);
  EXPECT_EQ(fingerprint64(std::string(20, 'a')), 15065261471293997870u);
  EXPECT_EQ(fingerprint64(std::string(40, 'b')), 12813125466317408803u);
  EXPECT_EQ(fingerprint64(std::string(64, 'c')), 414906305872451895u);
  EXPECT_EQ(fingerprint64(std::string(65, 'c')), 15943324299469176993u);
  EXPECT_EQ(fingerprint64(std::string(200, 'd')), 931678538773985269u);
}

TEST(SipHash, IsThatOfItsAuthors) {
  const std::array<uint64_t, 2> key{0x0706050403020100, 0x0f0e0d0c0b0a0908};
  std::string bytes;
  for (char i = 0; i < 15; ++i) bytes += i;

  EXPECT_EQ(siphash(key, bytes), 0xa129ca6149be45e5u);
  EXPECT_EQ(siphash(key, ""), 0x726fdb47dd0e0e31u);
}

const Column& hashed_words() {
  static const std::string a(20, 'a'), b(40, 'b'), c(100, 'c');
  static const Column words = strings({"A", "B", "C", "D", "E", "", "word", "u12345", a, b, c});
  return words;
}

TEST(Hashing, GivesTheBinsOfKeras) {
  const auto layer = hashing({.bins = 1000003});

  EXPECT_EQ(content((*layer)(hashed_words())),
            "int64[11] 127888 832648 203577 194606 428307 377723 180300 765905 170935 327635 379061");
}

TEST(Hashing, KeepsBinZeroForTheMask) {
  const auto layer = hashing({.bins = 1000003, .mask_value = "A"});

  EXPECT_EQ(content((*layer)(hashed_words())),
            "int64[11] 0 362575 956072 877052 635547 730380 307717 166674 316209 728570 889765");
}

TEST(Hashing, WithASaltGivesOtherBins) {
  const auto two = hashing({.bins = 1000003, .salt = {{133, 137}}});
  const auto one = hashing({.bins = 1000003, .salt = {{133, 133}}});

  EXPECT_EQ(content((*two)(hashed_words())),
            "int64[11] 212495 973574 798145 548710 965201 953272 522062 854376 44005 581730 122766");
  EXPECT_EQ(content((*one)(hashed_words())),
            "int64[11] 250872 367087 434982 628031 861455 448894 728664 706950 679943 616075 210819");
}

TEST(Hashing, HashesNumbersAsTheirText) {
  const auto layer = hashing({.bins = 1000});
  const Column texts = strings({"-9223372036854775808", "-1", "0", "12345"}, {2, 2});

  const Column numbers = int_tensor({std::numeric_limits<int64_t>::min(), -1, 0, 12345}).reshape({2, 2});

  EXPECT_EQ(content((*layer)(numbers)), content((*layer)(texts)));
  EXPECT_EQ(content((*layer)(int_number(12345).to(at::kInt))), content((*layer)(Strings("12345"))));
}

TEST(Hashing, TakesANumberAsTheMaskOfNumbers) {
  const auto layer = hashing({.bins = 2, .mask_value = 5});

  EXPECT_EQ(content((*layer)(int_tensor({4, 5, 6}))), "int64[3] 1 0 1");
}

TEST(Hashing, GivesZeroForAllWithASingleBin) {
  const auto layer = hashing({.bins = 1, .mask_value = "a"});

  EXPECT_EQ(content((*layer)(strings({"a", "b"}))), "int64[2] 0 0");
}

TEST(Hashing, RefusesAMaskOfAnotherTypeThanTheColumn) {
  const auto layer = hashing({.bins = 3, .mask_value = ""});

  EXPECT_THROW((*layer)(int_tensor({1})), Error);
}

TEST(Hashing, RefusesNoBins) { EXPECT_THROW(hashing({.bins = 0}), Error); }

}  // namespace muster::hashing_test

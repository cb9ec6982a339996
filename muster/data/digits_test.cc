#include "muster/data/digits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace muster {
namespace {

struct Digit {
  std::vector<float> points = std::vector<float>(kDigitPoints);
  int label = 0;
  bool operator==(const Digit&) const = default;
};

Digit digit(uint64_t seed, uint64_t index) {
  Digit digit;
  digit.label = draw_digit(seed, index, digit.points.data());
  return digit;
}

TEST(Digits, AreTheSameEveryTime) { EXPECT_EQ(digit(3, 17), digit(3, 17)); }

TEST(Digits, DifferByIndexAndBySeed) {
  EXPECT_NE(digit(0, 0).points, digit(0, 1).points);
  EXPECT_NE(digit(0, 0).points, digit(1, 0).points);
  EXPECT_NE(digit(0, 1).points, digit(1, 0).points);
}

TEST(Digits, HaveAllTenLabelsAndPointsFromZeroToOne) {
  std::set<int> labels;
  for (uint64_t i = 0; i < 200; ++i) {
    const Digit one = digit(0, i);
    labels.insert(one.label);
    const auto [least, most] = std::minmax_element(one.points.begin(), one.points.end());
    EXPECT_GE(*least, 0.0f);
    EXPECT_LE(*most, 1.0f);
  }

  EXPECT_EQ(labels, (std::set<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

}  // namespace
}  // namespace muster

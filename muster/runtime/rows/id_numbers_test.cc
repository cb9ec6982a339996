#include "muster/runtime/rows/id_numbers.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace muster::rows {
namespace {

TEST(IdNumbers, AreThoseThatTheIdsWereFirstSeenWith) {
  IdNumbers numbers(4);

  EXPECT_EQ(numbers.number(7, 0), 0);
  EXPECT_EQ(numbers.number(0, 1), 1);
  EXPECT_EQ(numbers.number(7, 2), 0);
  EXPECT_EQ(numbers.number(int64_t{1} << 40, 2), 2);
}

TEST(IdNumbers, BeginAnewWithEveryUse) {
  static_cast<void>(IdNumbers(1'000).number(7, 3));

  EXPECT_EQ(IdNumbers(4).number(7, 0), 0) << "in a part of the table that is there";
  EXPECT_EQ(IdNumbers(5'000).number(7, 1), 1) << "in a larger one";
}

TEST(IdNumbers, AreKeptApartHoweverManyCollide) {
  std::minstd_rand random(3);
  for (int use = 0; use < 20; ++use) {
    IdNumbers numbers(500);
    std::map<int64_t, int32_t> expected;
    for (int i = 0; i < 500; ++i) {
      const int64_t id = static_cast<int64_t>(random() % 300) << (use % 3 == 0 ? 0 : 40);
      const auto next = static_cast<int32_t>(expected.size());
      EXPECT_EQ(numbers.number(id, next), expected.emplace(id, next).first->second);
    }
  }
}

}  // namespace
}  // namespace muster::rows

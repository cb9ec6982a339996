#include "muster/runtime/rows/id_numbers.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "muster/runtime/memory/memory_pool.h"

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

TEST(IdNumbers, HavePlacesOfTheirOwnWhicheverBitsTellIdsApart) {
  constexpr int kBits = 13, kIds = 1 << 12;
  for (int bit = 0; bit <= 50; ++bit) {
    std::set<size_t> places;
    for (int64_t i = 0; i < kIds; ++i) places.insert(IdNumbers::slot_of(i << bit, 64 - kBits));

    EXPECT_GT(places.size(), kIds / 2) << "ids are multiples of 2^" << bit;
    EXPECT_LT(*places.rbegin(), size_t{1} << kBits);
  }
}

TEST(IdNumbers, LeaveNoLargeTableBehind) {
  const MemoryPool::Mode run{.pooled = true};
  {
    const MemoryPool::Use use(run);
    const size_t before = MemoryPool::instance().usage().live;
    IdNumbers numbers(2'000'000);
    EXPECT_GT(MemoryPool::instance().usage().live, before) << "it counts as the run's";
    for (int i = 0; i < 1'000; ++i) EXPECT_EQ(numbers.number(int64_t{i} << 40, i), i);
    EXPECT_EQ(numbers.number(int64_t{7} << 40, 1'000), 7);
  }
  EXPECT_LE(IdNumbers::kept_here(), IdNumbers::kMostKept);

  static_cast<void>(IdNumbers(100'000).number(7, 3));
  EXPECT_GE(IdNumbers::kept_here(), 200'000u);
  for (int use = 0; use < 100; ++use) EXPECT_EQ(IdNumbers(1'000).number(7, 0), 0);
  EXPECT_LT(IdNumbers::kept_here(), 10'000u) << "larger than what is needed";
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

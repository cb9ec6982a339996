#include <gmock/gmock.h>

#include "muster/data/test_elements.h"

namespace muster {
namespace {

using namespace testing_support;
using ::testing::ElementsAre;
using ::testing::UnorderedElementsAreArray;

constexpr int64_t kCount = 50;

// The two rounds of a dataset that is repeated.
std::pair<Numbers, Numbers> rounds(const Dataset& dataset) {
  const Numbers all = numbers_of(dataset.repeat(2));
  return {Numbers(all.begin(), all.begin() + kCount), Numbers(all.begin() + kCount, all.end())};
}

TEST(DatasetShuffle, HandsOutEachElementOnceInAnotherOrder) {
  const Numbers shuffled = numbers_of(Dataset::range(kCount).shuffle(1000));

  EXPECT_THAT(shuffled, UnorderedElementsAreArray(numbers_of(Dataset::range(kCount))));
  EXPECT_NE(shuffled, numbers_of(Dataset::range(kCount)));
}

TEST(DatasetShuffle, DrawsFromItsBufferOnly) {
  const Numbers shuffled = numbers_of(Dataset::range(kCount).shuffle(4));

  for (size_t i = 0; i < shuffled.size(); ++i) EXPECT_LT(shuffled[i], static_cast<int64_t>(i) + 4);
  EXPECT_THAT(numbers_of(Dataset::range(3).shuffle(1)), ElementsAre(0, 1, 2));
}

TEST(DatasetShuffle, WithoutASeedGivesEveryIteratorAnOrderOfItsOwn) {
  const Dataset shuffled = Dataset::range(kCount).shuffle(kCount);

  EXPECT_NE(numbers_of(shuffled), numbers_of(shuffled));
}

TEST(DatasetShuffle, WithASeedGivesAllIteratorsOneOrder) {
  const Dataset shuffled = Dataset::range(kCount).shuffle(kCount, 7);

  EXPECT_EQ(numbers_of(shuffled), numbers_of(shuffled));
  EXPECT_EQ(numbers_of(shuffled.repeat(2)), numbers_of(shuffled.repeat(2)));
  EXPECT_NE(numbers_of(shuffled), numbers_of(Dataset::range(kCount).shuffle(kCount, 8)));
}

TEST(DatasetShuffle, ReshufflesInEveryRoundUnlessToldNotTo) {
  for (const std::optional<uint64_t> seed : {std::optional<uint64_t>(), std::optional<uint64_t>(7)}) {
    const auto [first, second] = rounds(Dataset::range(kCount).shuffle(kCount, seed));
    const auto [one, same] = rounds(Dataset::range(kCount).shuffle(kCount, seed, false));

    EXPECT_NE(first, second);
    EXPECT_THAT(second, UnorderedElementsAreArray(first));
    EXPECT_EQ(one, same);
  }
}

TEST(DatasetCache, KeepsTheFirstRoundForTheOthers) {
  int calls = 0;
  const Dataset counted = Dataset::generator([&] {
    return [&, next = int64_t{0}]() mutable -> std::optional<Element> {
      ++calls;
      if (next == kCount) return std::nullopt;
      return Element{torch::tensor(next++)};
    };
  });

  const auto [first, second] = rounds(counted.shuffle(kCount).cache());

  EXPECT_EQ(first, second);
  EXPECT_EQ(calls, kCount + 1);
}

TEST(DatasetCache, ThatWasNotFilledBeginsAnew) {
  EXPECT_THAT(numbers_of(Dataset::range(5).cache().take(2).repeat(2)), ElementsAre(0, 1, 0, 1));
}

}  // namespace
}  // namespace muster

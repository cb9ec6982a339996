#include "muster/data/cardinality.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "muster/data/test_elements.h"
#include "muster/runtime/worker/local_worker.h"

namespace muster::cardinality_test {
namespace {

constexpr Cardinality kNobodyKnows, kEndless{.infinite = true};

int64_t elements_in(const Dataset& dataset) {
  const std::unique_ptr<ElementSource> source = dataset.open(local_worker());
  int64_t count = 0;
  while (source->next()) ++count;
  return count;
}

void expect_known(const std::vector<Dataset>& datasets) {
  for (size_t i = 0; i < datasets.size(); ++i) {
    const Cardinality said = cardinality_of(datasets[i]);
    EXPECT_EQ(said, Cardinality{.count = elements_in(datasets[i])})
        << "dataset " << i << ": " << said.count.value_or(-1);
  }
}

Dataset generated() {
  return Dataset::generator([] { return [] { return std::optional<Element>(); }; });
}

TEST(Cardinality, OfSourcesIsWhatTheyHave) {
  expect_known({Dataset::range(7), Dataset::range(2, 9, 3), Dataset::range(5, 0, -2), Dataset::range(-3),
                Dataset::tensors({torch::zeros({4, 2}), torch::zeros({4})}), Dataset::tensors({torch::zeros({0, 2})}),
                Dataset::from_tensors({torch::zeros({4, 2})}), Dataset::synthetic_digits(3)});
}

TEST(Cardinality, OfBatchesCountsTheLastOneUnlessItIsDropped) {
  for (const int64_t count : {0, 1, 6, 7, 8, 9}) {
    const Dataset some = Dataset::range(count);
    for (const bool drop : {false, true}) {
      expect_known({some.batch(3, drop), some.padded_batch(4, drop), some.batch(3, drop).batch(2, drop)});
      for (const int64_t shift : {1, 2, 3, 5}) expect_known({some.window(3, shift, drop)});
    }
  }
}

TEST(Cardinality, OfStepsThatLeaveOutOrRepeatCountsWhatIsLeft) {
  const Dataset some = Dataset::range(7);
  expect_known({some.take(3), some.take(9), some.take(0), some.skip(3), some.skip(9), some.repeat(3), some.repeat(0),
                some.shard(3, 0), some.shard(3, 1), some.shard(3, 2), some.skip(6).shard(3, 2), some.repeat().take(11),
                some.take(0).repeat()});
  for (const int index : {0, 1}) expect_known({some.shard({2, index}, ShardPolicy::kData)});
}

TEST(Cardinality, OfStepsThatMakeOneOfEachIsThatOfTheirInput) {
  const Dataset some = Dataset::range(7);
  expect_known({some.map([](const at::Tensor& i) { return i + 1; }), some.shuffle(3), some.prefetch(2), some.cache(),
                some.enumerate(), some.named({"number"}), some.named({"number"}).select({"number"}), some.shard_hint(),
                some.map_native([](Columns columns) { return columns; })});
}

TEST(Cardinality, OfSeveralIsTheirSumOrTheLeast) {
  const Dataset some = Dataset::range(7), few = Dataset::range(2);
  expect_known({Dataset::concatenate({some, few, some}), Dataset::zip({some, few}), Dataset::zip({some, some.repeat()}),
                Dataset::sample({some, few}), Dataset::sample({some, few}, {1.0, 0.0})});
}

TEST(Cardinality, KnowsWhatHasNoEnd) {
  const Dataset never = Dataset::range(3).repeat();
  for (const Dataset& dataset :
       {never, never.batch(2), never.skip(5), never.shard(2, 1), never.repeat(2), Dataset::concatenate({never, never}),
        Dataset::zip({never, never}), Dataset::sample({never, Dataset::range(3)}), generated().repeat(),
        never.filter([](const at::Tensor& i) { return i.gt(1); })}) {
    EXPECT_EQ(cardinality_of(dataset), kEndless);
  }
}

TEST(Cardinality, SaysThatNobodyKnowsWhereOnlyReadingTells) {
  const Dataset some = Dataset::range(7);
  for (const Dataset& dataset :
       {generated(), generated().batch(2), generated().take(3), generated().repeat(2), Dataset::text_lines({"*.txt"}),
        some.filter([](const at::Tensor& i) { return i.gt(1); }), some.batch(2).unbatch(),
        Dataset::concatenate({some, generated()}), Dataset::zip({some, generated()}),
        Dataset::range(std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()),
        some.repeat(std::numeric_limits<int64_t>::max())}) {
    EXPECT_EQ(cardinality_of(dataset), kNobodyKnows);
  }
  EXPECT_EQ(cardinality_of(generated().take(0)), Cardinality{.count = 0});
  EXPECT_EQ(cardinality_of(Dataset::zip({generated(), some.take(0)})), Cardinality{.count = 0});
}

TEST(Cardinality, OfWhatIsHandedOutIsOfAllReadersTogether) {
  EXPECT_EQ(cardinality_of(Dataset::range(12).shard({}, ShardPolicy::kDynamic).batch(4)), Cardinality{.count = 3});
}

}  // namespace
}  // namespace muster::cardinality_test

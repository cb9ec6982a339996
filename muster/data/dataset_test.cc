#include "muster/data/dataset.h"

#include <gmock/gmock.h>

#include <limits>
#include <thread>

#include "muster/data/test_elements.h"

namespace muster {
namespace {

using namespace testing_support;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAreArray;

// ---- What makes elements
TEST(Dataset, RangeCountsToItsEndInSteps) {
  EXPECT_THAT(numbers_of(Dataset::range(4)), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(numbers_of(Dataset::range(2, 9, 3)), ElementsAre(2, 5, 8));
  EXPECT_THAT(numbers_of(Dataset::range(5, 0, -2)), ElementsAre(5, 3, 1));
  EXPECT_THAT(numbers_of(Dataset::range(5, 5)), IsEmpty());
  EXPECT_THAT(numbers_of(Dataset::range(-3)), IsEmpty());
  EXPECT_EQ(Dataset::range(3).element_spec(), (std::vector<TensorSpec>{{DType::kLong, {}}}));
}

TEST(Dataset, RangeReachesFromOneEndOfTheNumbersToTheOther) {
  constexpr int64_t least = std::numeric_limits<int64_t>::min(), most = std::numeric_limits<int64_t>::max();

  EXPECT_THAT(numbers_of(Dataset::range(least, most, most)), ElementsAre(least, -1, most - 1));
  EXPECT_THAT(numbers_of(Dataset::range(most, least, least)), ElementsAre(most, -1));
}

TEST(Dataset, TensorsAreSlicedAlongTheFirstDimensionWithoutCopies) {
  at::Tensor xs = torch::tensor({{0, 1}, {2, 3}, {4, 5}}), ys = torch::tensor({7, 8, 9});
  const int64_t* second = xs[1].const_data_ptr<int64_t>();
  std::vector<at::Tensor> handed_over;
  handed_over.push_back(std::move(xs));
  handed_over.push_back(std::move(ys));

  const auto elements = elements_of(Dataset::tensors(std::move(handed_over)));

  ASSERT_EQ(elements.size(), 3);
  EXPECT_THAT(numbers_in(elements[1][0]), ElementsAre(2, 3));
  EXPECT_EQ(elements[2][1].item<int64_t>(), 9);
  EXPECT_EQ(elements[1][0].const_data_ptr<int64_t>(), second);
}

TEST(Dataset, TensorsThatSomebodyStillHoldsAreTakenAsTheyAreNow) {
  const at::Tensor xs = torch::arange(3);

  const Dataset dataset = Dataset::tensors({xs});
  xs.fill_(7);

  EXPECT_THAT(numbers_of(dataset), ElementsAre(0, 1, 2));
}

TEST(Dataset, TensorsLeaveTheirGradientsBehind) {
  const at::Tensor xs = torch::ones({3, 2}, torch::requires_grad());

  const auto elements = elements_of(Dataset::tensors({xs}).batch(2));

  EXPECT_FALSE(elements[0][0].requires_grad());
}

TEST(Dataset, FromTensorsIsOneElement) {
  const auto elements = elements_of(Dataset::from_tensors({torch::arange(3), torch::ones({})}));

  ASSERT_EQ(elements.size(), 1);
  EXPECT_THAT(numbers_in(elements[0][0]), ElementsAre(0, 1, 2));
  EXPECT_EQ(elements[0].size(), 2);
}

TEST(Dataset, BatchesOfTensorsAreTheirRowsInWhateverOrder) {
  const at::Tensor x = torch::arange(40).view({20, 2}), y = torch::arange(20);
  const Dataset rows = Dataset::tensors({x, y});

  const std::vector<Element> plain = elements_of(rows.batch(8));
  const std::vector<Element> mixed = elements_of(rows.shuffle(20, 7).skip(1).repeat(2).batch(8));

  ASSERT_EQ(plain.size(), 3u);
  EXPECT_TRUE(plain[1][0].equal(x.slice(0, 8, 16)));
  EXPECT_EQ(plain[1][0].const_data_ptr(), elements_of(rows.batch(8))[1][0].const_data_ptr()) << "nothing is copied";
  EXPECT_EQ(plain[2][0].sizes(), at::IntArrayRef({4, 2}));
  const Numbers order =
      numbers_of(rows.map([](at::Tensor, at::Tensor number) { return number; }).shuffle(20, 7).skip(1).repeat(2));
  Numbers batched;
  for (const Element& batch : mixed) {
    EXPECT_TRUE(batch[0].equal(x.index_select(0, batch[1])));
    for (const int64_t number : numbers_in(batch[1])) batched.push_back(number);
  }
  EXPECT_EQ(batched, order);
}

TEST(Dataset, GeneratorsBeginAnewForEveryIteratorAndRound) {
  const Dataset counting = counting_generator(3);

  EXPECT_THAT(numbers_of(counting), ElementsAre(0, 1, 2));
  EXPECT_THAT(numbers_of(counting), ElementsAre(0, 1, 2));
  EXPECT_THAT(numbers_of(counting.repeat(2)), ElementsAre(0, 1, 2, 0, 1, 2));
}

TEST(Dataset, GeneratorsAreNotCalledAgainAfterTheirEnd) {
  int calls = 0;
  auto source = Dataset::generator([&] {
                  return [&]() -> std::optional<Element> {
                    ++calls;
                    return std::nullopt;
                  };
                }).open(local_worker());

  EXPECT_FALSE(source->next());
  EXPECT_FALSE(source->next());

  EXPECT_EQ(calls, 1);
}

TEST(Dataset, GeneratorsThatFailOrReturnNothingUsefulSaySo) {
  auto of = [](std::function<std::optional<Element>()> generator) {
    return [generator] { elements_of(Dataset::generator([generator] { return generator; })); };
  };

  EXPECT_THAT(error_of(of([] { return Element{}; })), HasSubstr("generator: an element without tensors"));
  EXPECT_THAT(error_of(of([] { return Element{at::Tensor()}; })), HasSubstr("undefined tensor"));
  EXPECT_THAT(error_of(of(nullptr)), HasSubstr("returned an empty generator"));
  EXPECT_EQ(error_of(StatusCode::kUnknown, of([]() -> std::optional<Element> { throw std::runtime_error("disk"); })),
            "generator: disk");
}

TEST(Dataset, SyntheticDigitsTeachALinearModel) {
  const auto test = elements_of(Dataset::synthetic_digits(500, 1).batch(500))[0];
  at::Tensor w = torch::zeros({784, 10}), b = torch::zeros({10});

  for (const Element& batch : elements_of(Dataset::synthetic_digits(4000).batch(50))) {
    const at::Tensor wanted = torch::one_hot(batch[1], 10);
    const at::Tensor error = (torch::softmax(batch[0].mm(w) + b, 1) - wanted) / 50;
    w -= batch[0].t().mm(error) * 0.1;
    b -= error.sum(0) * 0.1;
  }

  const at::Tensor hits = (test[0].mm(w) + b).argmax(1).eq(test[1]);
  EXPECT_GT(hits.to(torch::kFloat).mean().item<float>(), 0.9);
  EXPECT_EQ(Dataset::synthetic_digits().element_spec(),
            (std::vector<TensorSpec>{{DType::kFloat, {784}}, {DType::kLong, {}}}));
}

// ---- Which elements
TEST(Dataset, TakesAndSkips) {
  EXPECT_THAT(numbers_of(Dataset::range(5).take(2)), ElementsAre(0, 1));
  EXPECT_THAT(numbers_of(Dataset::range(5).take(9)), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(numbers_of(Dataset::range(5).take(0)), IsEmpty());
  EXPECT_THAT(numbers_of(Dataset::range(5).skip(3)), ElementsAre(3, 4));
  EXPECT_THAT(numbers_of(Dataset::range(5).skip(9)), IsEmpty());
  EXPECT_THAT(numbers_of(counting_generator(5).skip(1).take(2).repeat(2)), ElementsAre(1, 2, 1, 2));
}

TEST(Dataset, RepeatsSoOftenOrForEver) {
  EXPECT_THAT(numbers_of(Dataset::range(2).repeat(3)), ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_THAT(numbers_of(Dataset::range(2).repeat(0)), IsEmpty());
  EXPECT_THAT(numbers_of(Dataset::range(2).repeat(), 5), ElementsAre(0, 1, 0, 1, 0));
  EXPECT_THAT(numbers_of(Dataset::range(2).repeat(2).repeat(2)), ElementsAre(0, 1, 0, 1, 0, 1, 0, 1));
}

TEST(Dataset, RepeatingNothingForEverEnds) { EXPECT_THAT(numbers_of(Dataset::range(0).repeat()), IsEmpty()); }

TEST(Dataset, ShardsAreDisjointAndCoverTheWhole) {
  for (const Dataset& whole : {Dataset::range(10), counting_generator(10), Dataset::range(20).take(10)}) {
    Numbers all;
    for (int64_t index = 0; index < 3; ++index) {
      for (const int64_t number : numbers_of(whole.shard(3, index))) {
        EXPECT_EQ(number % 3, index);
        all.push_back(number);
      }
    }

    EXPECT_THAT(all, UnorderedElementsAreArray(numbers_of(whole)));
  }
}

TEST(Dataset, ShardsByTheContextOfAPipelineAndAgainInEveryRound) {
  const Dataset shard = Dataset::range(5).shard({.num_input_pipelines = 2, .input_pipeline_id = 1});

  EXPECT_THAT(numbers_of(shard.repeat(2)), ElementsAre(1, 3, 1, 3));
}

TEST(Dataset, MayBeShardedIntoMoreShardsThanElements) {
  EXPECT_THAT(numbers_of(Dataset::range(2).shard(5, 4)), IsEmpty());
}

TEST(Dataset, ZipsElementsAndEndsWithTheShortest) {
  const Dataset pairs = Dataset::zip({Dataset::range(3), Dataset::range(10, 20)});

  const auto elements = elements_of(pairs.repeat(2));

  ASSERT_EQ(elements.size(), 6);
  EXPECT_EQ(elements[4][0].item<int64_t>(), 1);
  EXPECT_EQ(elements[4][1].item<int64_t>(), 11);
  EXPECT_EQ(elements_of(Dataset::zip({Dataset::range(9), Dataset::range(2), Dataset::range(4)})).size(), 2);
}

// ---- Batches
TEST(Dataset, BatchesStackElements) {
  const auto batches = elements_of(Dataset::range(1, 11).batch(4));

  ASSERT_EQ(batches.size(), 3);
  EXPECT_THAT(numbers_in(batches[0][0]), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(numbers_in(batches[2][0]), ElementsAre(9, 10));
}

TEST(Dataset, BatchesMayDropWhatIsLeft) {
  EXPECT_EQ(elements_of(Dataset::range(10).batch(4, true)).size(), 2);
  EXPECT_EQ(elements_of(Dataset::range(3).batch(4, true)).size(), 0);
  EXPECT_THAT(numbers_of(Dataset::range(5).batch(2, true).repeat(2)), ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
}

TEST(Dataset, BatchesMayBeAskedToBeLargerThanTheDataset) {
  EXPECT_THAT(numbers_of(Dataset::range(3).batch(std::numeric_limits<int64_t>::max())), ElementsAre(0, 1, 2));
}

TEST(Dataset, BatchesOfBatchesAndOfTransposedTensorsHaveTheRightNumbers) {
  const at::Tensor xs = torch::arange(12).view({3, 4}).t();

  const auto batches = elements_of(Dataset::tensors({xs, torch::zeros({4, 0})}).batch(2).batch(2));

  ASSERT_EQ(batches.size(), 1);
  EXPECT_TRUE(torch::equal(batches[0][0], xs.contiguous().view({2, 2, 3})));
  EXPECT_EQ(batches[0][1].sizes(), (std::vector<int64_t>{2, 2, 0}));
}

TEST(Dataset, BatchesRejectElementsOfDifferentShapes) {
  const Dataset growing = Dataset::generator(
      [] { return [n = 1]() mutable -> std::optional<Element> { return Element{torch::ones({n++})}; }; });

  EXPECT_THAT(error_of([&] { elements_of(growing.batch(2)); }),
              HasSubstr("batch: element 1 of a batch is float32[2], but the first one is float32[1]"));
}

// ---- Errors
TEST(Dataset, RejectsBadArgumentsAtOnce) {
  const Dataset some = Dataset::range(3);

  EXPECT_EQ(error_of([&] { (void)some.batch(0); }), "batch: size 0, expected at least 1");
  EXPECT_EQ(error_of([&] { (void)some.take(-1); }), "take: count -1, expected at least 0");
  EXPECT_EQ(error_of([&] { (void)some.skip(-2); }), "skip: count -2, expected at least 0");
  EXPECT_EQ(error_of([&] { (void)some.repeat(-1); }), "repeat: count -1, expected at least 0");
  EXPECT_EQ(error_of([&] { (void)some.shuffle(0); }), "shuffle: buffer 0, expected at least 1");
  EXPECT_EQ(error_of([&] { (void)some.prefetch(0); }), "prefetch: count 0, expected at least 1");
  EXPECT_THAT(error_of([&] { (void)some.shard(3, 3); }), HasSubstr("shard: index 3 of 3 shards, expected"));
  EXPECT_THAT(error_of([&] { (void)some.shard(0, 0); }), HasSubstr("shard: index 0 of 0 shards, expected"));
  EXPECT_THAT(error_of([&] { (void)some.shard(2, -1); }), HasSubstr("shard: index -1"));
  EXPECT_THAT(error_of([&] { (void)Dataset::range(0, 3, 0); }), HasSubstr("range: from 0 to 3 in steps of 0"));
  EXPECT_THAT(error_of([&] { (void)Dataset::zip({}); }), HasSubstr("zip: no datasets"));
  EXPECT_THAT(error_of([&] { (void)Dataset::generator(nullptr); }), HasSubstr("generator: an empty function"));
  EXPECT_EQ(error_of([&] { (void)Dataset::synthetic_digits(-1); }), "synthetic_digits: count -1, expected at least 0");
}

TEST(Dataset, RejectsTensorsThatCannotBeSlicedTogether) {
  EXPECT_EQ(error_of([] { (void)Dataset::tensors({torch::ones({3, 2}), torch::ones({4})}); }),
            "tensors: tensor 1 has 4 slices, but tensor 0 has 3; expected the same first dimension for all");
  EXPECT_THAT(error_of([] { (void)Dataset::tensors({torch::ones({})}); }), HasSubstr("is the scalar float32[]"));
  EXPECT_THAT(error_of([] { (void)Dataset::tensors({}); }), HasSubstr("tensors: no tensors"));
  EXPECT_THAT(error_of([] { (void)Dataset::from_tensors({at::Tensor()}); }),
              HasSubstr("from_tensors: tensor 0 is undefined"));
  EXPECT_THAT(error_of([] { (void)Dataset::tensors({torch::ones({3}), torch::ones({3, 2}).to_sparse()}); }),
              HasSubstr("tensors: tensor 1 is sparse"));
  EXPECT_THAT(error_of([] { (void)Dataset::tensors({torch::ones({3}, torch::kMeta)}); }),
              HasSubstr("tensors: tensor 0 is of the meta device"));
}

TEST(Dataset, HasNoElementSpecWhenItIsEmpty) {
  EXPECT_EQ(error_of(StatusCode::kOutOfRange, [] { (void)Dataset::range(0).element_spec(); }),
            "element_spec: the dataset is empty, so there is no element to look at; expected one at least: are its "
            "files or tensors empty, or is all left out by take(), skip(), shard() or batch(n, drop_remainder)?");
  EXPECT_THAT(error_of(StatusCode::kOutOfRange,
                       [] { (void)Dataset::tensors({torch::ones({3})}).batch(4, true).element_spec(); }),
              HasSubstr("the dataset (tensors, batch) is empty"));
}

TEST(Dataset, HasALimitOfItsSteps) {
  Dataset deep = Dataset::range(3);
  Dataset wide = Dataset::range(3);

  EXPECT_THAT(error_of([&] {
                for (int i = 0; i < 100; ++i) deep = deep.take(1);
              }),
              HasSubstr("expected at most 10000 and 64"));
  EXPECT_THAT(error_of([&] {
                for (int i = 0; i < 30; ++i) wide = Dataset::zip({wide, wide});
              }),
              HasSubstr("expected at most 10000 and 64"));
}

// ---- Threads
TEST(Dataset, HandsOutEachElementOnceToAllThreads) {
  auto source = Dataset::range(1000).shuffle(100).map([](at::Tensor x) { return x * 2; }).open(local_worker());
  std::vector<Numbers> got(4);
  {
    std::vector<std::jthread> threads;
    for (Numbers& numbers : got) threads.emplace_back([&] { numbers = numbers_of(rest_of(*source)); });
  }

  Numbers all;
  for (const Numbers& numbers : got) all.insert(all.end(), numbers.begin(), numbers.end());
  EXPECT_THAT(all, UnorderedElementsAreArray(numbers_of(Dataset::range(0, 2000, 2))));
}

}  // namespace
}  // namespace muster

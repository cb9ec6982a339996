#include <gmock/gmock.h>
#include <torch/torch.h>

#include "muster/data/test_elements.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::elements_of;
using testing_support::error_of;
using testing_support::Numbers;
using testing_support::numbers_in;
using testing_support::numbers_of;

// [1], [1, 1], [1, 1, 1], … up to `most` ones, for the lengths that are given.
Dataset rows_of_ones(std::vector<int64_t> lengths) {
  return Dataset::generator([lengths] {
    return [lengths, next = size_t{0}]() mutable -> std::optional<Element> {
      if (next == lengths.size()) return std::nullopt;
      return Element{torch::ones({lengths[next++]}, torch::kLong)};
    };
  });
}

TEST(DatasetGrouping, FillsUpSmallerElementsOfAPaddedBatch) {
  const std::vector<Element> batches = elements_of(rows_of_ones({1, 3, 2}).padded_batch(2, false, -1));

  ASSERT_EQ(batches.size(), 2u);
  EXPECT_TRUE(batches[0][0].equal(torch::tensor({{1, -1, -1}, {1, 1, 1}}, torch::kLong)));
  EXPECT_TRUE(batches[1][0].equal(torch::tensor({{1, 1}}, torch::kLong)));
  EXPECT_EQ(elements_of(rows_of_ones({1, 3, 2}).padded_batch(2, true)).size(), 1u);
  EXPECT_THAT(error_of([] { elements_of(rows_of_ones({1, 2}).batch(2)); }), HasSubstr("padded_batch"));
}

TEST(DatasetGrouping, BatchesWhatIsAboutAsLong) {
  const std::vector<Element> batches =
      elements_of(rows_of_ones({1, 9, 2, 8, 1, 5}).bucket_by_length(0, {3, 6}, {2, 1, 2}));

  std::vector<Numbers> shapes;
  for (const Element& batch : batches) shapes.push_back({batch[0].size(0), batch[0].size(1)});
  EXPECT_THAT(shapes, ElementsAre(Numbers({2, 2}), Numbers({2, 9}), Numbers({1, 5}), Numbers({1, 1})));
  EXPECT_THAT(error_of([] { Dataset::range(3).bucket_by_length(0, {3, 2}, {1, 1, 1}); }), HasSubstr("ascend"));
  EXPECT_THAT(error_of([] { elements_of(Dataset::range(3).bucket_by_length(0, {3}, {1, 1})); }), HasSubstr("length"));
}

TEST(DatasetGrouping, TakesBatchesApartAndMakesOthers) {
  const Dataset batches = Dataset::range(7).batch(3);

  EXPECT_EQ(elements_of(batches.unbatch()).size(), 7u);
  const std::vector<Element> others = elements_of(batches.rebatch(2));
  ASSERT_EQ(others.size(), 4u);
  EXPECT_EQ(numbers_in(others[1][0]), Numbers({2, 3}));
  EXPECT_THAT(error_of([] { elements_of(Dataset::range(3).unbatch()); }), HasSubstr("rows"));
}

TEST(DatasetGrouping, NumbersElements) {
  const std::vector<Element> elements = elements_of(Dataset::range(5, 8).enumerate(10).repeat(2));

  ASSERT_EQ(elements.size(), 6u);
  EXPECT_EQ(numbers_of(elements), Numbers({10, 11, 12, 10, 11, 12}));
  EXPECT_EQ(elements[1][1].item<int64_t>(), 6);
}

TEST(DatasetGrouping, SlidesAWindow) {
  auto windows = [](const Dataset& dataset) {
    std::vector<Numbers> all;
    for (const Element& element : elements_of(dataset)) all.push_back(numbers_in(element[0]));
    return all;
  };

  EXPECT_THAT(windows(Dataset::range(5).window(3, 1)),
              ElementsAre(Numbers({0, 1, 2}), Numbers({1, 2, 3}), Numbers({2, 3, 4})));
  EXPECT_THAT(windows(Dataset::range(7).window(2, 3)), ElementsAre(Numbers({0, 1}), Numbers({3, 4})));
  EXPECT_THAT(windows(Dataset::range(7).window(2, 3, false)),
              ElementsAre(Numbers({0, 1}), Numbers({3, 4}), Numbers({6})));
  EXPECT_THAT(windows(Dataset::range(4).window(2)), ElementsAre(Numbers({0, 1}), Numbers({2, 3})));
}

TEST(DatasetGrouping, PutsDatasetsAfterEachOtherOrDrawsFromThem) {
  const Dataset low = Dataset::range(0, 300), high = Dataset::range(1'000, 1'100);

  EXPECT_EQ(numbers_of(Dataset::concatenate({Dataset::range(2), Dataset::range(5, 7)}).repeat(2)),
            Numbers({0, 1, 5, 6, 0, 1, 5, 6}));
  const Numbers drawn = numbers_of(Dataset::sample({low, high}, {3, 1}, 5));

  ASSERT_EQ(drawn.size(), 400u);
  const auto of_high =
      std::count_if(drawn.begin(), drawn.begin() + 100, [](int64_t number) { return number >= 1'000; });
  EXPECT_GT(of_high, 10);
  EXPECT_LT(of_high, 45);
  EXPECT_EQ(numbers_of(Dataset::sample({low, high}, {3, 1}, 5)), drawn) << "a seed means one order";
  EXPECT_THAT(error_of([&] { Dataset::sample({low, high}, {0, 0}); }), HasSubstr("not all 0"));
  EXPECT_THAT(error_of([&] { Dataset::sample({low}, {1, 1}); }), HasSubstr("2 weights"));
}

TEST(DatasetGrouping, MapsBySeveralThreadsInOrder) {
  const Dataset mapped = Dataset::range(200).map([](at::Tensor x) { return x * 3; }, {.threads = 4});
  Numbers expected;
  for (int64_t i = 0; i < 200; ++i) expected.push_back(3 * i);

  EXPECT_EQ(numbers_of(mapped), expected);
  EXPECT_EQ(numbers_of(mapped.take(3).repeat(2)), Numbers({0, 3, 6, 0, 3, 6}));
}

TEST(DatasetGrouping, GivesTheErrorOfAnElementInItsPlace) {
  const Dataset sometimes_long = Dataset::generator([] {
    return [next = int64_t{0}]() mutable -> std::optional<Element> {
      if (next == 10) return std::nullopt;
      return Element{torch::ones({++next == 5 ? 2 : 1})};
    };
  });
  const std::unique_ptr<ElementSource> source =
      sometimes_long.map([](at::Tensor x) { return x.view({1}); }, {.threads = 3}).open(local_worker());

  for (int i = 0; i < 4; ++i) EXPECT_TRUE(source->next().has_value());
  EXPECT_THAT(error_of([&] { source->next(); }), HasSubstr("float32[2]"));
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(source->next().has_value());
  EXPECT_FALSE(source->next().has_value());
}

TEST(DatasetGrouping, GoesOverTheWire) {
  const Dataset described = Dataset::sample(
      {Dataset::range(6).batch(3).unbatch().enumerate(1).window(2, 1), Dataset::range(4).enumerate().window(2)}, {1, 2},
      9);

  EXPECT_EQ(numbers_of(parse_dataset(described.serialize())), numbers_of(described));
  EXPECT_EQ(parse_dataset(described.serialize()).serialize(), described.serialize());
  const Dataset padded = Dataset::from_tensors({torch::ones({3})}).padded_batch(2, true, 1.5);
  EXPECT_EQ(parse_dataset(padded.serialize()).serialize(), padded.serialize());
  const Dataset buckets = Dataset::from_tensors({torch::ones({3})}).bucket_by_length(0, {2}, {3, 4}, true, 2.5);
  EXPECT_EQ(parse_dataset(buckets.serialize()).serialize(), buckets.serialize());
}

TEST(DatasetGrouping, RefusesAPaddingThatAColumnCannotHold) {
  const Dataset rows = Dataset::range(1, 3).map([](at::Tensor x) { return x.expand({2}).to(torch::kByte); });

  EXPECT_THAT(error_of([&] { elements_of(Dataset::range(3).padded_batch(3, false, 0.5)); }),
              HasSubstr("padded_batch: the padding 0.5 is no value of int64[]"));
  EXPECT_THAT(error_of([&] { elements_of(rows.padded_batch(2, false, 300)); }),
              HasSubstr("300 is no value of uint8[2]"));
  EXPECT_THAT(error_of([&] { elements_of(rows.padded_batch(2, false, -1)); }), HasSubstr("-1 is no value of uint8[2]"));
  EXPECT_EQ(elements_of(rows.padded_batch(2, false, 255)).size(), 1U);
}

}  // namespace
}  // namespace muster

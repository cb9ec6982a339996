#include <absl/synchronization/notification.h>
#include <gmock/gmock.h>

#include <atomic>

#include "muster/data/test_elements.h"
#include "muster/runtime/devices.h"

namespace muster {
namespace {

using namespace testing_support;
using ::testing::ElementsAre;

TEST(PrefetchSource, HandsOutTheSameElementsInTheSameOrder) {
  EXPECT_EQ(numbers_of(Dataset::range(100).prefetch(3)), numbers_of(Dataset::range(100)));
  EXPECT_THAT(numbers_of(Dataset::range(3).prefetch(8).repeat(2)), ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(numbers_of(Dataset::range(3).repeat().prefetch(2).take(2).repeat(2)), ElementsAre(0, 1, 0, 1));
}

TEST(PrefetchSource, MakesElementsBeforeTheyAreAskedFor) {
  absl::Notification third;
  const Dataset counted = Dataset::generator([&] {
    return [&, next = 0]() mutable -> std::optional<Element> {
      if (++next == 3) third.Notify();
      return Element{torch::ones({})};
    };
  });

  auto source = counted.prefetch(3).open(local_worker());

  third.WaitForNotification();
}

TEST(PrefetchSource, IsNeverFurtherAheadThanAsked) {
  std::atomic<int> made = 0;
  const Dataset counted =
      Dataset::generator([&] { return [&]() -> std::optional<Element> { return Element{torch::tensor(++made)}; }; });
  auto source = counted.prefetch(2).open(local_worker());

  for (int i = 1; i <= 100; ++i) {
    source->next();
    EXPECT_LE(made, i + 2);
  }
}

TEST(PrefetchSource, MayBeClosedBeforeItsEnd) {
  auto never_asked = Dataset::range(5).repeat().prefetch(2).open(local_worker());
  auto asked = Dataset::range(5).repeat().prefetch(2).prefetch(2).open(local_worker());
  asked->next();
}

TEST(PrefetchSource, MayBeClosedWhileAFilterFindsNothing) {
  absl::Notification begun;
  const Dataset endless = Dataset::generator([&] {
    return [&]() -> std::optional<Element> {
      if (!begun.HasBeenNotified()) begun.Notify();
      return Element{torch::zeros({})};
    };
  });

  auto source = endless.filter([](at::Tensor x) { return x > 1; }).prefetch(1).open(local_worker());

  begun.WaitForNotification();
}

TEST(PrefetchSource, PassesErrorsOnInOrder) {
  const Dataset failing = Dataset::generator([] {
    return [next = 0]() mutable -> std::optional<Element> {
      if (++next == 2) throw invalid_argument("the second one");
      if (next == 4) return std::nullopt;
      return Element{torch::tensor(next)};
    };
  });
  auto source = failing.prefetch(8).open(local_worker());

  EXPECT_EQ(source->next()->at(0).item<int>(), 1);
  EXPECT_EQ(error_of([&] { source->next(); }), "generator: the second one");
  EXPECT_EQ(source->next()->at(0).item<int>(), 3);
  EXPECT_FALSE(source->next());
  EXPECT_FALSE(source->next());
}

TEST(PrefetchToDevice, HandsOutTheSameElementsOnThatDevice) {
  const Dataset ahead = Dataset::range(5).batch(2).prefetch(2, "CPU:0").repeat(2);

  EXPECT_THAT(numbers_of(ahead), ElementsAre(0, 1, 2, 3, 4, 0, 1, 2, 3, 4));
  EXPECT_TRUE(elements_of(ahead)[0][0].is_cpu());
  EXPECT_EQ(ahead.element_spec(), (std::vector<TensorSpec>{{DType::kLong, {2}}}));
  EXPECT_THAT(numbers_of(Dataset::range(5)
                             .prefetch(2, "/device:CPU:0")
                             .shard({.num_input_pipelines = 2, .input_pipeline_id = 1}, ShardPolicy::kData)),
              ElementsAre(1, 3));
}

TEST(PrefetchToDevice, CopiesToAGpu) {
  if (LocalDevices().names().size() == 1) GTEST_SKIP() << "no GPU, or MUSTER_GPUS=off";
  const Dataset pictures = Dataset::synthetic_digits(2'000).batch(500);

  const auto here = elements_of(pictures), there = elements_of(pictures.prefetch(2, "GPU:0"));

  ASSERT_EQ(there.size(), here.size());
  for (size_t i = 0; i < here.size(); ++i) {
    for (size_t j = 0; j < here[i].size(); ++j) {
      EXPECT_TRUE(there[i][j].is_cuda());
      EXPECT_TRUE(torch::equal(there[i][j].cpu(), here[i][j])) << i << " " << j;
    }
  }
}

TEST(PrefetchToDevice, GoesOverTheWire) {
  const std::string bytes = Dataset::range(3).prefetch(2, "CPU:0").serialize();

  EXPECT_EQ(parse_dataset(bytes).serialize(), bytes);
  EXPECT_THAT(numbers_of(parse_dataset(bytes)), ElementsAre(0, 1, 2));
}

TEST(PrefetchToDevice, SaysWhichDevicesThereAre) {
  const Dataset elsewhere = Dataset::range(3).prefetch(2, "GPU:97");

  EXPECT_EQ(elsewhere.element_spec().size(), 1) << "whoever describes it need not have it";
  EXPECT_THAT(error_of([&] { elements_of(elsewhere); }), testing::HasSubstr("GPU:97"));
  EXPECT_THAT(error_of([&] { elements_of(elsewhere); }), testing::HasSubstr("CPU:0"));
  EXPECT_THAT(error_of([&] { Dataset::range(3).prefetch(2, "/job:worker"); }), testing::HasSubstr("expected one like"));
  EXPECT_THAT(error_of([&] { Dataset::range(3).prefetch(0, "CPU:0"); }), testing::HasSubstr("at least 1"));
}

TEST(PrefetchToDevice, IsTheLastStepThatChangesAnything) {
  const Dataset ahead = Dataset::range(3).prefetch(2, "CPU:0");

  EXPECT_THAT(error_of([&] { ahead.take(2).batch(2); }), testing::HasSubstr("expected it last"));
  EXPECT_THAT(error_of([&] { ahead.map([](at::Tensor x) { return x; }); }), testing::HasSubstr("expected it last"));
}

}  // namespace
}  // namespace muster

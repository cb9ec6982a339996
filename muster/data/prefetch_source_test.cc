#include <absl/synchronization/notification.h>
#include <gmock/gmock.h>

#include <atomic>

#include "muster/data/test_elements.h"

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
  EXPECT_EQ(error_of([&] { source->next(); }), "the second one");
  EXPECT_EQ(source->next()->at(0).item<int>(), 3);
  EXPECT_FALSE(source->next());
  EXPECT_FALSE(source->next());
}

}  // namespace
}  // namespace muster

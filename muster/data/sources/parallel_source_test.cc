#include <absl/synchronization/notification.h>
#include <gmock/gmock.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "muster/base/strings.h"
#include "muster/data/data_pool.h"
#include "muster/data/sources/source.h"
#include "muster/data/test_elements.h"

namespace muster::parallel_source_test {
namespace {

using namespace testing_support;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAreArray;

Numbers numbers_to(int64_t end) {
  Numbers numbers;
  for (int64_t i = 0; i < end; ++i) numbers.push_back(i);
  return numbers;
}

// A dataset whose elements are changed by C++, which a description could not.
class Opened {
 public:
  Opened(Dataset dataset, std::function<void(int64_t)> change, Parallel parallel)
      : dataset_(std::move(dataset)),
        source_(open_change(
            [change = std::move(change)](Columns element) {
              change(numbers_in(element[0].tensor())[0]);
              return element;
            },
            parallel, open(*dataset_.node(), context_), context_)) {}
  ~Opened() { closed_ = true; }

  Source& operator*() { return *source_; }
  int64_t next() { return numbers_in(source_->next().value()[0].tensor())[0]; }
  Numbers rest() {
    Numbers all;
    while (const auto element = source_->next()) all.push_back(numbers_in((*element)[0].tensor())[0]);
    return all;
  }

 private:
  const Dataset dataset_;
  std::atomic<bool> closed_{false};
  const OpenContext context_{.runner = local_worker(), .closed = closed_};
  const std::unique_ptr<Source> source_;
};

// No dataset gets a thread while it lives.
class PoolTaken {
 public:
  PoolTaken() {
    for (int taken = 0; taken < kMostDataThreads;) {
      if (data_pool().try_submit([go_on = go_on_] { go_on->WaitForNotification(); })) {
        ++taken;
      } else {
        std::this_thread::yield();  // one of a test before is about to go back
      }
    }
  }
  ~PoolTaken() {
    go_on_->Notify();
    while (go_on_.use_count() > 1) std::this_thread::yield();  // the next test wants threads
  }

 private:
  const std::shared_ptr<absl::Notification> go_on_ = std::make_shared<absl::Notification>();
};

TEST(ParallelSource, KeepsTheOrderWhoeverIsDoneFirst) {
  absl::Notification second_done;
  Opened opened(Dataset::range(100),
                [&](int64_t number) {
                  if (number == 0) second_done.WaitForNotification();
                  if (number == 1) second_done.Notify();
                },
                {.threads = 2});

  EXPECT_EQ(opened.rest(), numbers_to(100));
}

TEST(ParallelSource, HandsElementsOnAsTheyComeIfTheirOrderIsNothingToAnybody) {
  absl::Notification got_others;
  Opened opened(Dataset::range(100),
                [&](int64_t number) {
                  if (number == 0) got_others.WaitForNotification();
                },
                {.threads = 2, .deterministic = false});

  Numbers all{opened.next(), opened.next()};
  EXPECT_THAT(all, ElementsAre(1, 2));
  got_others.Notify();
  for (const int64_t number : opened.rest()) all.push_back(number);

  EXPECT_THAT(all, UnorderedElementsAreArray(numbers_to(100)));
}

TEST(ParallelSource, HandsOnWhatAGeneratorHasGivenBeforeItGivesMore) {
  constexpr int64_t kGiven = 500;  // short elements go in groups by then, if they are no generator's
  absl::Notification got_them;
  const Dataset waiting = Dataset::generator([&] {
    return [&, next = int64_t{0}]() mutable -> std::optional<Element> {
      if (next == kGiven) got_them.WaitForNotification();
      if (next == kGiven + 1) return std::nullopt;
      return Element{torch::tensor(next++)};
    };
  });
  auto source = waiting.map([](at::Tensor x) { return x * 1; }, {.threads = 2}).prefetch(4).open(local_worker());

  EXPECT_EQ(numbers_of(rest_of(*source, kGiven)), numbers_to(kGiven));
  got_them.Notify();
  EXPECT_EQ(rest_of(*source).size(), 1);
}

TEST(ParallelSource, HandsOnWhatARegisteredSourceHasGivenBeforeItGivesMore) {
  constexpr int64_t kGiven = 500;
  static int runs = 0;
  const std::string name = str_cat("test waits ", ++runs);
  const auto got_them = std::make_shared<absl::Notification>();
  register_dataset_source(name, [got_them](const RegisteredOptions&) -> ColumnGenerator {
    return [got_them, next = int64_t{0}]() mutable -> std::optional<Columns> {
      if (next == kGiven) got_them->WaitForNotification();
      if (next == kGiven + 1) return std::nullopt;
      return Columns{torch::tensor(next++)};
    };
  });
  const Dataset waiting = Dataset::registered(name);
  auto source = waiting.map([](at::Tensor x) { return x * 1; }, {.threads = 2}).prefetch(4).open(local_worker());

  EXPECT_EQ(numbers_of(rest_of(*source, kGiven)), numbers_to(kGiven));
  got_them->Notify();
  EXPECT_EQ(rest_of(*source).size(), 1);
}

TEST(ParallelSource, BeginsAgainInTheMiddle) {
  for (const int threads : {2, 5, kAutoThreads}) {
    const Dataset mapped = Dataset::range(300).map([](at::Tensor x) { return x * 1; }, {.threads = threads});
    Numbers expected;
    for (int round = 0; round < 3; ++round) {
      for (const int64_t number : numbers_to(70)) expected.push_back(number);
    }

    EXPECT_EQ(numbers_of(mapped.take(70).repeat(3)), expected);
    EXPECT_EQ(numbers_of(mapped.prefetch(2).take(70).repeat(3)), expected);
  }
}

TEST(ParallelSource, GivesErrorsOfItsInputAndOfItsFunctionInTheirPlaces) {
  const Dataset failing = Dataset::generator([] {
    return [next = int64_t{0}]() mutable -> std::optional<Element> {
      if (++next == 3) throw invalid_argument("of the input");
      if (next == 6) return std::nullopt;
      return Element{torch::tensor(next)};
    };
  });
  Opened opened(failing,
                [](int64_t number) {
                  if (number == 4) throw invalid_argument("of the function");
                },
                {.threads = 3});

  EXPECT_EQ(opened.next(), 1);
  EXPECT_EQ(opened.next(), 2);
  EXPECT_EQ(error_of([&] { opened.next(); }), "generator: of the input");
  EXPECT_EQ(error_of([&] { opened.next(); }), "of the function");
  EXPECT_EQ(opened.next(), 5);
  EXPECT_FALSE((*opened).next());
  EXPECT_FALSE((*opened).next());
}

TEST(ParallelSource, EndsWithTheRunThatWaitsForItAndLosesNothing) {
  absl::Notification go_on;
  Opened opened(Dataset::range(3), [&](int64_t) { go_on.WaitForNotification(); }, {.threads = 2});

  Cancellation run;
  std::jthread taker([&] {
    const TakingFor taking(&run);
    EXPECT_EQ(error_of(StatusCode::kCancelled, [&] { opened.next(); }), "enough");
  });
  run.cancel(Status(StatusCode::kCancelled, "enough"));
  taker.join();
  go_on.Notify();

  EXPECT_EQ(opened.rest(), numbers_to(3));
}

TEST(ParallelSource, LetsAPrefetchEndWithTheRunThatWaitsForIt) {
  absl::Notification go_on;
  const Dataset waiting = Dataset::generator([&] {
    return [&, next = int64_t{0}]() mutable -> std::optional<Element> {
      go_on.WaitForNotification();
      if (next == 3) return std::nullopt;
      return Element{torch::tensor(next++)};
    };
  });
  auto source = waiting.prefetch(2).open(local_worker());

  Cancellation run;
  std::jthread taker([&] {
    const TakingFor taking(&run);
    EXPECT_EQ(error_of(StatusCode::kCancelled, [&] { source->next(); }), "enough");
  });
  run.cancel(Status(StatusCode::kCancelled, "enough"));
  taker.join();
  go_on.Notify();

  EXPECT_EQ(numbers_of(rest_of(*source)), numbers_to(3));
}

TEST(ParallelSource, IsWorkedForByWhoeverAsksIfThePoolHasNoThreadLeft) {
  const PoolTaken taken;
  auto twice = [](at::Tensor x) { return x * 2; };
  const Dataset mapped =
      Dataset::range(200).map(twice, {.threads = 2}).prefetch(3).map(twice, {.threads = kAutoThreads}).prefetch(2);

  const Numbers numbers = numbers_of(mapped);

  ASSERT_EQ(numbers.size(), 200);
  for (int64_t i = 0; i < 200; ++i) EXPECT_EQ(numbers[static_cast<size_t>(i)], 4 * i);
}

TEST(ParallelSource, DoesNotTellTheNextRunThatTheOneThatWorkedForItWasCancelled) {
  const PoolTaken taken;
  std::atomic<bool> lets_through = false;
  Cancellation run;
  const Dataset endless = Dataset::generator([&] {
    return [&]() -> std::optional<Element> {
      if (!lets_through) run.cancel();
      return Element{torch::tensor(lets_through ? 1 : 0)};
    };
  });
  auto source = endless.filter([](at::Tensor x) { return x > 0; })
                    .map([](at::Tensor x) { return x + 1; }, {.threads = 2})
                    .open(local_worker());

  {
    const TakingFor taking(&run);
    error_of(StatusCode::kCancelled, [&] { source->next(); });
  }
  lets_through = true;

  EXPECT_EQ(numbers_in(source->next()->at(0)), Numbers({2}));
}

TEST(ParallelSource, LeavesNothingBehindHoweverOftenItIsOpened) {
  const Dataset mapped = Dataset::range(100)
                             .map([](at::Tensor x) { return x + 1; }, {.threads = 2})
                             .map([](at::Tensor x) { return x + 1; }, {.threads = kAutoThreads})
                             .prefetch(2);
  auto open_often = [&](int times) {
    for (int i = 0; i < times; ++i) {
      auto source = mapped.open(local_worker());
      if (i % 2 == 0) source->next();
    }
  };
  open_often(200);
  const WorkerStatus before = local_worker().status();
  const size_t threads = data_pool().threads();

  open_often(1'800);

  const WorkerStatus after = local_worker().status();
  EXPECT_EQ(after.programs, before.programs);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which keep more, or notes on all of it
  EXPECT_LT(after.resident_bytes - before.resident_bytes, 32 << 20);
#endif
  EXPECT_LE(data_pool().threads(), threads + 8) << "as many as one needs, which may not have come together before";
}

}  // namespace
}  // namespace muster::parallel_source_test

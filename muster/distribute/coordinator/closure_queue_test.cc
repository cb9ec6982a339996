#include "muster/distribute/coordinator/closure_queue.h"

#include <absl/synchronization/notification.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "muster/base/log.h"
#include "muster/base/test_errors.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using testing_support::caught;

const Status kSomeError(StatusCode::kInvalidArgument, "Some error.");
const Status kFakeCancellation(StatusCode::kCancelled, "Fake cancellation error.");
const Status kRescheduled(StatusCode::kCancelled,
                          "The corresponding function is cancelled. Please reschedule the function.");

class TestClosure : public Closure {
 public:
  void cancelled(const Status& why) override {
    ++cancellations;
    outcome = why;
  }

  std::atomic<int> runs = 0;
  std::atomic<int> cancellations = 0;
  Status outcome;
};

std::shared_ptr<TestClosure> make(std::optional<int> tag = std::nullopt) {
  auto closure = std::make_shared<TestClosure>();
  closure->tag = tag;
  return closure;
}

// Takes closures and ends each until the queue is stopped.
class Runner {
 public:
  using End = std::function<void(ClosureQueue&, const std::shared_ptr<Closure>&)>;

  Runner(ClosureQueue& queue, End end)
      : thread_([&queue, end = std::move(end)] {
          while (auto closure = queue.get()) end(queue, closure);
        }) {}

 private:
  std::jthread thread_;
};

void finish(ClosureQueue& queue, const std::shared_ptr<Closure>& closure) {
  ++static_cast<TestClosure&>(*closure).runs;
  queue.mark_finished(*closure);
}

// A thread that calls the queue, and does not come back before the test lets it.
class Caller {
 public:
  explicit Caller(std::function<void()> call)
      : thread_([this, call = std::move(call)] {
          outcome_ = caught(call);
          returned_.Notify();
        }) {}

  bool returned() const { return returned_.HasBeenNotified(); }
  Status outcome() {
    returned_.WaitForNotification();
    return outcome_;
  }

 private:
  Status outcome_;
  absl::Notification returned_;
  std::jthread thread_;
};

TEST(ClosureQueue, GivesBackAClosureThatWasPutBack) {
  ClosureQueue queue;
  const auto closure = make();
  queue.put(closure);

  EXPECT_EQ(queue.get(), closure);
  EXPECT_FALSE(queue.done());
  queue.put_back(closure);
  EXPECT_FALSE(queue.done());
  EXPECT_EQ(queue.get(), closure);
  queue.mark_finished(*closure);

  EXPECT_TRUE(queue.done());
  EXPECT_TRUE(queue.wait());
}

TEST(ClosureQueue, RunsEachClosureOnceWhenThreadsPutBackTheirFirst) {
  ClosureQueue queue;
  std::vector<std::shared_ptr<TestClosure>> closures;
  for (int i = 0; i < 5; ++i) closures.push_back(make());
  const auto put_back_the_first = [first = true](ClosureQueue& queue, const auto& closure) mutable {
    std::exchange(first, false) ? queue.put_back(closure) : finish(queue, closure);
  };
  const Runner one(queue, put_back_the_first);
  const Runner two(queue, put_back_the_first);

  for (const auto& closure : closures) queue.put(closure);

  for (int i = 0; i < 4; ++i) EXPECT_TRUE(queue.wait());
  for (const auto& closure : closures) EXPECT_EQ(closure->runs, 1);
  queue.stop(kFakeCancellation);
}

TEST(ClosureQueue, DoesNotTimeOutWhenAllHasFinishedBeforeTheWait) {
  ClosureQueue queue;
  queue.put(make());
  finish(queue, queue.get());

  EXPECT_TRUE(queue.wait(milliseconds(0)));
}

TEST(ClosureQueue, WaitBlocksUntilTheFailureAndThrowsIt) {
  ClosureQueue queue;
  queue.put(make());
  const auto closure = queue.get();
  Caller waiter([&] { queue.wait(); });
  EXPECT_FALSE(waiter.returned());

  queue.mark_failed(*closure, kSomeError);

  EXPECT_EQ(waiter.outcome(), kSomeError);
  EXPECT_TRUE(queue.done());
}

// One closure has failed, and another is queued.
struct ClosureQueueAfterFailure : testing::Test {
  ClosureQueueAfterFailure() {
    queue.put(make());
    queue.put(waiting);
    const auto failing = queue.get();
    before_failure = queue.done();
    queue.mark_failed(*failing, kSomeError);
  }

  ClosureQueue queue;
  const std::shared_ptr<TestClosure> waiting = make();
  bool before_failure;
};

TEST_F(ClosureQueueAfterFailure, PutThrowsTheErrorOnceAndCancelsWhatWasQueued) {
  const auto refused = make();

  EXPECT_EQ(caught([&] { queue.put(refused); }), kSomeError);

  EXPECT_TRUE(queue.done());
  EXPECT_EQ(waiting->outcome, kRescheduled);
  EXPECT_EQ(waiting->cancellations, 1);
  EXPECT_EQ(refused->outcome, kRescheduled);
  const auto next = make();
  EXPECT_NO_THROW(queue.put(next));
  EXPECT_EQ(queue.get(), next);
}

TEST_F(ClosureQueueAfterFailure, WaitThrowsTheErrorOnceAndCancelsWhatWasQueued) {
  EXPECT_EQ(caught([&] { queue.wait(); }), kSomeError);

  EXPECT_EQ(waiting->outcome, kRescheduled);
  EXPECT_TRUE(queue.wait());
}

TEST_F(ClosureQueueAfterFailure, DoneIsFalseBeforeAndThrowsTheErrorOnceAfter) {
  EXPECT_FALSE(before_failure);
  EXPECT_EQ(caught([&] { queue.done(); }), kSomeError);

  EXPECT_EQ(waiting->outcome, kRescheduled);
  EXPECT_TRUE(queue.done());
}

TEST_F(ClosureQueueAfterFailure, HandsOutNothingBeforeTheErrorWasThrown) {
  std::vector<std::shared_ptr<Closure>> taken;

  EXPECT_EQ(queue.take(10, std::nullopt, taken), 0u);
  EXPECT_EQ(queue.get(std::nullopt, milliseconds(0)), nullptr);
  EXPECT_EQ(waiting->outcome, kRescheduled);
}

// Two closures are in flight and one is queued; then the first fails.
class ClosureQueueWhileOthersRun : public testing::TestWithParam<void (*)(ClosureQueue&)> {};

TEST_P(ClosureQueueWhileOthersRun, ThrowsTheFirstErrorOnceNothingIsInFlight) {
  ClosureQueue queue;
  const auto waiting = make();
  queue.put(make());
  queue.put(make());
  queue.put(waiting);
  const auto first = queue.get();
  const auto second = queue.get();
  const std::shared_ptr<Cancellation> cancellation = queue.cancellation();

  queue.mark_failed(*first, kSomeError);

  EXPECT_TRUE(cancellation->cancelled());
  EXPECT_EQ(queue.inflight(), 1u);
  EXPECT_EQ(queue.queued(), 0u);
  EXPECT_EQ(waiting->cancellations, 1) << "whoever waits for it would wait for ever";
  Caller caller([&] { GetParam()(queue); });
  EXPECT_FALSE(caller.returned());

  queue.mark_failed(*second, kFakeCancellation);

  EXPECT_EQ(caller.outcome(), kSomeError);
  EXPECT_EQ(queue.inflight(), 0u);
  EXPECT_EQ(queue.queued(), 0u);
  EXPECT_EQ(waiting->outcome, kRescheduled);
  EXPECT_NE(queue.cancellation(), cancellation);
  EXPECT_FALSE(queue.cancellation()->cancelled());
  EXPECT_TRUE(queue.wait());
}

INSTANTIATE_TEST_SUITE_P(Calls, ClosureQueueWhileOthersRun,
                         testing::Values([](ClosureQueue& queue) { queue.put(make()); },
                                         [](ClosureQueue& queue) { queue.wait(); },
                                         [](ClosureQueue& queue) { queue.done(); }));

TEST(ClosureQueue, ThrowsAnErrorToOneOfManyWaiters) {
  ClosureQueue queue;
  queue.put(make());
  const auto closure = queue.get();
  Caller one([&] { queue.wait(); });
  Caller two([&] { queue.wait(); });

  queue.mark_failed(*closure, kSomeError);

  EXPECT_NE(one.outcome().ok(), two.outcome().ok());
}

TEST(ClosureQueue, KeepsAnErrorWhenWaitTimesOutBeforeTheOthersHaveEnded) {
  ClosureQueue queue;
  queue.put(make());
  queue.put(make());
  const auto first = queue.get();
  const auto second = queue.get();
  queue.mark_failed(*first, kSomeError);

  EXPECT_FALSE(queue.wait(milliseconds(1)));
  queue.mark_finished(*second);

  EXPECT_EQ(caught([&] { queue.wait(milliseconds(1)); }), kSomeError);
}

TEST(ClosureQueue, WaitReturnsAfterManyThreadsPutBackAndFinish) {
  ClosureQueue queue;
  std::vector<std::jthread> threads;
  // Together the threads finish 100 closures, each after it was put back once by somebody.
  for (int thread = 0; thread < 10; ++thread) {
    threads.emplace_back([&queue] {
      for (int action = 0; action < 20; ++action) {
        auto closure = queue.get();
        action % 2 == 0 ? queue.put_back(closure) : finish(queue, closure);
      }
    });
  }

  for (int i = 0; i < 100; ++i) queue.put(make());

  EXPECT_TRUE(queue.wait());
  EXPECT_TRUE(queue.done());
}

TEST(ClosureQueue, GivesAWorkerItsOwnClosuresFirstAndWaitsOnlyForUntaggedOnes) {
  ClosureQueue queue;
  const auto untagged = make();
  const auto for_two = make(2);
  const auto for_one = make(1);
  queue.put(for_one);
  queue.put(untagged);
  queue.put(for_two);

  EXPECT_EQ(queue.get(2), for_two);
  EXPECT_EQ(queue.get(), untagged);
  EXPECT_EQ(queue.get(std::nullopt, milliseconds(0)), nullptr);
  queue.mark_finished(*untagged);

  EXPECT_TRUE(queue.done());
  EXPECT_TRUE(queue.wait());
  queue.mark_finished(*for_two);
  EXPECT_EQ(queue.get(1), for_one);
  queue.mark_finished(*for_one);
}

TEST(ClosureQueue, GivesAWorkerTheClosuresOfAllWhenItsOwnAreFinished) {
  ClosureQueue queue;
  const auto untagged = make();
  queue.put(untagged);

  EXPECT_EQ(queue.get(7), untagged);
}

TEST(ClosureQueue, TakesManyAtOnceOwnFirstAndInOrder) {
  ClosureQueue queue;
  std::vector<std::shared_ptr<Closure>> put = {make(3), make(), make(), make()};
  queue.put(put[1]);
  queue.put(put[2]);
  queue.put(put[0]);
  queue.put(put[3]);
  std::vector<std::shared_ptr<Closure>> taken;

  EXPECT_EQ(queue.take(3, 3, taken), 3u);
  EXPECT_EQ(queue.inflight(), 2u);
  EXPECT_EQ(queue.take(3, 3, taken), 1u);
  queue.mark_finished(1, /*tagged=*/true);
  queue.mark_finished(3, /*tagged=*/false);

  EXPECT_EQ(taken, put);
  EXPECT_TRUE(queue.done());
}

TEST_F(ClosureQueueAfterFailure, KeepsTaggedClosures) {
  const auto tagged = make(1);
  queue.put(tagged);
  EXPECT_EQ(queue.get(1), tagged);
  queue.put_back(tagged);

  EXPECT_EQ(caught([&] { queue.wait(); }), kSomeError);

  EXPECT_EQ(queue.get(1), tagged);
  EXPECT_EQ(tagged->cancellations, 0);
}

TEST(ClosureQueueDeathTest, EndsOnlyWhatIsInFlight) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  ClosureQueue queue;
  const auto closure = make();

  EXPECT_DEATH(queue.mark_finished(*closure), "not in flight");
  EXPECT_DEATH(queue.mark_failed(*closure, kSomeError), "not in flight");
  EXPECT_DEATH(queue.put_back(closure), "not in flight");
}

TEST(ClosureQueue, GetReturnsNothingAndWaitFalseOnTimeout) {
  ClosureQueue queue;

  EXPECT_EQ(queue.get(std::nullopt, milliseconds(1)), nullptr);
  EXPECT_EQ(queue.get(1, milliseconds(1)), nullptr);
  queue.put(make());
  EXPECT_FALSE(queue.wait(milliseconds(1)));
  finish(queue, queue.get());
  EXPECT_TRUE(queue.wait(milliseconds(1)));
}

TEST(ClosureQueue, StopEndsAllCallsAndCancelsWhatIsQueued) {
  ClosureQueue queue({.capacity = 1});
  const auto running = make();
  const auto waiting = make();
  const auto tagged = make(1);
  queue.put(running);
  queue.get();
  queue.put(waiting);
  queue.put(tagged);
  Caller putter([&] { queue.put(make()); });
  Caller waiter([&] { queue.wait(); });
  ClosureQueue empty;
  Caller getter([&] { EXPECT_EQ(empty.get(), nullptr); });

  EXPECT_FALSE(queue.stopped());
  queue.stop(kSomeError);
  empty.stop(kSomeError);

  EXPECT_TRUE(queue.stopped());
  EXPECT_EQ(putter.outcome(), kSomeError);
  EXPECT_EQ(waiter.outcome(), kSomeError);
  EXPECT_TRUE(getter.outcome().ok());
  EXPECT_EQ(queue.get(1), nullptr);
  EXPECT_EQ(caught([&] { queue.done(); }), kSomeError);
  EXPECT_EQ(caught([&] { queue.put(make(1)); }), kSomeError);
  EXPECT_EQ(waiting->outcome, kSomeError);
  EXPECT_EQ(tagged->outcome, kSomeError);
  EXPECT_EQ(queue.cancellation()->status(), kSomeError);
  EXPECT_EQ(running->cancellations, 0);
  queue.put_back(running);
  EXPECT_EQ(running->outcome, kSomeError);
}

TEST(ClosureQueue, CancelsWhatIsQueuedWhenItIsDestroyed) {
  const auto waiting = make();
  {
    ClosureQueue queue;
    queue.put(waiting);
  }

  EXPECT_EQ(waiting->outcome.code(), StatusCode::kCancelled);
}

TEST(ClosureQueue, PutBlocksWhileTheQueueIsFull) {
  ClosureQueue queue({.capacity = 2});
  queue.put(make());
  queue.put(make());
  Caller putter([&] { queue.put(make()); });
  EXPECT_FALSE(putter.returned());
  EXPECT_EQ(queue.queued(), 2u);

  const auto closure = queue.get();

  EXPECT_TRUE(putter.outcome().ok());
  EXPECT_EQ(queue.queued(), 2u);
  queue.put_back(closure);
  EXPECT_EQ(queue.queued(), 3u);
}

TEST(ClosureQueue, AnErrorWakesAPutThatWaitsForASlot) {
  ClosureQueue queue({.capacity = 1});
  queue.put(make());
  const auto failing = queue.get();
  queue.put(make());
  Caller putter([&] { queue.put(make()); });

  queue.mark_failed(*failing, kSomeError);

  EXPECT_EQ(putter.outcome(), kSomeError);
}

TEST(ClosureQueue, WarnsWhenItsCapacityIsUnlimited) {
  const LogCapture log;
  ClosureQueue limited;
  EXPECT_TRUE(log.lines().empty());

  ClosureQueue unlimited({.capacity = 0});
  for (int i = 0; i < 1000; ++i) unlimited.put(make());

  EXPECT_TRUE(log.contains("no capacity limit"));
  EXPECT_EQ(log.lines().size(), 1u);
  EXPECT_EQ(unlimited.queued(), 1000u);
}

TEST(ClosureQueue, PutBackCancelsWhileAnErrorIsPending) {
  ClosureQueue queue;
  const auto unlucky = make();
  queue.put(make());
  queue.put(unlucky);
  const auto failing = queue.get();
  queue.get();
  queue.mark_failed(*failing, kSomeError);

  queue.put_back(unlucky);

  EXPECT_EQ(unlucky->outcome, kRescheduled);
  EXPECT_EQ(queue.queued(), 0u);
  EXPECT_EQ(queue.inflight(), 0u);
  EXPECT_EQ(caught([&] { queue.wait(); }), kSomeError);
}

TEST(ClosureQueue, TellsThatThereIsSomethingToTake) {
  int told = 0;
  ClosureQueue queue({.on_put = [&](std::optional<int>) { ++told; }});

  queue.put(make());
  EXPECT_EQ(told, 1);
  queue.put_back(queue.get());
  EXPECT_EQ(told, 2);
  queue.put(make(1));
  EXPECT_EQ(told, 3);
}

TEST(ClosureQueue, MayBeCalledByWhatItCalls) {
  std::vector<std::shared_ptr<Closure>> taken;
  ClosureQueue* inner = nullptr;
  ClosureQueue queue({.on_put = [&](std::optional<int>) { inner->take(1, std::nullopt, taken); }});
  inner = &queue;

  queue.put(make());
  queue.put(make());
  const auto on_cancel = queue.cancellation()->on_cancel(
      [&](const Status& why) { queue.mark_failed(*taken[1], Status(StatusCode::kCancelled, why.message())); });
  queue.mark_failed(*taken[0], kSomeError);

  EXPECT_EQ(caught([&] { queue.wait(); }), kSomeError);
  EXPECT_TRUE(queue.done());
}

TEST(ClosureQueue, DoesNotDeadlockWithCapacityTwoAndFailures) {
  ClosureQueue queue({.capacity = 2});
  std::atomic<int> put = 0, ended = 0, thrown = 0;
  std::vector<std::shared_ptr<TestClosure>> closures;
  for (int i = 0; i < 400; ++i) closures.push_back(make());
  std::vector<std::unique_ptr<Runner>> runners;
  for (int i = 0; i < 5; ++i) {
    runners.push_back(std::make_unique<Runner>(queue, [&](ClosureQueue& queue, const auto& closure) {
      const int n = ended++;
      if (n % 7 == 3) return queue.put_back(closure);
      if (n % 31 == 5) return queue.mark_failed(*closure, kSomeError);
      finish(queue, closure);
    }));
  }
  {
    std::vector<std::jthread> putters;
    for (int i = 0; i < 4; ++i) {
      putters.emplace_back([&] {
        for (int next; (next = put++) < 400;) {
          if (!caught([&] { queue.put(closures[next]); }).ok()) ++thrown;
        }
      });
    }
  }

  while (!caught([&] { queue.wait(); }).ok()) ++thrown;

  EXPECT_TRUE(queue.done());
  EXPECT_GT(thrown, 0);
  int failed = 0;
  for (const auto& closure : closures) {
    EXPECT_LE(closure->runs + closure->cancellations, 1);
    if (closure->runs + closure->cancellations == 0) ++failed;
  }
  EXPECT_GE(failed, thrown);  // Errors after the first are not thrown.
  queue.stop(kFakeCancellation);
}

}  // namespace
}  // namespace muster

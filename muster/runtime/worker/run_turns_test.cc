#include "muster/runtime/worker/run_turns.h"

#include <absl/synchronization/notification.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace muster {
namespace {

using ::testing::ElementsAre;

TEST(RunTurns, LetNobodyBeginBeforeTheOneBeforeHasEnded) {
  RunTurns turns;
  std::atomic<int> at_once = 0, most = 0;
  int done = 0;  // guarded by the turns

  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&] {
        for (int j = 0; j < 100; ++j) {
          turns.take(7, 0, [&](ReadAhead&) {
            most = std::max<int>(most, ++at_once);
            ++done;
            --at_once;
          });
        }
      });
    }
  }

  EXPECT_EQ(most, 1);
  EXPECT_EQ(done, 800);
}

TEST(RunTurns, KeepNobodyWaitingWhoComesWhileAnotherIsAtWork) {
  RunTurns turns;
  absl::Notification began, go_on;
  std::vector<int> order;
  std::jthread busy([&] {
    turns.take(7, 0, [&](ReadAhead&) {
      began.Notify();
      go_on.WaitForNotification();
      order.push_back(1);
    });
  });
  began.WaitForNotification();

  turns.take(7, 0, [&](ReadAhead&) { order.push_back(2); });  // returns at once
  turns.take(7, 0, [&](ReadAhead&) { order.push_back(3); });
  EXPECT_THAT(order, ElementsAre());
  go_on.Notify();
  busy.join();

  EXPECT_THAT(order, ElementsAre(1, 2, 3));
}

TEST(RunTurns, AreJoinedOnlyWhileSomebodyIsAtWork) {
  RunTurns turns;
  std::vector<int> order;
  RunTurns::Work second = [&](ReadAhead&) { order.push_back(2); };

  EXPECT_FALSE(turns.join(7, 0, second));
  EXPECT_TRUE(second);
  turns.take(7, 0, [&](ReadAhead&) {
    EXPECT_TRUE(turns.join(7, 0, second));
    order.push_back(1);
  });

  EXPECT_THAT(order, ElementsAre(1, 2));
}

TEST(RunTurns, SayWhichProgramIsNext) {
  RunTurns turns;
  std::vector<uint64_t> next;

  turns.take(7, 1, [&](ReadAhead&) {
    next.push_back(turns.next_program(7));
    turns.take(7, 2, [&](ReadAhead&) { next.push_back(turns.next_program(7)); });
    turns.take(7, 3, [&](ReadAhead&) { next.push_back(turns.next_program(7)); });
    next.push_back(turns.next_program(7));
    next.push_back(turns.next_program(8));
  });
  next.push_back(turns.next_program(7));

  EXPECT_THAT(next, ElementsAre(0, 2, 0, 3, 0, 0));
}

TEST(RunTurns, HandOnWhatWasReadAheadUntilNobodyWaits) {
  RunTurns turns;
  const ReadAhead* first = nullptr;
  bool same = false;

  turns.take(7, 1, [&](ReadAhead& ahead) {
    first = &ahead;
    turns.take(7, 2, [&](ReadAhead& given) { same = &given == first; });
  });

  EXPECT_TRUE(same);
}

TEST(RunTurns, OfOtherSequencesAreNotWaitedFor) {
  RunTurns turns;
  absl::Notification began, go_on;
  std::jthread busy([&] {
    turns.take(7, 0, [&](ReadAhead&) {
      began.Notify();
      go_on.WaitForNotification();
    });
  });
  began.WaitForNotification();
  bool ran = false;

  turns.take(8, 0, [&](ReadAhead&) { ran = true; });

  EXPECT_TRUE(ran);
  go_on.Notify();
}

}  // namespace
}  // namespace muster

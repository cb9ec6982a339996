#include "muster/runtime/run_turns.h"

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
          turns.take(7, [&] {
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
    turns.take(7, [&] {
      began.Notify();
      go_on.WaitForNotification();
      order.push_back(1);
    });
  });
  began.WaitForNotification();

  turns.take(7, [&] { order.push_back(2); });  // returns at once
  turns.take(7, [&] { order.push_back(3); });
  EXPECT_THAT(order, ElementsAre());
  go_on.Notify();
  busy.join();

  EXPECT_THAT(order, ElementsAre(1, 2, 3));
}

TEST(RunTurns, OfOtherSequencesAreNotWaitedFor) {
  RunTurns turns;
  absl::Notification began, go_on;
  std::jthread busy([&] {
    turns.take(7, [&] {
      began.Notify();
      go_on.WaitForNotification();
    });
  });
  began.WaitForNotification();
  bool ran = false;

  turns.take(8, [&] { ran = true; });

  EXPECT_TRUE(ran);
  go_on.Notify();
}

}  // namespace
}  // namespace muster

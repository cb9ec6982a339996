#include "muster/fit/callbacks/watchers.h"

#include <absl/synchronization/notification.h>
#include <gmock/gmock.h>

#include <vector>

#include "muster/base/log.h"
#include "muster/base/status.h"

namespace muster::watchers_test {
namespace {

using ::testing::ElementsAre;

TEST(Watchers, RunTheirCallsInOrderWhileNobodyWaits) {
  absl::Notification added;
  std::vector<int> seen;
  Watchers watchers;

  watchers.add([&] {
    added.WaitForNotification();
    seen.push_back(1);
  });
  watchers.add([&] { seen.push_back(2); });
  added.Notify();
  watchers.wait();

  EXPECT_THAT(seen, ElementsAre(1, 2));
}

TEST(Watchers, SayOnceThatACallHasFailedAndMakeNoMore) {
  bool called = false;
  Watchers watchers;

  watchers.add([] { throw aborted("the disk is full"); });
  watchers.add([&] { called = true; });

  EXPECT_THROW(watchers.wait(), Error);
  EXPECT_NO_THROW(watchers.check());
  EXPECT_FALSE(called);
}

TEST(Watchers, RunAllBeforeTheyEnd) {
  int runs = 0;
  {
    Watchers watchers;
    for (int i = 0; i < 10; ++i) watchers.add([&] { ++runs; });
  }
  EXPECT_EQ(runs, 10);
}

TEST(Watchers, LogAnErrorThatNobodyWasToldOf) {
  LogCapture log;
  {
    Watchers watchers;
    watchers.add([&] { throw unavailable("the disk is full"); });
  }

  EXPECT_TRUE(log.contains("a callback that only watches has failed: UNAVAILABLE: the disk is full"));
}

}  // namespace
}  // namespace muster::watchers_test

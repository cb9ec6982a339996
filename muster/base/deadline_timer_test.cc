#include "muster/base/deadline_timer.h"

#include <absl/synchronization/notification.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <vector>

namespace muster {
namespace {

TEST(SteadyCondVar, WaitsForASignalOrForAsLongAsItIsTold) {
  absl::Mutex mu;
  SteadyCondVar changed;
  bool done = false;
  const std::jthread other([&] {
    absl::MutexLock lock(&mu);
    done = true;
    changed.signal_all();
  });

  absl::MutexLock lock(&mu);
  while (!done) changed.wait(mu);

  EXPECT_FALSE(changed.wait_for(mu, absl::Milliseconds(1)));
  EXPECT_FALSE(changed.wait_for(mu, -absl::InfiniteDuration()));
}

TEST(AwaitFor, WaitsForAConditionOrForAsLongAsItIsTold) {
  absl::Mutex mu;
  bool done = false;
  const absl::Condition is_done(&done);
  std::optional<std::jthread> other;

  absl::MutexLock lock(&mu);
  EXPECT_FALSE(await_for(mu, is_done, absl::Milliseconds(1)));
  other.emplace([&] {
    absl::MutexLock lock(&mu);
    done = true;
  });

  EXPECT_TRUE(await_for(mu, is_done, absl::InfiniteDuration()));
  EXPECT_TRUE(await_for(mu, is_done, absl::ZeroDuration()));
}

TEST(DeadlineTimer, RingsForWhatComesWhileItsThreadWaitsForNothingOrForLonger) {
  DeadlineTimer timer;
  auto ring = [&] {
    absl::Notification rung;
    const auto alarm = timer.after(absl::Milliseconds(1), [&] { rung.Notify(); });
    return rung.WaitForNotificationWithTimeout(absl::Seconds(30));
  };

  ASSERT_TRUE(ring());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // its thread waits for nothing then, most likely
  EXPECT_TRUE(ring());

  const auto late = timer.after(absl::Hours(1), [] {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(ring());
}

TEST(DeadlineTimer, CallsBackInTheOrderOfTheTimes) {
  std::vector<int> order;
  absl::Notification last;

  DeadlineTimer timer;
  auto second = timer.after(absl::Milliseconds(20), [&] {
    order.push_back(2);
    last.Notify();
  });
  auto first = timer.after(absl::Milliseconds(1), [&] { order.push_back(1); });
  last.WaitForNotification();

  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(DeadlineTimer, DoesNotCallBackOnceTheAlarmIsGone) {
  bool called = false;
  absl::Notification later;

  DeadlineTimer timer;
  {
    auto alarm = timer.after(absl::Milliseconds(5), [&] { called = true; });
  }
  auto after_it = timer.after(absl::Milliseconds(10), [&] { later.Notify(); });
  later.WaitForNotification();

  EXPECT_FALSE(called);
}

TEST(DeadlineTimer, LetsACallbackEndItsOwnAlarm) {
  absl::Notification ended;
  std::optional<DeadlineTimer::Alarm> alarm;
  absl::Notification made;

  DeadlineTimer timer;
  alarm.emplace(timer.after(absl::Milliseconds(1), [&] {
    made.WaitForNotification();
    alarm.reset();
    ended.Notify();
  }));
  made.Notify();

  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(60)));
}

}  // namespace
}  // namespace muster

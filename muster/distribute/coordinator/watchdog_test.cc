#include "muster/distribute/coordinator/watchdog.h"

#include <absl/synchronization/notification.h>
#include <absl/time/time.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

#include "muster/base/log.h"
#include "muster/base/status.h"

namespace muster {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr const char* kOurs = "MUSTER_COORDINATOR_WATCHDOG_TIMEOUT";
constexpr const char* kTensorFlows = "TF_CLUSTER_COORDINATOR_WATCH_DOG_TIMEOUT";
const absl::Duration kGenerous = absl::Seconds(60);

struct WatchdogEnvironment : testing::Test {
  WatchdogEnvironment() { clear(); }
  ~WatchdogEnvironment() override { clear(); }

  static void clear() {
    unsetenv(kOurs);
    unsetenv(kTensorFlows);
  }
};

std::string written_stacks() {
  std::FILE* file = std::tmpfile();
  write_all_stacks(fileno(file));
  std::fseek(file, 0, SEEK_END);
  std::string text(std::ftell(file), '\0');
  std::rewind(file);
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

// A thread that waits, with this name. It waits in a function that the thread sanitizer knows, which in all others
// holds signals back.
class Sleeper {
 public:
  explicit Sleeper(const char* name, bool blocks_signals = false)
      : thread_([this, name, blocks_signals](const std::stop_token& stop) {
          pthread_setname_np(pthread_self(), name);
          sigset_t all;
          sigfillset(&all);
          if (blocks_signals) pthread_sigmask(SIG_BLOCK, &all, nullptr);
          started_.Notify();
          std::mutex mu;
          std::unique_lock lock(mu);
          std::condition_variable_any().wait(lock, stop, [] { return false; });
          if (blocks_signals) pthread_sigmask(SIG_UNBLOCK, &all, nullptr);
        }) {
    started_.WaitForNotification();
  }

 private:
  absl::Notification started_;
  std::jthread thread_;
};

TEST(Watchdog, CallsOnSilenceAgainAndAgain) {
  absl::Notification thrice;
  std::atomic<int> calls = 0;

  const Watchdog watchdog({.timeout = 1ms, .on_silence = [&] {
                             if (++calls == 3) thrice.Notify();
                           }});

  EXPECT_TRUE(watchdog.watching());
  EXPECT_TRUE(thrice.WaitForNotificationWithTimeout(kGenerous));
}

TEST(Watchdog, IsQuietWhileSomebodyIsAlive) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kTimeout = 20ms;
  std::atomic<int> calls = 0;
  const auto start = Clock::now();
  Clock::time_point last = start;
  Clock::duration longest_gap{};
  int calls_meanwhile;
  {
    Watchdog watchdog({.timeout = kTimeout, .on_silence = [&] { ++calls; }});
    while (last < start + 3 * kTimeout) {
      watchdog.alive();
      const auto now = Clock::now();
      longest_gap = std::max(longest_gap, now - last);
      last = now;
      std::this_thread::yield();
    }
    watchdog.stop();
    calls_meanwhile = calls;
    longest_gap = std::max(longest_gap, Clock::now() - last);
  }

  // A busy machine may have held this thread up for so long that the call was right.
  if (longest_gap < kTimeout) {
    EXPECT_EQ(calls_meanwhile, 0);
  }
}

TEST(Watchdog, StopWaitsForTheCallThatRunsAndIsTheLast) {
  absl::Notification called, go_on;
  std::atomic<int> calls = 0;
  std::atomic<bool> ended = false;
  Watchdog watchdog({.timeout = 1ms, .on_silence = [&] {
                       ++calls;
                       if (!called.HasBeenNotified()) called.Notify();
                       go_on.WaitForNotification();
                       ended = true;
                     }});
  ASSERT_TRUE(called.WaitForNotificationWithTimeout(kGenerous));
  bool ended_before_stop_returned = false;
  std::jthread stopper([&] {
    watchdog.stop();
    ended_before_stop_returned = ended;
  });

  go_on.Notify();
  stopper.join();

  EXPECT_TRUE(ended_before_stop_returned);
  const int calls_at_stop = calls;
  watchdog.stop();
  EXPECT_EQ(calls, calls_at_stop);
}

TEST(Watchdog, MayBeStoppedByItsOwnCall) {
  absl::Notification stopped;
  Watchdog* self = nullptr;
  absl::Notification constructed;
  Watchdog watchdog({.timeout = 1ms, .on_silence = [&] {
                       constructed.WaitForNotification();
                       self->stop();
                       stopped.Notify();  // A second call would abort here.
                     }});
  self = &watchdog;
  constructed.Notify();

  EXPECT_TRUE(stopped.WaitForNotificationWithTimeout(kGenerous));
}

TEST(Watchdog, EndsAtOnceWhenItIsDestroyed) {
  const Watchdog watchdog({.timeout = 1h, .on_silence = [] { ADD_FAILURE(); }});
}

TEST(Watchdog, WritesAllStacksByDefault) {
  testing::internal::CaptureStderr();
  {
    const Sleeper sleeper("by-default");
    const LogCapture log;
    const Watchdog watchdog({.timeout = 1ms});

    while (!log.contains("no function has ended for 1ms")) std::this_thread::yield();
  }

  const std::string output = testing::internal::GetCapturedStderr();
  EXPECT_THAT(output, HasSubstr("(by-default):"));
  EXPECT_THAT(output, HasSubstr("(watchdog):"));
}

TEST(WriteAllStacks, NamesEveryThreadWithItsStack) {
  const Sleeper one("sleeper-one"), two("sleeper-two");

  const std::string text = written_stacks();

  EXPECT_THAT(text, HasSubstr("(sleeper-one):\n"));
  EXPECT_THAT(text, HasSubstr("(sleeper-two):\n"));
  EXPECT_GE(std::ranges::count(text, '\n'), 6);
  EXPECT_THAT(text, HasSubstr("[0x"));
}

TEST(WriteAllStacks, GivesTheSignalBackAlsoWhenAThreadBlocksIt) {
  struct sigaction before {};
  {
    const Sleeper deaf("deaf", /*blocks_signals=*/true);

    EXPECT_THAT(written_stacks(), HasSubstr("(deaf): does not answer\n"));
  }  // Unblocks the signal, which must not be pending any more: it would end the process.

  sigaction(SIGRTMAX - 2, nullptr, &before);
  EXPECT_EQ(before.sa_handler, SIG_DFL);
}

TEST_F(WatchdogEnvironment, HasNoTimeoutWhenNothingIsSet) {
  EXPECT_EQ(watchdog_timeout_from_environment(), std::nullopt);
  EXPECT_FALSE(Watchdog().watching());
}

TEST_F(WatchdogEnvironment, TakesTensorFlowsVariable) {
  setenv(kTensorFlows, "3", 1);

  EXPECT_EQ(watchdog_timeout_from_environment(), 3s);
}

TEST_F(WatchdogEnvironment, PrefersOurVariableAndTakesFractions) {
  setenv(kTensorFlows, "3", 1);
  setenv(kOurs, "0.25", 1);

  EXPECT_EQ(watchdog_timeout_from_environment(), 250ms);
}

TEST_F(WatchdogEnvironment, IsOffForATimeoutThatIsNotPositive) {
  setenv(kTensorFlows, "-1", 1);

  EXPECT_EQ(watchdog_timeout_from_environment(), std::nullopt);
  EXPECT_FALSE(Watchdog({.timeout = 0ms}).watching());
}

TEST_F(WatchdogEnvironment, IsOverruledByTheOption) {
  setenv(kOurs, "garbage", 1);

  EXPECT_TRUE(Watchdog({.timeout = 1h}).watching());
}

TEST_F(WatchdogEnvironment, RefusesWhatIsNoNumber) {
  for (const char* value : {"soon", "3s", "nan", "inf", "1e300"}) {
    setenv(kOurs, value, 1);
    try {
      watchdog_timeout_from_environment();
      FAIL() << value << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(error.what(), HasSubstr(kOurs));
      EXPECT_THAT(error.what(), HasSubstr(value));
    }
  }
}

}  // namespace
}  // namespace muster

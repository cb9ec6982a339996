#include "muster/rpc/calls/network_readers.h"

#include <absl/synchronization/notification.h>
#include <grpcpp/alarm.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <list>

#include "muster/base/blocking.h"
#include "muster/base/test_wait.h"

namespace muster {
namespace {

using testing_support::eventually;

// A queue with readers, into which a test puts what is to happen.
class NetworkReadersTest : public ::testing::Test {
 protected:
  ~NetworkReadersTest() override { stop(); }

  void start(NetworkReadersOptions options = {}) { readers_ = std::make_unique<NetworkReaders>(queue_, options); }
  // On a machine on which it takes so long to take an event that was there.
  void start_slow(std::chrono::microseconds time) {
    auto next = [this, time](void** tag, bool* ok, std::chrono::nanoseconds* waited) {
      *waited = time;
      return queue_.Next(tag, ok);
    };
    readers_ = std::make_unique<NetworkReaders>(next, NetworkReadersOptions{});
  }
  void stop() {
    if (!readers_) return;
    queue_.Shutdown();
    readers_.reset();
  }

  void happen(std::function<void()> what) {
    Event& event = events_.emplace_back(std::move(what));
    event.alarm.Set(&queue_, gpr_now(GPR_CLOCK_MONOTONIC), event.tag());
  }

  // Something happens that blocks its reader until it may go on.
  void block(absl::Notification& go, std::atomic<int>& begun, std::atomic<int>& ended) {
    happen([&] {
      ++begun;
      about_to_block();
      go.WaitForNotification();
      ++ended;
    });
  }

  void expect_turns_given_away_where_something_comes() {
    std::atomic<int> handled = 0, in_a_row = 0;  // on the same thread
    std::atomic<std::thread::id> last;
    auto work = [&] {
      in_a_row = last.exchange(std::this_thread::get_id()) == std::this_thread::get_id() ? in_a_row + 1 : 0;
      about_to_take_long();
      ++handled;
    };
    int asked = 0;
    EXPECT_TRUE(eventually([&] {
      happen(work);
      ++asked;
      return eventually([&] { return handled == asked; }) && in_a_row == 20;
    })) << "nothing else comes";

    // It takes as long as another thread needs to wake up, or nobody could have come meanwhile.
    auto long_work = [&] {
      work();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    EXPECT_TRUE(eventually([&] {
      std::atomic<bool> there = false;
      for (int i = 0; i < 4; ++i) happen(long_work);
      happen([&] { there = true; });
      asked += 4;
      return eventually([&] { return there.load() && handled == asked; }) && in_a_row < 4;
    })) << "others come";
  }

  std::unique_ptr<NetworkReaders> readers_;

 private:
  struct Event final : NetworkEvent {
    explicit Event(std::function<void()> then) : then(std::move(then)) {}
    void happened(bool) override { then(); }
    std::function<void()> then;
    grpc::Alarm alarm;
  };

  grpc::CompletionQueue queue_;
  std::list<Event> events_;
};

TEST_F(NetworkReadersTest, HandleWhatHappensOneAfterTheOtherOnOneThread) {
  start();
  std::atomic<int> handled = 0, others = 0;
  std::thread::id first;
  for (int i = 0; i < 100; ++i) {
    happen([&] {
      if (handled++ == 0) first = std::this_thread::get_id();
      if (std::this_thread::get_id() != first) ++others;
    });
    ASSERT_TRUE(eventually([&] { return handled == i + 1; }));
  }
  EXPECT_EQ(others, 0);
}

TEST_F(NetworkReadersTest, LetAnotherOneReadWhenOneIsAboutToBlock) {
  start();
  absl::Notification other;
  std::atomic<bool> ended = false;
  happen([&] {
    about_to_block();
    other.WaitForNotification();
    ended = true;
  });
  happen([&] { other.Notify(); });
  EXPECT_TRUE(eventually([&] { return ended.load(); }));
}

TEST_F(NetworkReadersTest, TakeTheTurnFromOneThatBlocksAndHasNotSaidSo) {
  start();
  absl::Notification other;
  std::atomic<bool> ended = false;
  happen([&] {
    other.WaitForNotification();
    ended = true;
  });
  happen([&] { other.Notify(); });
  EXPECT_TRUE(eventually([&] { return ended.load(); }));
}

TEST_F(NetworkReadersTest, AreAsManyAsBlockAtTheSameTimeUpToTheLimit) {
  constexpr int kMost = 8;
  start({.max_threads = kMost});
  absl::Notification go;
  std::atomic<int> begun = 0, ended = 0;
  for (int i = 0; i < 2 * kMost; ++i) block(go, begun, ended);
  EXPECT_TRUE(eventually([&] { return begun == kMost; }));
  EXPECT_EQ(readers_->threads(), kMost);
  go.Notify();
  EXPECT_TRUE(eventually([&] { return ended == 2 * kMost; }));
  EXPECT_EQ(readers_->threads(), kMost);
}

TEST_F(NetworkReadersTest, LeaveWhenTheyAreNotNeededForAWhile) {
  constexpr int kMost = 8;
  start({.max_threads = kMost, .threads_stay = absl::Milliseconds(1)});
  for (int round = 0; round < 3; ++round) {
    absl::Notification go;
    std::atomic<int> begun = 0, ended = 0;
    for (int i = 0; i < kMost; ++i) block(go, begun, ended);
    EXPECT_TRUE(eventually([&] { return begun == kMost; }));
    go.Notify();
    EXPECT_TRUE(eventually([&] { return ended == kMost; }));
    EXPECT_TRUE(eventually([&] { return readers_->threads() <= 2; })) << "one reads, one looks after it";
  }
}

TEST_F(NetworkReadersTest, AreMoreWhileEventsWaitForThem) {
  start({.most_turns = 3});
  EXPECT_EQ(readers_->turns(), 1);
  std::atomic<int> handled = 0, most = 0;
  auto handle = [&handled, &most, readers = readers_.get()] {
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < std::chrono::microseconds(50)) continue;
    most = std::max(most.load(), readers->turns());
    ++handled;
  };
  int asked = 0;
  EXPECT_TRUE(eventually([&] {
    for (int i = 0; i < 100; ++i, ++asked) happen(handle);
    return most == 3;
  }));
  EXPECT_TRUE(eventually([&] { return handled == asked; }));

  // One is enough for an event now and then.
  EXPECT_TRUE(eventually([&] {
    happen(handle);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return readers_->turns() == 1;
  }));
}

TEST_F(NetworkReadersTest, GiveTheirTurnAwayForLongWorkOnlyWhereSomethingComesMeanwhile) {
  start();
  expect_turns_given_away_where_something_comes();
}

TEST_F(NetworkReadersTest, DoSoAlsoWhereTheKernelIsSlowToHandOutWhatWasThere) {
  start_slow(std::chrono::microseconds(10));
  expect_turns_given_away_where_something_comes();
}

TEST_F(NetworkReadersTest, RestWhileNothingHappensAndStillPassTheTurnOfOneThatBlocks) {
  start({.look_every = absl::Milliseconds(1)});
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(eventually([&] { return readers_->resting(); })) << round;

    absl::Notification other;
    std::atomic<bool> ended = false;
    happen([&] {
      other.WaitForNotification();  // and has not said so
      ended = true;
    });
    happen([&] { other.Notify(); });
    EXPECT_TRUE(eventually([&] { return ended.load(); })) << round;
  }
}

TEST_F(NetworkReadersTest, LookForWhoeverWantsToBeCalledNowAndThenAndDoNotRest) {
  std::atomic<int> looks = 0;
  start({.look = [&] { ++looks; }, .look_every = absl::Milliseconds(1)});
  EXPECT_TRUE(eventually([&] { return looks > 40; }));
  EXPECT_FALSE(readers_->resting());
  stop();  // it looks until then
}

TEST_F(NetworkReadersTest, EmptyTheQueueBeforeTheyGo) {
  start({.most_turns = 2});
  std::atomic<int> handled = 0;
  for (int i = 0; i < 1'000; ++i) {
    happen([&] {
      if (++handled % 7 == 0) about_to_block();
    });
  }
  stop();
  EXPECT_EQ(handled, 1'000);
}

}  // namespace
}  // namespace muster

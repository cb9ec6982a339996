#include "muster/base/elastic_pool.h"

#include <absl/synchronization/blocking_counter.h>
#include <absl/synchronization/notification.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>

namespace muster {
namespace {

TEST(ElasticPool, RunsEverythingBeforeItIsDestroyed) {
  std::atomic<int> ran = 0;

  {
    ElasticPool pool("pool", 2);
    for (int i = 0; i < 100; ++i) pool.submit([&] { ++ran; });
  }

  EXPECT_EQ(ran, 100);
}

TEST(ElasticPool, LetsATaskWaitForALaterOne) {
  constexpr int kChain = 20;
  std::vector<absl::Notification> done(kChain + 1);

  ElasticPool pool("pool");
  for (int i = 0; i < kChain; ++i) {
    pool.submit([&, i] {
      done[i + 1].WaitForNotification();
      done[i].Notify();
    });
  }
  done[kChain].Notify();
  done[0].WaitForNotification();

  SUCCEED();
}

TEST(ElasticPool, RunsWhatItsTasksSubmitWhileItIsDestroyed) {
  std::atomic<int> ran = 0;

  {
    ElasticPool pool("pool", 2);
    pool.submit([&] {
      for (int i = 0; i < 10; ++i) {
        pool.submit([&] {
          pool.submit([&] { ++ran; });
          ++ran;
        });
      }
    });
  }

  EXPECT_EQ(ran, 20);
}

TEST(ElasticPool, RefusesWhatIsOverItsLimitWhenOnlyAsked) {
  absl::Notification go_on, ran;
  ElasticPool pool("pool", 1);
  ASSERT_TRUE(pool.try_submit([&] { go_on.WaitForNotification(); }));

  EXPECT_FALSE(pool.try_submit([] { FAIL() << "there is no thread for it"; }));

  go_on.Notify();
  while (!pool.try_submit([&] { ran.Notify(); })) std::this_thread::yield();
  ran.WaitForNotification();
}

TEST(ElasticPool, QueuesWhatIsOverItsLimit) {
  std::atomic<int> now = 0, most = 0;
  absl::BlockingCounter left(50);

  ElasticPool pool("pool", 3);
  for (int i = 0; i < 50; ++i) {
    pool.submit([&] {
      int running = ++now;
      for (int seen = most; running > seen && !most.compare_exchange_weak(seen, running);) {
      }
      --now;
      left.DecrementCount();
    });
  }
  left.Wait();

  EXPECT_LE(most, 3);
}

TEST(ElasticPool, EndsThreadsThatHaveNothingToDo) {
  std::atomic<int> ran = 0;

  ElasticPool pool("pool", 64, absl::Milliseconds(1));
  for (int round = 0; round < 3; ++round) {
    absl::Notification go;
    for (int i = 0; i < 20; ++i) {
      pool.submit([&] {
        go.WaitForNotification();
        ++ran;
      });
    }
    EXPECT_EQ(pool.threads(), 20);
    go.Notify();
    while (pool.threads() > 0) std::this_thread::yield();
    EXPECT_EQ(ran, 20 * (round + 1));
  }
}

TEST(ElasticPool, RunsWhatIsSubmittedWhileItsThreadsEnd) {
  std::atomic<int> ran = 0;

  {
    ElasticPool pool("pool", 4, absl::Microseconds(20));
    for (int i = 0; i < 20'000; ++i) pool.submit([&] { ++ran; });
  }

  EXPECT_EQ(ran, 20'000);
}

TEST(ElasticPool, EndsWhatATaskOwnsWithTheTask) {
  auto owned = std::make_shared<int>(1);
  std::weak_ptr<int> watch = owned;

  {
    ElasticPool pool("pool");
    pool.submit([owned = std::move(owned)] {});
  }

  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace muster

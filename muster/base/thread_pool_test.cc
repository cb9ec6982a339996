#include "muster/base/thread_pool.h"

#include <absl/synchronization/barrier.h>
#include <absl/synchronization/notification.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <string>
#include <vector>

namespace muster {
namespace {

TEST(ThreadPool, RunsEverythingBeforeItIsDestroyed) {
  std::atomic<int> ran = 0;

  {
    ThreadPool pool("pool", 2);
    for (int i = 0; i < 100; ++i) pool.submit([&] { ++ran; });
  }

  EXPECT_EQ(ran, 100);
}

TEST(ThreadPool, RunsAsManyTasksAtOnceAsItHasThreads) {
  absl::Notification met[2];

  ThreadPool pool("pool", 2);
  pool.submit([&] {
    met[0].Notify();
    met[1].WaitForNotification();
  });
  pool.submit([&] {
    met[1].Notify();
    met[0].WaitForNotification();
  });
  met[0].WaitForNotification();
  met[1].WaitForNotification();

  EXPECT_EQ(pool.size(), 2);
}

TEST(ThreadPool, StartsTasksInTheOrderOfSubmission) {
  std::vector<int> order;

  {
    ThreadPool pool("pool", 1);
    for (int i = 0; i < 4; ++i) pool.submit([&, i] { order.push_back(i); });
  }

  EXPECT_THAT(order, testing::ElementsAre(0, 1, 2, 3));
}

TEST(ThreadPool, RunsWhatItsTasksSubmitWhileItIsBeingDestroyed) {
  std::atomic<int> ran = 0;

  {
    ThreadPool pool("pool", 2);
    pool.submit([&] { pool.submit([&] { pool.submit([&] { ++ran; }); }); });
  }

  EXPECT_EQ(ran, 1);
}

TEST(ThreadPool, NamesItsThreads) {
  char name[16] = {};

  {
    ThreadPool pool("a-rather-long-name", 1);
    pool.submit([&] { pthread_getname_np(pthread_self(), name, sizeof(name)); });
  }

  EXPECT_STREQ(name, "a-rather-long-0");
}

}  // namespace
}  // namespace muster

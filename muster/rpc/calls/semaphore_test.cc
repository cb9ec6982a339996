#include "muster/rpc/calls/semaphore.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "muster/base/test_wait.h"

namespace muster {
namespace {

using testing_support::eventually;

// In each round every thread takes one. If a wake-up is lost, one sleeps although there is one left to take, and
// nothing else comes that could wake it.
TEST(Semaphore, LetsAsManyTakeAsWereReleasedHoweverTheyMeet) {
  constexpr int kThreads = 3, kRounds = 2'000;
  // Is left to the threads if one hangs: the test is to fail, then, and not to hang as well.
  struct Shared {
    Semaphore semaphore;
    std::atomic<int> round = 0, taken = 0, ended = 0;
  };
  auto* const shared = new Shared;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([shared] {
      for (int round = 1; round <= kRounds; ++round) {
        while (shared->round < round) std::this_thread::yield();
        shared->semaphore.acquire();
        ++shared->taken;
      }
      ++shared->ended;
    });
  }
  bool all = true;
  for (int round = 1; all && round <= kRounds; ++round) {
    shared->round = round;
    for (int i = 0; i < kThreads; ++i) {
      shared->semaphore.release();
      for (int pause = round % 64; pause > 0; --pause) (void)shared->taken.load();
    }
    all = shared->taken == round * kThreads || eventually([&] { return shared->taken == round * kThreads; });
    EXPECT_TRUE(all) << "a thread sleeps in round " << round << " of " << kRounds;
  }
  if (!all) {
    for (auto& thread : threads) thread.detach();
    return;
  }
  for (auto& thread : threads) thread.join();
  delete shared;
}

}  // namespace
}  // namespace muster

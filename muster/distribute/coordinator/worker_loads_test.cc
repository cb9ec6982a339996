#include "muster/distribute/coordinator/worker_loads.h"

#include <gtest/gtest.h>

#include <thread>

namespace muster {
namespace {

TEST(WorkerLoads, TakeNobodyWhoIsNotThere) {
  WorkerLoads loads(2, 1);
  EXPECT_EQ(loads.take(), std::nullopt);
  EXPECT_FALSE(loads.take(1));
  loads.found(1, 1);
  EXPECT_EQ(loads.take(), 1);
  EXPECT_EQ(loads.take(), std::nullopt);
  loads.give_back(1, /*was_long=*/true);
  loads.lost(1, 1);
  EXPECT_EQ(loads.take(), std::nullopt);
}

TEST(WorkerLoads, AreNotMistakenByWhoTellsLate) {
  WorkerLoads loads(1, 1);
  loads.lost(0, 1);  // before it was said that it was found
  loads.found(0, 1);
  EXPECT_EQ(loads.take(), std::nullopt);
  loads.found(0, 2);
  loads.lost(0, 1);
  EXPECT_EQ(loads.take(), 0);
}

TEST(WorkerLoads, TakeTheOneWithTheLeastUnderWayThatHasWaitedLongest) {
  WorkerLoads loads(3, 1);
  for (size_t worker : {2, 0, 1}) loads.found(worker, 1);
  EXPECT_EQ(loads.take(), 2);
  EXPECT_EQ(loads.take(), 0);
  EXPECT_EQ(loads.take(), 1);
  for (size_t worker : {1, 2}) loads.give_back(worker, /*was_long=*/true);
  EXPECT_EQ(loads.take(), 1);
  EXPECT_EQ(loads.take(), 2);
  EXPECT_EQ(loads.take(), std::nullopt);
  EXPECT_EQ(loads.under_way(), 3);
}

TEST(WorkerLoads, TakeTheWarmOneAgainAndTheOthersInTheirOrder) {
  WorkerLoads loads(3, 1);
  for (size_t worker : {0, 1, 2}) loads.found(worker, 1);
  EXPECT_EQ(loads.take(), 0);

  loads.give_back(0, /*was_long=*/true, /*warm=*/true);

  EXPECT_EQ(loads.take(), 0);
  EXPECT_EQ(loads.take(), 1);
  loads.give_back(0, /*was_long=*/true, /*warm=*/false);
  EXPECT_EQ(loads.take(), 2);
  EXPECT_EQ(loads.take(), 0);
}

TEST(WorkerLoads, GiveASecondMessageOnlyWhenNobodyIsIdleAndTheFirstIsNotLong) {
  WorkerLoads loads(2, 2);
  loads.found(0, 1);
  loads.found(1, 1);
  EXPECT_EQ(loads.take(), 0);
  EXPECT_EQ(loads.take(), 1);
  EXPECT_EQ(loads.take(), std::nullopt) << "nobody knows yet that one of them is short";
  loads.count_short(1);
  EXPECT_EQ(loads.take(), 1);
  loads.count_short(1);
  EXPECT_EQ(loads.take(), std::nullopt);
  EXPECT_FALSE(loads.take(0));
  EXPECT_EQ(loads.under_way(1), 2);
  loads.give_back(0, /*was_long=*/true);
  EXPECT_EQ(loads.take(), 0);
}

TEST(WorkerLoads, GiveNothingMoreUntilTheLongOneIsBack) {
  WorkerLoads loads(1, 3);
  loads.found(0, 1);
  EXPECT_EQ(loads.take(), 0);
  loads.count_short(0);
  EXPECT_EQ(loads.take(), 0);
  loads.give_back(0, /*was_long=*/false);
  EXPECT_EQ(loads.take(), std::nullopt) << "the one that is still under way is the long one";
  loads.give_back(0, /*was_long=*/true);
  EXPECT_EQ(loads.take(), 0);
}

TEST(WorkerLoads, TakeOneThatIsNamed) {
  WorkerLoads loads(2, 1);
  loads.found(0, 1);
  loads.found(1, 1);
  EXPECT_TRUE(loads.take(1));
  EXPECT_FALSE(loads.take(1));
  EXPECT_EQ(loads.take(), 0);
}

TEST(WorkerLoads, NeverGiveAWorkerMoreThanItMayHave) {
  constexpr int kWorkers = 4, kMost = 2;
  WorkerLoads loads(kWorkers, kMost);
  std::vector<std::atomic<int>> has(kWorkers);
  std::atomic<int> wrong = 0;
  for (size_t worker = 0; worker < kWorkers; ++worker) loads.found(worker, 1);
  auto work = [&] {
    for (int i = 0; i < 20'000; ++i) {
      const std::optional<size_t> worker = loads.take();
      if (!worker) continue;
      if (++has[*worker] > kMost) ++wrong;
      const bool is_long = i % 3 == 0;
      if (!is_long) loads.count_short(*worker);
      --has[*worker];
      loads.give_back(*worker, is_long);
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 6; ++i) threads.emplace_back(work);
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(loads.under_way(), 0);
}

}  // namespace
}  // namespace muster

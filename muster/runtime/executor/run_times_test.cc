#include "muster/runtime/executor/run_times.h"

#include <gtest/gtest.h>

#include <sstream>
#include <thread>
#include <vector>

namespace muster {
namespace {

using std::chrono::milliseconds;

TEST(TimeSpent, CountsThoseThatAreStillAtIt) {
  const TimeSpent::Clock::time_point start = TimeSpent::Clock::now();
  auto at = [&](int ms) { return start + milliseconds(ms); };
  TimeSpent spent;
  EXPECT_EQ(spent.total(at(0)).count(), 0);

  spent.begin(at(10));
  EXPECT_EQ(spent.total(at(15)), milliseconds(5));
  spent.begin(at(20));
  EXPECT_EQ(spent.total(at(30)), milliseconds(30)) << "two of them";
  spent.end(at(30));
  EXPECT_EQ(spent.total(at(40)), milliseconds(40));
  spent.end(at(40));

  EXPECT_EQ(spent.total(at(40)), milliseconds(40));
  EXPECT_EQ(spent.total(at(90)), milliseconds(40)) << "nobody is at it any more";
}

TEST(TimeSpent, OfManyThreadsStopsWithTheLastOfThem) {
  TimeSpent spent;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int k = 0; k < 1'000; ++k) {
          const AddTime some(&spent);
        }
      });
    }
  }

  EXPECT_GT(spent.total().count(), 0);
  EXPECT_EQ(spent.total(), spent.total()) << "it stands still";
}

TEST(MachineTime, IsWhatTheSystemSaysOfAllCores) {
  std::istringstream stat(
      "cpu  100 20 30 4000 500 6 7 0 0 0\n"
      "cpu0 50 10 15 2000 250 3 4 0 0 0\n"
      "cpu1 50 10 15 2000 250 3 3 0 0 0\n"
      "intr 1 2 3\n"
      "cpufreq 7\n");

  const MachineTime time = machine_time(stat, 100);

  EXPECT_EQ(time.cores, 2);
  EXPECT_DOUBLE_EQ(time.idle_seconds, 45);
}

TEST(MachineTime, IsNothingWhereTheSystemDoesNotSay) {
  std::istringstream nothing;

  EXPECT_EQ(machine_time(nothing, 100).cores, 0);
}

}  // namespace
}  // namespace muster

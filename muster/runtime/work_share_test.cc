#include "muster/runtime/work_share.h"

#include <gtest/gtest.h>

#include <ctime>
#include <vector>

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

void compute(std::clock_t ticks) {
  const std::clock_t begin = std::clock();  // of all threads, of which this is the only one that computes
  while (std::clock() - begin < ticks) {
  }
}

TEST(WorkShare, RestsForWhatWasComputed) {
  std::vector<nanoseconds> rests;
  WorkShare share(0.001, [&](nanoseconds time) { rests.push_back(time); });

  compute(CLOCKS_PER_SEC / 200);
  share.rest();

  ASSERT_EQ(rests.size(), 1u);
  EXPECT_GT(rests[0], milliseconds(100)) << "5 ms are a thousandth of 5 s, however long this thread was without a core";
}

TEST(WorkShare, CountsAWaitAsARest) {
  std::vector<nanoseconds> rests;
  WorkShare share(1, [&](nanoseconds time) { rests.push_back(time); });

  ::timespec time{.tv_sec = 0, .tv_nsec = 1'000'000};
  ::nanosleep(&time, nullptr);
  share.rest();

  EXPECT_TRUE(rests.empty());
}

}  // namespace
}  // namespace muster

#include "muster/runtime/executor/lane_team.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "muster/runtime/executor/core_share.h"

namespace muster {
namespace {

using ::testing::ElementsAre;

const at::Device kCpu(at::kCPU), kGpu(at::kCUDA, 0);

// How many threads libtorch takes in each lane, if whoever has made the team has six.
std::vector<int> threads_of(const std::vector<at::Device>& lanes) {
  std::vector<int> threads(lanes.size());
  std::thread([&] {
    use_cores(6);
    LaneTeam team(lanes);
    team.run([&](int lane) { threads[static_cast<size_t>(lane)] = at::get_num_threads(); });
  }).join();
  return threads;
}

TEST(LaneTeam, SharesOutItsThreadsAmongLanesOfCpus) {
  EXPECT_THAT(threads_of({kCpu, kCpu}), ElementsAre(3, 3));
  EXPECT_THAT(threads_of(std::vector<at::Device>(7, kCpu)), ::testing::Each(1));
}

TEST(LaneTeam, TakesNoThreadsFromLanesOfCpusForThoseOfGpus) {
  EXPECT_EQ(threads_of({kCpu, kGpu})[0], 6);
  EXPECT_EQ(threads_of({kGpu, kCpu, kGpu, kCpu})[3], 3);
}

}  // namespace
}  // namespace muster

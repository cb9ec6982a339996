#include "muster/cluster/machine_shares.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>

#include "muster/cluster/in_process_cluster.h"
#include "muster/runtime/executor/core_share.h"

namespace muster {
namespace {

class CoreShares : public ::testing::Test {
 protected:
  CoreShares() { use_cores(8); }
  ~CoreShares() override { use_cores(before_); }

  const int before_ = at::get_num_threads();
};

TEST_F(CoreShares, AreEqualAmongTheTasksOfAJobOnOneMachine) {
  const ClusterSpec cluster({{"worker", {"one:1", "one:2", "two:1", "one:3"}}, {"ps", {"one:4", "two:2"}}});

  EXPECT_EQ(share_of_cores(cluster, {"worker", 0}), 2);
  EXPECT_EQ(share_of_cores(cluster, {"worker", 3}), 2);
  EXPECT_EQ(share_of_cores(cluster, {"worker", 2}), std::nullopt) << "the only one there";
  EXPECT_EQ(share_of_cores(cluster, {"ps", 0}), std::nullopt);
}

TEST_F(CoreShares, CountTheChiefWhereItComputes) {
  const ClusterSpec in_step({{"chief", {"one:1"}}, {"worker", {"one:2", "two:1"}}});
  const ClusterSpec with_ps({{"chief", {"one:1"}}, {"worker", {"one:2", "two:1"}}, {"ps", {"two:2"}}});

  EXPECT_EQ(share_of_cores(in_step, {"chief", 0}), 4);
  EXPECT_EQ(share_of_cores(in_step, {"worker", 0}), 4);
  EXPECT_EQ(share_of_cores(in_step, {"worker", 1}), std::nullopt);
  EXPECT_EQ(share_of_cores(with_ps, {"chief", 0}), std::nullopt);
  EXPECT_EQ(share_of_cores(with_ps, {"worker", 0}), std::nullopt);
}

TEST(MachineShares, TellTheTasksOfAMachineApart) {
  const ClusterSpec cluster({{"worker", {"one:1", "two:1", "one:2"}}, {"ps", {"one:3"}}});
  const ClusterSpec in_step({{"chief", {"one:1"}}, {"worker", {"one:2", "one:3"}}});

  EXPECT_EQ(share_of_machine(cluster, {"worker", 0}), (GpuShare{.place = 0, .tasks = 2}));
  EXPECT_EQ(share_of_machine(cluster, {"worker", 2}), (GpuShare{.place = 1, .tasks = 2}));
  EXPECT_EQ(share_of_machine(cluster, {"worker", 1}), std::nullopt) << "the only one there";
  EXPECT_EQ(share_of_machine(cluster, {"worker", 7}), std::nullopt) << "not in the cluster";
  EXPECT_EQ(share_of_machine(in_step, {"chief", 0}), (GpuShare{.place = 0, .tasks = 3}));
  EXPECT_EQ(share_of_machine(in_step, {"worker", 1}), (GpuShare{.place = 2, .tasks = 3}));
}

TEST_F(CoreShares, AreAtLeastOneCore) {
  const ClusterSpec cluster({{"worker", std::vector<std::string>{"one:1", "one:2", "one:3", "one:4", "one:5", "one:6",
                                                                 "one:7", "one:8", "one:9"}}});

  EXPECT_EQ(share_of_cores(cluster, {"worker", 0}), 1);
}

TEST_F(CoreShares, OfTasksInOneProcessAreWhatTheirThreadsUse) {
  std::atomic<int> seen = 0;
  LocalWorkerOptions worker;
  worker.open_source = [&](const std::string&, Worker&) -> std::unique_ptr<ElementSource> {
    seen = at::get_num_threads();
    throw failed_precondition("enough seen");
  };
  InProcessCluster cluster({.workers = 4, .worker = worker});

  EXPECT_THROW(cluster.peers()->worker("/job:worker/replica:0/task:1")->open_source(1, ""), Error);

  EXPECT_EQ(seen, 2);
  EXPECT_EQ(at::get_num_threads(), 8) << "this thread is nobody's";
}

}  // namespace
}  // namespace muster

#include "muster/cluster/replica_device_setter.h"

#include <gtest/gtest.h>

#include "muster/base/status.h"
#include "muster/cluster/cluster.pb.h"

namespace muster {
namespace {

const TensorSpec kSmall{DType::kFloat, {1}}, kLarge{DType::kFloat, {100}};

TEST(ReplicaDeviceSetter, DealsVariablesOutInTurn) {
  ReplicaDeviceSetter setter({.ps_tasks = 2});

  std::vector<std::string> devices;
  for (int i = 0; i < 5; ++i) devices.push_back(setter.variable(kSmall));

  EXPECT_EQ(devices, (std::vector<std::string>{"/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:0", "/job:ps/task:1",
                                               "/job:ps/task:0"}));
  EXPECT_EQ(setter.worker_device(), "/job:worker");
}

TEST(ReplicaDeviceSetter, CanBalanceBytes) {
  ReplicaDeviceSetter setter({.ps_tasks = 2, .ps_strategy = balanced_by_bytes(2)});

  EXPECT_EQ(setter.variable(kLarge), "/job:ps/task:0");
  EXPECT_EQ(setter.variable(kSmall), "/job:ps/task:1");
  EXPECT_EQ(setter.variable(kSmall), "/job:ps/task:1");
}

TEST(ReplicaDeviceSetter, LetsTheMakerOfAVariableWin) {
  ReplicaDeviceSetter setter({.ps_tasks = 2, .worker_device = "/job:worker/task:7"});

  EXPECT_EQ(setter.variable(kSmall, "/device:CPU:1"), "/job:ps/task:0/device:CPU:1");
  EXPECT_EQ(setter.variable(kSmall, "/task:5"), "/job:ps/task:5");
  EXPECT_EQ(setter.variable(kSmall), "/job:ps/task:0") << "the one before took task 1 and did not use it";
  EXPECT_EQ(setter.variable(kSmall, "/job:ps/cpu:0"), "/job:ps/task:1/device:CPU:0");
  EXPECT_EQ(setter.other("/cpu:0"), "/job:worker/task:7/device:CPU:0");
  EXPECT_EQ(setter.other("/job:evaluator"), "/job:evaluator/task:7");
}

// device_setter_test.py: PS2TasksPinVariableToJob
TEST(ReplicaDeviceSetter, GivesATaskToTheJobOfTheServersOnly) {
  ReplicaDeviceSetter setter({.ps_tasks = 2});

  EXPECT_EQ(setter.variable(kSmall), "/job:ps/task:0");
  EXPECT_EQ(setter.variable(kSmall, "/job:moon"), "/job:moon");
  EXPECT_EQ(setter.variable(kSmall, "/job:ps"), "/job:ps/task:1");
  EXPECT_EQ(setter.worker_device(), "/job:worker");
}

// PS2TasksUseCpuForPS
TEST(ReplicaDeviceSetter, GivesNoTaskWithoutAJob) {
  ReplicaDeviceSetter setter({.ps_tasks = 2, .ps_device = "/cpu:0"});

  EXPECT_EQ(setter.variable(kSmall), "/device:CPU:0");
  EXPECT_EQ(setter.variable(kSmall, "/job:moon/cpu:0"), "/job:moon/device:CPU:0");
}

// PS2TasksNoMerging
TEST(ReplicaDeviceSetter, TakesADeviceAsItIsIfItDoesNotMerge) {
  ReplicaDeviceSetter setter({.ps_tasks = 2, .merge_devices = false});

  EXPECT_EQ(setter.variable(kSmall), "/job:ps/task:0");
  EXPECT_EQ(setter.variable(kSmall, "/job:ps"), "/job:ps");
  EXPECT_EQ(setter.variable(kSmall, "/cpu:0"), "/device:CPU:0");
  EXPECT_EQ(setter.variable(kSmall), "/job:ps/task:1");
  EXPECT_EQ(setter.other(), "/job:worker");
  EXPECT_EQ(setter.other("/task:3"), "/task:3");
}

// PS2TasksWithDevice, PS2TasksWithCPUConstraint
TEST(ReplicaDeviceSetter, CountsTheServersOfACluster) {
  const std::map<std::string, std::vector<std::string>> jobs{{"sun", {"sun0:2222", "sun1:2222", "sun2:2222"}},
                                                             {"moon", {"moon0:2222", "moon1:2222"}}};
  const ClusterSpec spec(jobs);
  for (const ClusterSpec& cluster :
       {spec, ClusterSpec::from_json(spec.to_json()), ClusterSpec::from_proto(spec.to_proto()),
        ClusterSpec::sparse({{"moon", {{0, "moon0:2222"}, {1, "moon1:2222"}}}})}) {
    ReplicaDeviceSetter setter(
        {.ps_tasks = 17, .ps_device = "/job:moon/cpu:0", .worker_device = "/job:sun/gpu:0", .cluster = cluster});

    EXPECT_EQ(setter.variable(kSmall), "/job:moon/task:0/device:CPU:0");
    EXPECT_EQ(setter.variable(kSmall), "/job:moon/task:1/device:CPU:0");
    EXPECT_EQ(setter.variable(kSmall), "/job:moon/task:0/device:CPU:0");
    EXPECT_EQ(setter.worker_device(), "/job:sun/device:GPU:0");
  }
}

TEST(ReplicaDeviceSetter, PutsItsTaskInThePlaceOfTheServersOwn) {
  ReplicaDeviceSetter setter({.ps_tasks = 2, .ps_device = "/job:ps/task:1"});

  EXPECT_EQ(setter.variable(kSmall), "/job:ps/task:0");
}

TEST(ReplicaDeviceSetter, DecidesNothingWithoutServers) {
  const ClusterSpec workers({{"worker", {"worker0:2222"}}}), idle({{"worker", {"worker0:2222"}}, {"ps", {}}});
  for (const ReplicaDeviceSetterOptions& options :
       std::vector<ReplicaDeviceSetterOptions>{{.worker_device = "/job:worker/task:7"},
                                               {.cluster = workers},
                                               {.cluster = idle},
                                               {.cluster = ClusterSpec()}}) {
    ReplicaDeviceSetter setter(options);

    EXPECT_EQ(setter.variable(kSmall), "");
    EXPECT_EQ(setter.variable(kSmall, "/cpu:0"), "/device:CPU:0");
    EXPECT_EQ(setter.worker_device(), "");
  }
}

TEST(ReplicaDeviceSetter, NeedsNeitherServersNorWorkersDevice) {
  ReplicaDeviceSetter anywhere({.ps_tasks = 2, .worker_device = ""}), together({.ps_tasks = 2, .ps_device = ""});

  EXPECT_EQ(anywhere.variable(kSmall), "/job:ps/task:0");
  EXPECT_EQ(anywhere.worker_device(), "");
  EXPECT_EQ(together.variable(kSmall), "/job:worker") << "without a ps job variables go where the rest goes";
}

TEST(ReplicaDeviceSetter, RefusesANegativeNumberBadDevicesAndABadStrategy) {
  EXPECT_THROW(ReplicaDeviceSetter({.ps_tasks = -1}), Error);
  EXPECT_THROW(ReplicaDeviceSetter({.ps_tasks = 1, .ps_device = "/job:ps/job:ps"}), Error);
  EXPECT_THROW(ReplicaDeviceSetter({.ps_tasks = 1, .worker_device = "worker"}), Error);
  EXPECT_THROW(round_robin(0), Error);
  ReplicaDeviceSetter setter({.ps_tasks = 2, .ps_strategy = [](const TensorSpec&) { return 2; }});
  EXPECT_THROW(setter.variable(kSmall), Error);
  EXPECT_THROW(setter.variable(kSmall, "/task:x"), Error);
}

}  // namespace
}  // namespace muster

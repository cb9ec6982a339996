#include "muster/session/replica_device_setter.h"

#include <gtest/gtest.h>

#include "muster/base/status.h"

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
  EXPECT_EQ(setter.variable(kSmall), "/job:ps/task:1") << "the one before was not dealt";
}

TEST(ReplicaDeviceSetter, KeepsVariablesWithTheWorkerWithoutServers) {
  ReplicaDeviceSetter setter({.worker_device = "/job:worker/task:7"});

  EXPECT_EQ(setter.variable(kSmall), "/job:worker/task:7");
}

TEST(ReplicaDeviceSetter, RefusesANegativeNumberAndABadStrategy) {
  EXPECT_THROW(ReplicaDeviceSetter({.ps_tasks = -1}), Error);
  EXPECT_THROW(round_robin(0), Error);
  ReplicaDeviceSetter setter({.ps_tasks = 2, .ps_strategy = [](const TensorSpec&) { return 2; }});
  EXPECT_THROW(setter.variable(kSmall), Error);
}

}  // namespace
}  // namespace muster

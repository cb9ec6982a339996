#include "muster/cluster/resolvers/cluster_resolver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/status.h"
#include "muster/cluster/test_environment.h"

namespace muster {
namespace {

using ::muster::testing_support::caught;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

// What a user has to write for a resolver of their own.
class FixedClusterResolver : public ClusterResolver {
 public:
  explicit FixedClusterResolver(ResolverTask own) : ClusterResolver(std::move(own)) {}
  ClusterSpec cluster_spec() const override {
    return {{"worker1", {"w10:2222"}}, {"worker2", {"w20:2222", "w21:2222", "w22:2222", "w23:2222", "w24:2222"}}};
  }
};

DeviceLister lists(std::vector<std::string> devices) {
  return [devices](const std::string&) { return devices; };
}

const std::vector<std::string> kMixed = {
    "/job:worker1/task:0/device:CPU:0",           "/job:worker1/task:0/device:TPU:0",
    "/job:worker1/task:0/device:TPU:1",           "/job:worker1/task:0/device:GPU:0",
    "/job:worker1/replica:0/task:0/device:GPU:1", "/job:worker2/task:1/device:TPU:2",
    "/job:worker2/task:2/device:TPU:3",           "/job:worker2/replica:0/task:3/device:GPU:2",
    "/job:worker2/task:4/device:GPU:3",
};

// Behaviour 107.
TEST(ClusterResolver, CountsAcceleratorsByType) {
  FixedClusterResolver gpus({.devices = lists({"/job:worker/task:0/device:GPU:0", "/job:worker/task:0/device:GPU:1",
                                               "/job:worker/task:0/device:GPU:2", "/job:worker/task:0/device:GPU:3"})});
  FixedClusterResolver mixed({.devices = lists(kMixed)});

  EXPECT_THAT(gpus.num_accelerators(), ElementsAre(Pair("GPU", 4)));
  EXPECT_THAT(mixed.num_accelerators(), ElementsAre(Pair("GPU", 4), Pair("TPU", 4)));
}

TEST(ClusterResolver, CountsTheAcceleratorsOfOneTask) {
  FixedClusterResolver resolver({.devices = lists(kMixed)});

  EXPECT_THAT(resolver.num_accelerators("worker1", 0), ElementsAre(Pair("GPU", 2), Pair("TPU", 2)));
  EXPECT_THAT(resolver.num_accelerators("worker2", 3), ElementsAre(Pair("GPU", 1)));
  EXPECT_THAT(resolver.num_accelerators("worker2", 0), IsEmpty());
}

TEST(ClusterResolver, CountsTheAcceleratorsOfItsOwnTaskFirst) {
  FixedClusterResolver resolver({.task_type = "worker2", .task_index = 3, .devices = lists(kMixed)});

  EXPECT_THAT(resolver.num_accelerators(), ElementsAre(Pair("GPU", 1)));
  EXPECT_THAT(resolver.num_accelerators("worker1", 0), ElementsAre(Pair("GPU", 2), Pair("TPU", 2)));
}

TEST(ClusterResolver, AsksTheTaskItselfForItsDevices) {
  std::vector<std::string> asked;
  FixedClusterResolver resolver({.task_type = "worker1",
                                 .task_index = 0,
                                 .rpc_layer = "grpc",
                                 .devices = [&](const std::string& master) -> std::vector<std::string> {
                                   asked.push_back(master);
                                   return {};
                                 }});

  (void)resolver.num_accelerators();
  (void)resolver.num_accelerators("worker2", 1);

  EXPECT_THAT(asked, ElementsAre("grpc://w10:2222", "grpc://w21:2222"));
}

TEST(ClusterResolver, KnowsNoAcceleratorsWithNobodyToAsk) {
  EXPECT_THAT(FixedClusterResolver(ResolverTask()).num_accelerators(), IsEmpty());
}

TEST(ClusterResolver, PassesOnWhatGoesWrongWithTheDevices) {
  FixedClusterResolver resolver(
      {.devices = [](const std::string&) -> std::vector<std::string> { throw unavailable("gone"); }});

  EXPECT_EQ(caught([&] { (void)resolver.num_accelerators(); }).code(), StatusCode::kUnavailable);
}

TEST(ClusterResolver, SaysWhichTaskItIsWhenItKnowsAllOfIt) {
  EXPECT_EQ(FixedClusterResolver({.task_type = "worker1", .task_index = 0}).task(), (TaskId{"worker1", 0}));
  EXPECT_EQ(FixedClusterResolver({.task_type = "worker1"}).task(), std::nullopt);
  EXPECT_EQ(FixedClusterResolver({.task_index = 0}).task(), std::nullopt);
}

TEST(ClusterResolver, FillsInTheMasterFromItsOwnTask) {
  FixedClusterResolver resolver({.task_type = "worker2", .task_index = 1, .rpc_layer = "grpc"});

  EXPECT_EQ(resolver.master(), "grpc://w21:2222");
  EXPECT_EQ(resolver.master({}, 2), "grpc://w22:2222");
  EXPECT_EQ(resolver.master("worker1", 0), "grpc://w10:2222");
  EXPECT_EQ(resolver.master("worker1", 0, "test"), "test://w10:2222");
  EXPECT_EQ(resolver.master("worker1", 0, ""), "w10:2222");
  EXPECT_EQ(caught([&] { (void)resolver.master("ps", 0); }).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace muster

#include "muster/distribute/named_strategy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/cluster/in_process_cluster.h"
#include "muster/distribute/coordinator/cluster_coordinator.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/distribute/servers/parameter_server_strategy.h"
#include "muster/trace/function.h"

namespace muster {
namespace {

using ::muster::testing_support::caught;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<std::string> kDevicesByName{"/device:CPU:1", "/device:CPU:2"};

TEST(StrategyNamed, HasTheReplicasOfItsKind) {
  const std::vector<std::pair<std::string, int>> expected{
      {"none", 1}, {"one_device", 1}, {"mirrored", 2}, {"central_storage", 2}};
  for (const auto& [name, replicas] : expected) {
    EXPECT_EQ(strategy_named(name, {.devices = kDevicesByName}).num_replicas_in_sync(), replicas) << name;
  }
}

TEST(StrategyNamed, PutsVariablesWhereItsKindHasThem) {
  const auto variable = [](const std::string& name) {
    return strategy_named(name, {.devices = kDevicesByName}).make<Variable>(torch::zeros({2}));
  };

  EXPECT_TRUE(variable("none").copies().empty());
  EXPECT_EQ(variable("mirrored").copies().size(), 2u);
  EXPECT_THAT(variable("central_storage").device(), HasSubstr("CPU:0"));
}

TEST(StrategyNamed, OneDeviceIsTheFirst) {
  const auto device = [](const NamedStrategyOptions& options) {
    return strategy_named("one_device", options).make<Variable>(torch::zeros({2})).device();
  };

  EXPECT_THAT(device({.devices = kDevicesByName}), HasSubstr("CPU:1"));
  EXPECT_THAT(device({}), HasSubstr("CPU:0"));
}

TEST(StrategyNamed, ParameterServersTakeACoordinator) {
  InProcessCluster cluster({.workers = 1, .ps = 1});
  const SimpleClusterResolver resolver = cluster.resolver();
  const Strategy strategy = strategy_named("parameter_server", {.cluster = &resolver});
  ClusterCoordinator coordinator{ParameterServerStrategy(strategy)};
  auto twice = function([](at::Tensor x) { return x * 2; });

  EXPECT_EQ(coordinator.schedule(twice, torch::ones({})).fetch().item<float>(), 2);
}

TEST(StrategyNamed, SaysWhichThereAre) {
  const Status error = caught([] { (void)strategy_named("ring"); });

  EXPECT_EQ(error.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("\"ring\""), HasSubstr("parameter_server")));
}

}  // namespace
}  // namespace muster

// A task that was cut off for longer than a lease goes on where it was.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/distribute/servers/ps_variables.h"

namespace muster {
namespace {

using testing_support::strategy_of;

class CutOff : public ::testing::TestWithParam<Transport> {
 protected:
  // Adds one to a variable again and again, while `drop` has a task drop what another one had left there.
  void count_while(const std::function<void(InProcessCluster&, const ParameterServerStrategy&)>& drop) {
    InProcessCluster cluster({.workers = 1, .ps = 1, .transport = GetParam()});
    ParameterServerStrategy strategy = strategy_of(cluster, GetParam());
    auto scope = strategy.scope();
    Variable v(torch::zeros({}, torch::kLong), {.name = "v"});
    auto add = function([&](Iterator ones) { v.assign_add(ones.next<1>()[0]); });
    ClusterCoordinator coordinator(strategy);
    PerWorkerDataset ones =
        coordinator.create_per_worker_dataset(Dataset::from_tensors({torch::ones({}, torch::kLong)}).repeat());

    for (int i = 0; i < 3; ++i) {
      coordinator.schedule(add, ones);
      coordinator.join();
      drop(cluster, strategy);
    }
    coordinator.schedule(add, ones);
    coordinator.join();

    EXPECT_EQ(v.value().item<int64_t>(), 4);
  }
};

INSTANTIATE_TEST_SUITE_P(Transports, CutOff, ::testing::Values(Transport::kGrpc, Transport::kLocal),
                         [](const auto& info) { return info.param == Transport::kGrpc ? "Grpc" : "Local"; });

TEST_P(CutOff, WorkersGiveAParameterServerTheirPartsAgain) {
  count_while([](InProcessCluster& cluster, const ParameterServerStrategy&) {
    const Owner worker{cluster.worker({"worker", 0}).incarnation(), "the worker"};
    cluster.worker({"ps", 0}).release({worker, {}});
  });
}

TEST_P(CutOff, CoordinatorsGiveAWorkerTheirProgramsAndSequencesAgain) {
  count_while([](InProcessCluster& cluster, const ParameterServerStrategy& strategy) {
    cluster.worker({"worker", 0}).release({strategy.variables()->leases().owner(), {}});
    EXPECT_EQ(cluster.worker({"worker", 0}).status().sources, 0u);
  });
}

}  // namespace
}  // namespace muster

// How many closures a coordinator moves, and how long one takes: 3 workers and 2 parameter servers.
#include <torch/torch.h>

#include <optional>

#include "bench/server_processes.h"
#include "bench/workloads.h"
#include "muster/base/status.h"
#include "muster/cluster/in_process_cluster.h"
#include "muster/distribute/coordinator/cluster_coordinator.h"

namespace muster::bench {
namespace {

constexpr int kWarm = 100;

// A cluster of either kind.
class Cluster {
 public:
  explicit Cluster(const std::string& kind) {
    if (kind == "inprocess") {
      inside_.emplace(InProcessClusterOptions{.workers = 3, .ps = 2});
    } else {
      processes_.emplace(3, 2);
    }
  }
  SimpleClusterResolver resolver() const {
    return inside_ ? inside_->resolver() : SimpleClusterResolver(processes_->spec(), {.rpc_layer = "grpc"});
  }

 private:
  std::optional<InProcessCluster> inside_;
  std::optional<ServerProcesses> processes_;
};

// Sums a constant.
auto total() {
  return function([] { return torch::tensor({1, 2, 3, 4, 5}, torch::kInt).sum(); });
}

void expect_sum(const torch::Tensor& sum) {
  if (sum.item<int64_t>() != 15) throw internal("closure_rate: a wrong result");
}

}  // namespace

void closure_rate(const Part& part, Bench& bench) {
  constexpr int kClosures = 2'000;
  Cluster cluster(part.name);
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy);
  auto sum = total();
  for (int i = 0; i < kWarm; ++i) expect_sum(coordinator.schedule(sum).fetch());
  bench.rate({"rate_" + part.name, "closures/s"}, kClosures, [&] {
    for (int i = 0; i < kClosures; ++i) coordinator.schedule(sum);
    coordinator.join();
  });
  bench.rate({"rate_fetched_" + part.name, "closures/s"}, kClosures, [&] {
    std::vector<RemoteValue<torch::Tensor>> values;
    for (int i = 0; i < kClosures; ++i) values.push_back(coordinator.schedule(sum));
    coordinator.join();
    for (const torch::Tensor& value : coordinator.fetch(values)) expect_sum(value);
  });
}

void closure_latency(const Part& part, Bench& bench) {
  constexpr int kLatencies = 500;
  Cluster cluster(part.name);
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy);
  auto sum = total();
  auto one = [&] { expect_sum(coordinator.schedule(sum).fetch()); };
  for (int i = 0; i < kWarm; ++i) one();
  bench.least({"median_" + part.name, "us"}, [&] { return median_us(kLatencies, one); });
}

}  // namespace muster::bench

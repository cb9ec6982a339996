// 64 MiB between a parameter server process and a worker process, in closures.
#include <torch/torch.h>

#include "bench/server_processes.h"
#include "bench/workloads.h"
#include "muster/base/status.h"
#include "muster/cluster/resolvers/simple_cluster_resolver.h"
#include "muster/distribute/cluster_coordinator.h"

namespace muster::bench {
namespace {

constexpr int64_t kElements = int64_t{16} << 20;
constexpr double kBytes = 4.0 * kElements;

}  // namespace

// Between two processes of a machine tensors go from memory to memory; the part `network` has them sent, as they are
// between machines.
void ps_bandwidth(const Part& part, Bench& bench) {
  const bool network = part.name == "network";
  if (network) ::setenv("MUSTER_NEAR_MEMORY", "off", /*overwrite=*/1);
  ServerProcesses servers(1, 1);
  ParameterServerStrategy strategy(SimpleClusterResolver(servers.spec(), {.rpc_layer = "grpc"}));
  auto variable = strategy.make<Variable>(InitialValue::constant({kElements}, 1.0));
  ClusterCoordinator coordinator(strategy);
  const PerWorkerVariable delta = coordinator.create_per_worker_variable(InitialValue::constant({kElements}, 1.0));
  auto pull = function([&] { return variable.value().sum(); });
  auto push = function([&] { variable.assign_add(delta.variable().value()); });

  const RemoteValue<at::Tensor> sum = coordinator.schedule(pull);
  if (const double read = sum.fetch().item<double>(); read != kElements) throw internal("ps_bandwidth: read ", read);

  auto measure = [&](const std::string& name, const auto& step) {
    constexpr int kClosures = 8;
    auto burst = [&] {
      for (int i = 0; i < kClosures; ++i) coordinator.schedule(step);
      coordinator.join();
    };
    burst();
    const double before = loopback_bytes();
    burst();
    const double moved = (loopback_bytes() - before) / (kClosures * kBytes);
    if (network && (moved < 0.99 || moved > 1.5)) {
      throw internal("ps_bandwidth: ", moved, " times the variable crossed the wire");
    }
    bench.most({network ? name + "_network" : name, "GB/s"}, [&] { return kClosures * kBytes / 1e9 / seconds(burst); });
  };
  measure("pull", pull);
  measure("push", push);
}

}  // namespace muster::bench

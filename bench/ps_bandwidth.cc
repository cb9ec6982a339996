// 64 MiB between a parameter server process and a worker process, in closures.
#include <torch/torch.h>

#include <cmath>

#include "bench/server_processes.h"
#include "bench/workloads.h"
#include "muster/base/status.h"
#include "muster/cluster/resolvers/simple_cluster_resolver.h"
#include "muster/distribute/coordinator/cluster_coordinator.h"

namespace muster::bench {
namespace {

constexpr int64_t kElements = int64_t{16} << 20;
constexpr double kBytes = 4.0 * kElements;

}  // namespace

// Between two processes of a machine tensors go from memory to memory; the other parts have them sent, as they are
// between machines: all bytes (`network`), rounded, and deflated, where half of the numbers are zeros.
void ps_bandwidth(const Part& part, Bench& bench) {
  const bool network = part.name != "processes";
  const bool plain = part.name == "processes" || part.name == "network";
  if (network) ::setenv("MUSTER_NEAR_MEMORY", "off", /*overwrite=*/1);
  WireForm wire;
  if (part.name == "bfloat16") wire.type = WireType::kBFloat16;
  if (part.name == "deflate") wire.deflate = true;
  const InitialValue values =
      wire.deflate ? InitialValue(torch::randn({kElements}).relu()) : InitialValue::constant({kElements}, 1.0);
  ServerProcesses servers(1, 1);
  ParameterServerStrategy strategy(SimpleClusterResolver(servers.spec(), {.rpc_layer = "grpc"}));
  auto variable = strategy.make<Variable>(values, VariableOptions{.wire = wire});
  ClusterCoordinator coordinator(strategy);
  const PerWorkerVariable delta = coordinator.create_per_worker_variable(values);
  auto pull = function([&] { return variable.value().sum(); });
  auto push = function([&] { variable.assign_add(delta.variable().value()); });

  const RemoteValue<at::Tensor> sum = coordinator.schedule(pull);
  const double read = sum.fetch().item<double>(),
               right = wire.deflate ? values.tensor().sum().item<double>() : kElements;
  if (std::abs(read - right) > 1e-4 * right) throw internal("ps_bandwidth: read ", read, " instead of ", right);

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
    const double most = plain ? 1.5 : 0.9;
    if (network && (moved < (plain ? 0.99 : 0.1) || moved > most)) {
      throw internal("ps_bandwidth: ", moved, " times the variable crossed the wire");
    }
    const std::string metric = network ? str_cat(name, "_", part.name) : name;
    if (!plain) bench.least({metric + "_share_of_bytes", "%"}, [&] { return 100 * moved; });
    bench.most({metric, "GB/s"}, [&] { return kClosures * kBytes / 1e9 / seconds(burst); });
  };
  measure("pull", pull);
  measure("push", push);
}

}  // namespace muster::bench

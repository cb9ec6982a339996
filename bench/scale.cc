// How cost grows: CPU time per closure with more and more workers, memory of a parameter server with them, and of
// closures that wait; and what a hundred tasks take that do nothing.
#include <torch/torch.h>

#include <chrono>
#include <thread>

#include "bench/server_processes.h"
#include "bench/workloads.h"
#include "muster/cluster/in_process_cluster.h"
#include "muster/cluster/resolvers/simple_cluster_resolver.h"
#include "muster/distribute/coordinator/cluster_coordinator.h"
#include "muster/runtime/executor/run_times.h"

namespace muster::bench {
namespace {

auto add_one() {
  return function([](const torch::Tensor& x) { return x + 1; });
}

// A cluster in this process, and its coordinator.
struct Workers {
  Workers(int count, Transport transport)
      : cluster({.workers = count, .ps = 1, .transport = transport}),
        strategy(cluster.resolver(), cluster.peers()),
        coordinator(strategy) {}

  void burst(int closures) {
    for (int i = 0; i < closures; ++i) coordinator.schedule(step, x);
    coordinator.join();
  }

  InProcessCluster cluster;
  ParameterServerStrategy strategy;
  ClusterCoordinator coordinator;
  decltype(add_one()) step = add_one();
  torch::Tensor x = torch::ones({});
};

void cpu_per_closure(const std::string& part, Transport transport, Bench& bench) {
  constexpr int kClosures = 100'000, kWarmUp = 50'000;  // each worker's messages grow until they are worth sending
  std::vector<Figure> figures;
  for (int count : {1, 2, 4, 8, 16, 32}) {
    figures.push_back({{"cpu_per_closure_" + part + "_" + std::to_string(count) + "workers", "us"},
                       [=] {
                         Workers workers(count, transport);
                         workers.burst(kWarmUp);
                         const double before = used_cpu_seconds();
                         workers.burst(kClosures);
                         return (used_cpu_seconds() - before) * 1e6 / kClosures;
                       },
                       /*more_is_better=*/false});
  }
  bench.in_turn(figures);
}

// What a parameter server has when so many worker processes have trained a model of 4 MiB for a while.
double ps_memory(int workers) {
  constexpr int kStepsPerWorker = 100;
  const ServerProcesses servers(workers, 1);
  ParameterServerStrategy strategy(SimpleClusterResolver(servers.spec(), {.rpc_layer = "grpc"}));
  auto w = strategy.make<Variable>(torch::zeros({1024, 1024}));
  ClusterCoordinator coordinator(strategy);
  auto step = function([&] { w.assign_add(torch::ones({1024, 1024}) - w.value()); });
  for (int i = 0; i < kStepsPerWorker * workers; ++i) coordinator.schedule(step);
  coordinator.join();
  return resident_memory(servers.pid({"ps", 0}));
}

void ps_memory(Bench& bench) {
  constexpr int kMany = 32;
  ::setenv("MUSTER_NEAR_MEMORY", "off", /*overwrite=*/1);  // as from other machines
  const double one = ps_memory(1), many = ps_memory(kMany);
  bench.once({"ps_memory_1workers", "MiB"}, one);
  bench.once({"ps_memory_" + std::to_string(kMany) + "workers", "MiB"}, many);
  bench.once({"ps_memory_per_worker", "MiB"}, (many - one) / (kMany - 1));
}

void memory(Bench& bench) {
  constexpr int kQueued = 1'000'000;
  InProcessCluster cluster({.workers = 1, .ps = 1});
  ParameterServerStrategy strategy(cluster.resolver());
  cluster.stop({"worker", 0});  // so that all of them wait
  ClusterCoordinator coordinator(strategy, {.queue_capacity = 0});
  auto step = add_one();
  const torch::Tensor x = torch::ones({});
  coordinator.schedule(step, x);
  const double before = resident_memory(::getpid());
  for (int i = 0; i < kQueued; ++i) coordinator.schedule(step, x);
  bench.once({"bytes_per_queued_closure", "bytes"}, (resident_memory(::getpid()) - before) * 1024 * 1024 / kQueued);
}

// What tasks of a cluster take that have worked once, and are connected to each other, and have nothing to do.
void idle(Bench& bench) {
  constexpr int kWorkers = 96, kPs = 4;
  constexpr double kSeconds = 15;
  const ServerProcesses servers(kWorkers, kPs);
  ParameterServerStrategy strategy(SimpleClusterResolver(servers.spec(), {.rpc_layer = "grpc"}));
  std::vector<Variable> variables;
  for (int i = 0; i < kPs; ++i) variables.push_back(strategy.make<Variable>(torch::zeros({16})));
  ClusterCoordinator coordinator(strategy);
  auto step = function([&] {
    for (Variable& variable : variables) variable.assign_add(variable.value() + 1);
  });
  for (int i = 0; i < 4 * kWorkers; ++i) coordinator.schedule(step);
  coordinator.join();
  auto used = [&](const std::string& job, int count) {
    double seconds = 0;
    for (int i = 0; i < count; ++i) seconds += cpu_seconds(servers.pid({job, i}));
    return seconds;
  };
  std::this_thread::sleep_for(std::chrono::seconds(2));  // what the last steps have left is done
  const double workers = used("worker", kWorkers), ps = used("ps", kPs), chief = used_cpu_seconds();
  std::this_thread::sleep_for(std::chrono::duration<double>(kSeconds));
  bench.once({"idle_cpu_per_worker", "% of a core"}, 100 * (used("worker", kWorkers) - workers) / kSeconds / kWorkers);
  bench.once({"idle_cpu_per_ps", "% of a core"}, 100 * (used("ps", kPs) - ps) / kSeconds / kPs);
  bench.once({"idle_cpu_of_the_chief", "% of a core"}, 100 * (used_cpu_seconds() - chief) / kSeconds);
}

}  // namespace

void scale(const Part& part, Bench& bench) {
  ::setenv("MUSTER_GPUS", "off", /*overwrite=*/0);  // what is launched there is not what is measured here
  if (part.name == "memory") return memory(bench);
  if (part.name == "ps_memory") return ps_memory(bench);
  if (part.name == "idle") return idle(bench);
  cpu_per_closure(part.name, part.name == "local" ? Transport::kLocal : Transport::kGrpc, bench);
}

}  // namespace muster::bench

// How the cost of a coordinator grows: CPU time per closure with more and more workers, memory of closures that wait.
#include <sys/resource.h>
#include <torch/torch.h>

#include "bench/server_processes.h"
#include "bench/workloads.h"
#include "muster/cluster/in_process_cluster.h"
#include "muster/distribute/cluster_coordinator.h"

namespace muster::bench {
namespace {

// Of all threads of this process, in microseconds.
double cpu_us() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  auto us = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_usec);
  };
  return us(usage.ru_utime) + us(usage.ru_stime);
}

auto add_one() {
  return function([](const torch::Tensor& x) { return x + 1; });
}

void cpu_per_closure(const std::string& part, Transport transport, Bench& bench) {
  constexpr int kClosures = 20'000;
  const torch::Tensor x = torch::ones({});
  for (int workers : {1, 2, 4, 8, 16, 32}) {
    InProcessCluster cluster({.workers = workers, .ps = 1, .transport = transport});
    ParameterServerStrategy strategy(cluster.resolver(), {.peers = cluster.peers()});
    ClusterCoordinator coordinator(strategy);
    auto step = add_one();
    auto burst = [&](int closures) {
      for (int i = 0; i < closures; ++i) coordinator.schedule(step, x);
      coordinator.join();
    };
    burst(1'000);
    bench.least({"cpu_per_closure_" + part + "_" + std::to_string(workers) + "workers", "us"}, [&] {
      const double before = cpu_us();
      burst(kClosures);
      return (cpu_us() - before) / kClosures;
    });
  }
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

}  // namespace

void scale(const Part& part, Bench& bench) {
  if (part.name == "memory") return memory(bench);
  cpu_per_closure(part.name, part.name == "local" ? Transport::kLocal : Transport::kGrpc, bench);
}

}  // namespace muster::bench

#include "bench/simulate.h"

#include <signal.h>
#include <sys/wait.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <thread>

#include "bench/measure.h"
#include "bench/server_processes.h"
#include "muster/base/status.h"
#include "muster/cluster/resolvers/simple_cluster_resolver.h"
#include "muster/distribute/coordinator/cluster_coordinator.h"
#include "muster/fit/tensorboard/summary_writer.h"
#include "muster/runtime/executor/run_times.h"

namespace muster::bench {
namespace {

using Clock = std::chrono::steady_clock;

std::string size_of(const Simulation& simulation) {
  return str_cat(simulation.workers, "workers_", simulation.ps, "ps");
}

// The processes of a simulated cluster, which end with this.
class SimulatedCluster {
 public:
  explicit SimulatedCluster(const Simulation& simulation)
      : servers_(simulation.workers, simulation.ps, /*start=*/false) {
    for (int i = 0; i < simulation.ps; ++i) servers_.start({"ps", i});
    const int processes = std::min(simulation.processes, simulation.workers);
    for (int i = 0, first = 0; i < processes; ++i) {
      const int count = (simulation.workers - first) / (processes - i);
      hosts_.push_back(start_self(
          {"simulated-workers", "--cluster", spec().to_json(), "--first", std::to_string(first), "--count",
           std::to_string(count), "--delay", std::to_string(simulation.delays.mean_ms), "--stragglers",
           std::to_string(simulation.delays.stragglers), "--factor", std::to_string(simulation.delays.factor),
           "--distribution", simulation.delays.distribution, "--cut-share", std::to_string(simulation.cut_share)}));
      first += count;
    }
  }
  ~SimulatedCluster() {
    for (pid_t host : hosts_) ::kill(host, SIGKILL);
    for (pid_t host : hosts_) ::waitpid(host, nullptr, 0);
  }
  SimulatedCluster(const SimulatedCluster&) = delete;
  SimulatedCluster& operator=(const SimulatedCluster&) = delete;

  const ClusterSpec& spec() const { return servers_.spec(); }
  void signal(int number) const {
    for (pid_t host : hosts_) ::kill(host, number);
  }
  double ps_memory() const {
    double sum = 0;
    for (int i = 0; i < spec().num_tasks("ps"); ++i) sum += resident_memory(servers_.pid({"ps", i}));
    return sum;
  }
  double ps_cpu_seconds() const {
    double sum = 0;
    for (int i = 0; i < spec().num_tasks("ps"); ++i) sum += cpu_seconds(servers_.pid({"ps", i}));
    return sum;
  }

 private:
  ServerProcesses servers_;
  std::vector<pid_t> hosts_;
};

// $MUSTER_CURVES gets how many closures have ended in each tenth of a second, times ten.
class RateCurve {
 public:
  explicit RateCurve(const std::string& size) {
    if (const char* directory = std::getenv("MUSTER_CURVES")) writer_.emplace(str_cat(directory, "/", size));
  }

  void add(int64_t ended) {
    const auto tenth = static_cast<int64_t>(since(began_) * 10);
    if (!writer_ || tenth == last_) return;
    const auto rate = static_cast<double>(ended - ended_) * 10 / static_cast<double>(tenth - last_);
    writer_->scalar("closures a second, by tenths of a second", rate, tenth);
    last_ = tenth;
    ended_ = ended;
  }

 private:
  std::optional<SummaryWriter> writer_;
  const Clock::time_point began_ = Clock::now();
  int64_t last_ = 0, ended_ = 0;
};

// Keeps every worker busy for a while.
class Load {
 public:
  Load(ClusterCoordinator& coordinator, const Simulation& simulation, std::function<void()> schedule)
      : coordinator_(coordinator),
        ahead_(4 * simulation.workers),
        schedule_(std::move(schedule)),
        curve_(size_of(simulation)) {}

  // Returns how many closures have ended.
  int64_t run(const std::function<bool()>& enough) {
    const int64_t before = ended();
    while (!enough()) {
      const auto waiting = coordinator_.metrics().queued_closures + coordinator_.metrics().inflight_closures;
      for (int64_t i = waiting; i < ahead_; ++i, ++scheduled_) schedule_();
      curve_.add(ended());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return ended() - before;
  }

 private:
  int64_t ended() {
    const auto& metrics = coordinator_.metrics();
    return scheduled_ - metrics.queued_closures - metrics.inflight_closures;
  }

  ClusterCoordinator& coordinator_;
  const int64_t ahead_;
  const std::function<void()> schedule_;
  int64_t scheduled_ = 0;
  RateCurve curve_;
};

}  // namespace

void simulate(const Simulation& simulation) {
  ::setenv("MUSTER_NEAR_MEMORY", "off", /*overwrite=*/1);  // as from other machines
  ::setenv("MUSTER_GPUS", "off", /*overwrite=*/0);         // a worker for each would not fit there
  Bench bench("simulate", {.repeats = 1});
  const std::string size = size_of(simulation);
  auto print = [&](const std::string& name, const std::string& unit, double value) {
    bench.once({name + "_" + size, unit}, value);
    std::fprintf(stderr, "%-28s %12.3f %s\n", name.c_str(), value, unit.c_str());
  };
  const auto started = Clock::now();
  const SimulatedCluster cluster(simulation);
  ParameterServerStrategy strategy(SimpleClusterResolver(cluster.spec(), {.rpc_layer = "grpc"}));
  const double memory_before = cluster.ps_memory();
  std::vector<Variable> variables;  // one at each parameter server
  for (int i = 0; i < simulation.ps; ++i) variables.push_back(strategy.make<Variable>(torch::zeros({})));
  auto step = function([&] {
    for (Variable& variable : variables) variable.assign_add(torch::ones({}));
  });
  ClusterCoordinator coordinator(strategy, {.watchdog = std::chrono::milliseconds(0)});
  auto wait_for_all = [&] {
    while (static_cast<int>(coordinator.workers_up()) < simulation.workers)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  wait_for_all();
  print("start_up", "s", since(started));

  Load load(coordinator, simulation, [&] { coordinator.schedule(step); });
  const auto begin = Clock::now();
  load.run([&] { return since(begin) > simulation.seconds / 2; });  // every worker has its programs
  const double chief_before = used_cpu_seconds(), ps_before = cluster.ps_cpu_seconds();
  const auto measured = Clock::now();
  const auto closures = static_cast<double>(load.run([&] { return since(measured) > simulation.seconds; }));
  const double took = since(measured);
  print("closure_rate", "closures/s", closures / took);
  print("chief_cpu_per_closure", "us", (used_cpu_seconds() - chief_before) / closures * 1e6);
  print("ps_cpu_per_closure", "us", (cluster.ps_cpu_seconds() - ps_before) / closures * 1e6);
  coordinator.join();
  print("ps_memory_per_worker", "MiB", (cluster.ps_memory() - memory_before) / simulation.ps / simulation.workers);
  print("chief_memory", "MiB", resident_memory(::getpid()));

  if (simulation.cut_seconds > 0) {
    const auto calls_before = coordinator.metrics().looks_for_workers.load();
    cluster.signal(SIGUSR1);
    const auto cut = Clock::now();
    load.run([&] { return since(cut) > simulation.cut_seconds; });
    const double looks =
        static_cast<double>(coordinator.metrics().looks_for_workers - calls_before) / simulation.cut_seconds;
    cluster.signal(SIGUSR2);
    const auto healed = Clock::now();
    load.run([&] { return static_cast<int>(coordinator.workers_up()) == simulation.workers || since(healed) > 60; });
    print("time_to_heal", "s", since(healed));
    print("calls_while_cut", "calls/s", looks);
    coordinator.join();
  }
}

}  // namespace muster::bench

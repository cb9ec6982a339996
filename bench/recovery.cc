// What a killed worker and a killed parameter server cost a training job of 2 worker and 1 parameter server processes.
#include <torch/torch.h>

#include <atomic>
#include <thread>

#include "bench/models.h"
#include "bench/server_processes.h"
#include "bench/workloads.h"
#include "muster/base/status.h"
#include "muster/cluster/resolvers/simple_cluster_resolver.h"
#include "muster/distribute/coordinator/cluster_coordinator.h"
#include "muster/trace/rows.h"

namespace muster::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kRunSeconds = 25, kKillAfter = 3, kRestartAfter = 1;
constexpr int kBurst = 40, kAhead = 80;

// The job: an MLP, and a count of steps for each worker.
class Job {
 public:
  Job()
      : servers_(2, 1),
        strategy_(SimpleClusterResolver(servers_.spec(), {.rpc_layer = "grpc"})),
        net_(mlp()),
        variables_([&] {
          auto scope = strategy_.scope();
          return adopt(net_);
        }()),
        counts_(strategy_.make<Variable>(torch::zeros({2}, torch::kLong))),
        coordinator_(strategy_),
        batches_(coordinator_.create_per_worker_dataset([](const InputContext& input) {
          const Pool pool = make_pool();
          const Dataset index = Dataset::range(input.input_pipeline_id, input.input_pipeline_id + 1).repeat();
          return Dataset::zip({Dataset::tensors({pool.x, pool.y}).repeat(), index});
        })) {
    schedule(kBurst);
    coordinator_.join();
  }

  void schedule(int closures) {
    for (int i = 0; i < closures; ++i) coordinator_.schedule(step_, batches_);
  }
  ServerProcesses& servers() { return servers_; }
  ClusterCoordinator& coordinator() { return coordinator_; }
  Variable& counts() { return counts_; }

 private:
  ServerProcesses servers_;
  ParameterServerStrategy strategy_;
  torch::nn::Sequential net_;
  ModuleVariables variables_;
  Variable counts_;
  ClusterCoordinator coordinator_;
  PerWorkerDataset batches_;
  decltype(function(std::function<void(Iterator&)>())) step_ =
      function(std::function<void(Iterator&)>([this](Iterator& it) {
        auto [x, y, worker] = it.next<3>();
        train(net_, variables_.trainable(), x, y);
        scatter(counts_, Scatter::kAdd, worker.reshape({1}), torch::ones({1}, torch::kLong));
      }));
};

// Reads the counts every 10 ms, as an outsider would.
class Watch {
 public:
  struct Reading {
    double time;
    int64_t first, all;
  };

  explicit Watch(Variable counts)
      : counts_(std::move(counts)), thread_([this](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            read();
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
          }
        }) {}

  int64_t done() const { return done_; }
  int errors() const { return errors_; }
  double now() const { return since(begin_); }
  std::vector<Reading> finish() {
    thread_.request_stop();
    thread_.join();
    read();
    return log_;
  }

 private:
  void read() {
    try {
      const torch::Tensor now = counts_.value();
      log_.push_back({this->now(), now[0].item<int64_t>(), now.sum().item<int64_t>()});
      done_ = log_.back().all;
    } catch (const Error&) {
      ++errors_;
    }
  }

  const Clock::time_point begin_ = Clock::now();
  Variable counts_;
  std::vector<Reading> log_;
  std::atomic<int64_t> done_ = 0;
  std::atomic<int> errors_ = 0;
  std::jthread thread_;
};

void worker_dies(Bench& bench) {
  Job job;
  job.counts().assign(torch::zeros({2}, torch::kLong));
  Watch watch(job.counts());
  int64_t scheduled = 0;
  double killed = 0, restarted = 0;
  while (watch.now() < kRunSeconds) {
    job.schedule(kBurst);
    scheduled += kBurst;
    if (killed == 0 && watch.now() > kKillAfter) {
      job.servers().kill({"worker", 0});
      killed = watch.now();
    } else if (killed > 0 && restarted == 0 && watch.now() - killed > kRestartAfter) {
      job.servers().start({"worker", 0});
      restarted = watch.now();
    }
    while (watch.done() < scheduled - kAhead && watch.now() < kRunSeconds) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  job.coordinator().join();
  const std::vector<Watch::Reading> log = watch.finish();
  double gap = 0, last = log.front().time, back = 0;
  int64_t seen = 0, at_restart = 0;
  for (const Watch::Reading& reading : log) {
    if (reading.all > seen) {
      gap = std::max(gap, reading.time - last);
      seen = reading.all;
      last = reading.time;
    }
    if (reading.time <= restarted) at_restart = reading.first;
    if (reading.time > restarted && reading.first > at_restart && back == 0) back = reading.time - restarted;
  }
  auto report = [&](const std::string& name, const std::string& unit, double value) {
    bench.once({"worker_" + name, unit}, value);
  };
  report("kill_coordinator_read_errors", "errors", watch.errors());
  report("kill_longest_gap", "s", gap);
  report("kill_closures_scheduled", "closures", static_cast<double>(scheduled));
  report("kill_steps_counted", "steps", static_cast<double>(log.back().all));
  if (back > 0) report("restart_to_first_step", "s", back);
}

void ps_dies(Bench& bench) {
  Job job;
  const Clock::time_point begin = Clock::now();
  std::optional<Clock::time_point> killed;
  try {
    while (!killed || since(*killed) < 30) {
      if (!killed && since(begin) > 1) {
        job.schedule(kBurst);
        job.servers().kill({"ps", 0});
        killed = Clock::now();
      }
      job.schedule(kBurst / 2);
      job.coordinator().join();
    }
    throw internal("recovery: nobody noticed that the parameter server is gone");
  } catch (const Error& error) {
    if (error.code() != StatusCode::kUnavailable || !killed) throw;
    bench.once({"ps_kill_time_to_exception", "s"}, since(*killed));
  }
}

}  // namespace

void recovery(const Part& part, Bench& bench) { part.name == "worker" ? worker_dies(bench) : ps_dies(bench); }

}  // namespace muster::bench

#include "bench/simulated_workers.h"

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <signal.h>

#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "muster/base/elastic_pool.h"
#include "muster/cluster/cluster_peers.h"
#include "muster/rpc/service_names.h"
#include "muster/rpc/worker_service.h"

namespace muster::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Does things later. Never ends.
class DelayLine {
 public:
  void after(Clock::duration time, std::function<void()> work) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto added = waiting_.emplace(Clock::now() + time, std::move(work));
    if (added == waiting_.begin()) changed_.signal();
  }

  [[noreturn]] void work() ABSL_LOCKS_EXCLUDED(mu_) {
    mu_.Lock();
    while (true) {
      const auto left =
          waiting_.empty() ? Clock::duration(std::chrono::hours(1)) : waiting_.begin()->first - Clock::now();
      if (left > left.zero()) {
        changed_.wait_for(mu_, absl::FromChrono(left));
      } else {
        std::function<void()> work = std::move(waiting_.begin()->second);
        waiting_.erase(waiting_.begin());
        mu_.Unlock();
        pool_.submit(std::move(work));
        mu_.Lock();
      }
    }
  }

 private:
  absl::Mutex mu_;
  SteadyCondVar changed_;
  std::multimap<Clock::time_point, std::function<void()>> waiting_ ABSL_GUARDED_BY(mu_);
  ElasticPool pool_{"simulated workers"};
};

// How long the messages at one worker take, in milliseconds. Not for several threads at once.
class DelayDraws {
 public:
  DelayDraws(const Delays& delays, unsigned seed) : random_(seed), distribution_(delays.distribution) {
    const bool straggles = std::uniform_real_distribution<double>()(random_) < delays.stragglers;
    mean_ = delays.mean_ms * (straggles ? delays.factor : 1);
  }

  double next() {
    constexpr double kWidth = 1;  // of the logarithms: one of a hundred takes six times as long as the mean
    if (distribution_ == "constant") return mean_;
    if (distribution_ == "lognormal") {
      return std::lognormal_distribution<double>(std::log(mean_) - kWidth * kWidth / 2, kWidth)(random_);
    }
    return std::exponential_distribution<double>(1 / mean_)(random_);
  }

 private:
  std::minstd_rand random_;
  const std::string distribution_;
  double mean_ = 0;
};

LocalWorkerOptions worker_options(const std::string& task) {
  LocalWorkerOptions options;
  options.devices.task = task;
  options.cores = 1;
  return options;
}

class SimulatedWorker {
 public:
  SimulatedWorker(const ClusterSpec& cluster, const TaskId& task, const Delays& delays, DelayLine& line)
      : address_(cluster.task_address(task)),
        task_(task.to_string()),
        line_(line),
        peers_(cluster, {}),
        worker_(worker_options(task_), &peers_),
        delays_(delays, static_cast<unsigned>(task.index + 1)) {
    heal();
  }

  void cut() { server_.reset(); }

  void heal() {
    if (server_) return;
    std::vector<RpcServer::MethodEntry> methods = worker_methods(worker_);
    for (RpcServer::MethodEntry& entry : methods) {
      if (entry.name != worker_rpc::kRunAll) continue;
      entry.method = [this, run = std::move(entry.method)](const std::shared_ptr<RpcCall>& call) { delay(run, call); };
    }
    server_ = std::make_unique<RpcServer>(
        RpcServerOptions{.address = address_, .task = task_, .incarnation = worker_.incarnation()}, std::move(methods));
  }

 private:
  void delay(const RpcServer::Method& run, const std::shared_ptr<RpcCall>& call) {
    double time = 0;
    {
      absl::MutexLock lock(&mu_);
      time = delays_.next();
    }
    line_.after(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(time)),
                [run, call] { run(call); });
  }

  const std::string address_, task_;
  DelayLine& line_;
  ClusterPeers peers_;
  LocalWorker worker_;
  absl::Mutex mu_;
  DelayDraws delays_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<RpcServer> server_;
};

}  // namespace

void run_simulated_workers(const ClusterSpec& cluster, int first, int count, const Delays& delays, double cut_share) {
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGUSR1);
  ::sigaddset(&signals, SIGUSR2);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // of all threads, which begin after this
  static DelayLine& line = *new DelayLine;
  std::thread([] { line.work(); }).detach();
  std::vector<std::unique_ptr<SimulatedWorker>> workers;
  for (int i = first; i < first + count; ++i) {
    workers.push_back(std::make_unique<SimulatedWorker>(cluster, TaskId{"worker", i}, delays, line));
  }
  while (true) {
    int signal = 0;
    ::sigwait(&signals, &signal);
    std::vector<std::jthread> all_at_once;  // each waits for the calls that it has
    for (auto worker = workers.begin(); worker != workers.begin() + std::lround(cut_share * count); ++worker) {
      all_at_once.emplace_back([&one = **worker, signal] { signal == SIGUSR1 ? one.cut() : one.heal(); });
    }
  }
}

}  // namespace muster::bench

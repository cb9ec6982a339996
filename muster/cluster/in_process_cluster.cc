#include "muster/cluster/in_process_cluster.h"

#include <absl/synchronization/mutex.h>

#include "muster/base/status.h"
#include "muster/cluster/cluster_peers.h"
#include "muster/cluster/machine_shares.h"
#include "muster/data/sources/sources.h"
#include "muster/rpc/credentials/channel_arguments.h"
#include "muster/session/local_master.h"

namespace muster {

// Hands out the workers themselves.
class InProcessCluster::LocalPeers : public Peers {
 public:
  void set(const std::string& task, std::shared_ptr<Worker> worker) {
    absl::MutexLock lock(&mu_);
    workers_[task] = std::move(worker);
  }
  std::shared_ptr<Worker> worker(const std::string& task) override {
    absl::MutexLock lock(&mu_);
    auto it = workers_.find(task);
    if (it == workers_.end()) throw invalid_argument("the cluster has no task ", task);
    if (!it->second) throw Error(Status(StatusCode::kUnavailable, str_cat(task, " is not up"), task));
    return it->second;
  }

 private:
  absl::Mutex mu_;
  std::map<std::string, std::shared_ptr<Worker>> workers_ ABSL_GUARDED_BY(mu_);
};

// Either a server, or a worker and its master.
struct InProcessCluster::Task {
  std::unique_ptr<Server> server{};
  std::shared_ptr<LocalWorker> worker{};
  std::shared_ptr<LocalMaster> master{};
};

InProcessCluster::InProcessCluster(InProcessClusterOptions options) : options_(std::move(options)) {
  set_process_up();  // as servers do
  std::map<std::string, int> jobs = options_.jobs;
  if (options_.workers > 0) jobs["worker"] = options_.workers;
  if (options_.ps > 0) jobs["ps"] = options_.ps;
  std::map<std::string, std::map<int, std::string>> addresses;
  for (const auto& [job, count] : jobs) {
    for (int i = 0; i < count; ++i) {
      addresses[job][i] = options_.transport == Transport::kLocal ? str_cat("local-", job, ":", i + 1) : "127.0.0.1:0";
    }
  }
  spec_ = ClusterSpec::sparse(addresses);
  if (options_.transport == Transport::kLocal) peers_ = std::make_shared<LocalPeers>();
  for (const TaskId& task : spec_.all_tasks()) start(task);
  if (options_.transport == Transport::kLocal) return;
  // Now that the ports are known, everybody learns of everybody.
  for (auto& [task, made] : tasks_) addresses[task.job][task.index] = made->server->address();
  spec_ = ClusterSpec::sparse(addresses);
  for (auto& [task, made] : tasks_) made->server->update_cluster(spec_);
  peers_ = std::make_shared<ClusterPeers>(spec_, ChannelOptions{.attempts = options_.attempts});
}

InProcessCluster::~InProcessCluster() {
  if (options_.transport == Transport::kLocal) {
    for (auto& [task, made] : tasks_) made->master.reset();
    for (const TaskId& task : spec_.all_tasks()) static_cast<LocalPeers&>(*peers_).set(task.to_string(), nullptr);
  }
  tasks_.clear();
}

void InProcessCluster::start(const TaskId& task) {
  if (tasks_.contains(task)) throw already_exists(task.to_string(), " is up");
  LocalWorkerOptions worker = options_.worker;
  worker.devices.cpus = options_.devices_per_task;
  auto made = std::make_unique<Task>();
  if (options_.transport == Transport::kGrpc) {
    made->server = std::make_unique<Server>(ServerOptions{
        .cluster = spec_, .task = task, .worker = worker, .lease = worker.lease, .attempts = options_.attempts});
  } else {
    auto& peers = static_cast<LocalPeers&>(*peers_);
    worker.devices.task = task.to_string();
    if (!worker.open_source) worker.open_source = opens_below({worker.data, worker.storage});
    if (!worker.cores) worker.cores = share_of_cores(spec_, task);
    if (!worker.devices.gpu_share) worker.devices.gpu_share = share_of_machine(spec_, task);
    made->worker = std::make_shared<LocalWorker>(worker, &peers);
    std::vector<std::string> others;
    for (const TaskId& other : spec_.all_tasks()) {
      if (other != task) others.push_back(other.to_string());
    }
    made->master =
        std::make_shared<LocalMaster>(*made->worker, LocalMasterOptions{.tasks = std::move(others), .peers = &peers});
    peers.set(task.to_string(), made->worker);
  }
  tasks_[task] = std::move(made);
}

void InProcessCluster::stop(const TaskId& task) {
  find(task);
  if (options_.transport == Transport::kLocal) static_cast<LocalPeers&>(*peers_).set(task.to_string(), nullptr);
  tasks_.erase(task);
}

InProcessCluster::Task& InProcessCluster::find(const TaskId& task) const {
  auto it = tasks_.find(task);
  if (it == tasks_.end()) throw not_found(task.to_string(), " is not up, or not in the cluster");
  return *it->second;
}

std::string InProcessCluster::target(const TaskId& task) const {
  if (options_.transport == Transport::kLocal) {
    throw failed_precondition("a cluster with Transport::kLocal has no ports; use its session()");
  }
  return "grpc://" + spec_.task_address(task);
}

std::unique_ptr<Session> InProcessCluster::session(const TaskId& task, SessionOptions options) const {
  if (options_.transport == Transport::kLocal) return std::make_unique<Session>(find(task).master, std::move(options));
  options.target = target(task);
  options.attempts = options_.attempts;
  return std::make_unique<Session>(std::move(options));
}

LocalWorker& InProcessCluster::worker(const TaskId& task) {
  Task& made = find(task);
  return made.server ? made.server->worker() : *made.worker;
}

}  // namespace muster

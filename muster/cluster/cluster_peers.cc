#include "muster/cluster/cluster_peers.h"

#include "muster/base/status.h"
#include "muster/rpc/remote_worker.h"

namespace muster {

ClusterPeers::ClusterPeers(const ClusterSpec& cluster, ChannelOptions options) : options_(std::move(options)) {
  update(cluster);
}

std::shared_ptr<Worker> ClusterPeers::worker(const std::string& task) {
  absl::MutexLock lock(&mu_);
  auto it = peers_.find(task);
  if (it == peers_.end()) throw invalid_argument("the cluster has no task ", task);
  Peer& peer = it->second;
  if (!peer.worker) {
    peer.worker = std::make_shared<RemoteWorker>(std::make_shared<RpcChannel>(peer.address, task, options_));
  }
  return peer.worker;
}

void ClusterPeers::update(const ClusterSpec& cluster) {
  std::map<std::string, Peer> peers;
  for (const TaskId& task : cluster.all_tasks()) {
    peers[task.to_string()] = {.address = cluster.task_address(task)};
  }
  absl::MutexLock lock(&mu_);
  for (auto& [task, peer] : peers) {
    auto known = peers_.find(task);
    if (known != peers_.end() && known->second.address == peer.address) peer.worker = known->second.worker;
  }
  peers_.swap(peers);
}

std::vector<std::string> ClusterPeers::tasks() const {
  absl::MutexLock lock(&mu_);
  std::vector<std::string> names;
  for (const auto& [task, peer] : peers_) names.push_back(task);
  return names;
}

}  // namespace muster

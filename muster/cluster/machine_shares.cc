#include "muster/cluster/machine_shares.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <string>
#include <vector>

namespace muster {
namespace {

std::string host_of_address(const std::string& address) { return address.substr(0, address.rfind(':')); }

std::vector<std::string> jobs_that_compute_with(const ClusterSpec& cluster, const std::string& job) {
  if (cluster.contains("ps") || (job != "chief" && job != "worker")) return {job};
  return {"chief", "worker"};
}

}  // namespace

std::optional<GpuShare> share_of_machine(const ClusterSpec& cluster, const TaskId& task) {
  if (!cluster.contains(task)) return std::nullopt;
  const std::string host = host_of_address(cluster.task_address(task));
  GpuShare share{.place = 0, .tasks = 0};
  for (const std::string& job : jobs_that_compute_with(cluster, task.job)) {
    if (!cluster.contains(job)) continue;
    for (const auto& [index, address] : cluster.tasks(job)) {
      if (host_of_address(address) != host) continue;
      if (job == task.job && index == task.index) share.place = share.tasks;
      ++share.tasks;
    }
  }
  if (share.tasks <= 1) return std::nullopt;
  return share;
}

std::optional<int> share_of_cores(const ClusterSpec& cluster, const TaskId& task) {
  const std::optional<GpuShare> share = share_of_machine(cluster, task);
  if (!share) return std::nullopt;
  return std::max(1, at::get_num_threads() / share->tasks);
}

}  // namespace muster

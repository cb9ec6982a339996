#include "muster/cluster/core_shares.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <string>

namespace muster {
namespace {

std::string host_of_address(const std::string& address) { return address.substr(0, address.rfind(':')); }

}  // namespace

std::optional<int> share_of_cores(const ClusterSpec& cluster, const TaskId& task) {
  if (!cluster.contains(task)) return std::nullopt;
  const std::string host = host_of_address(cluster.task_address(task));
  int tasks = 0;
  for (const auto& [index, address] : cluster.tasks(task.job)) tasks += host_of_address(address) == host ? 1 : 0;
  if (tasks <= 1) return std::nullopt;
  return std::max(1, at::get_num_threads() / tasks);
}

}  // namespace muster

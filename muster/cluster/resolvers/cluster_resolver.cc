#include "muster/cluster/resolvers/cluster_resolver.h"

#include <string_view>

#include "muster/base/strings.h"

namespace muster {
namespace {

// The value of one part of a device's name: "worker" of "job", in "/job:worker/task:0/device:GPU:1".
std::string_view part_of(std::string_view device, std::string_view key) {
  const std::string prefix = str_cat("/", key, ":");
  const size_t begin = device.find(prefix);
  if (begin == std::string_view::npos) return {};
  const std::string_view rest = device.substr(begin + prefix.size());
  return rest.substr(0, rest.find('/'));
}

}  // namespace

std::optional<TaskId> ClusterResolver::task() const {
  if (!task_type() || !task_index()) return std::nullopt;
  return TaskId{*task_type(), *task_index()};
}

std::string ClusterResolver::master(const std::optional<std::string>& task_type, std::optional<int> task_index,
                                    const std::optional<std::string>& rpc_layer) const {
  return find_master(
      {.task_type = task_type, .task_index = task_index, .rpc_layer = rpc_layer.value_or(this->rpc_layer())});
}

std::map<std::string, int> ClusterResolver::num_accelerators(const std::optional<std::string>& task_type,
                                                             std::optional<int> task_index) const {
  return count_accelerators(task_type ? task_type : this->task_type(), task_index ? task_index : this->task_index());
}

std::string ClusterResolver::with_layer(const std::string& rpc_layer, const std::string& address) {
  const bool as_it_is = rpc_layer.empty() || address.empty() || address.find("://") != std::string::npos;
  return as_it_is ? address : str_cat(rpc_layer, "://", address);
}

std::string ClusterResolver::find_master(const MasterQuery& query) const {
  const std::optional<std::string>& type = query.task_type ? query.task_type : task_type();
  const std::optional<int> index = query.task_index ? query.task_index : task_index();
  if (!type || !index) return "";
  return with_layer(query.rpc_layer, cluster_spec().task_address(*type, *index));
}

std::map<std::string, int> ClusterResolver::count_accelerators(const std::optional<std::string>& task_type,
                                                               std::optional<int> task_index) const {
  std::map<std::string, int> counts;
  if (!own_.devices) return counts;
  for (const std::string& device : own_.devices(master(task_type, task_index))) {
    if (task_type && part_of(device, "job") != *task_type) continue;
    if (task_index && part_of(device, "task") != std::to_string(*task_index)) continue;
    const std::string_view name = part_of(device, "device");
    const std::string type(name.substr(0, name.find(':')));
    if (!type.empty() && type != "CPU") ++counts[type];
  }
  return counts;
}

}  // namespace muster

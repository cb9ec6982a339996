#include "muster/cluster/resolvers/simple_cluster_resolver.h"

#include <utility>

namespace muster {

SimpleClusterResolver::SimpleClusterResolver(ClusterSpec cluster, SimpleClusterResolverOptions options)
    : ClusterResolver({.task_type = std::move(options.task_type),
                       .task_index = options.task_index,
                       .rpc_layer = std::move(options.rpc_layer),
                       .environment = std::move(options.environment),
                       .devices = std::move(options.devices)}),
      cluster_(std::move(cluster)),
      master_(std::move(options.master)),
      num_accelerators_(std::move(options.num_accelerators)) {}

std::string SimpleClusterResolver::find_master(const MasterQuery& query) const {
  const bool asks_for_a_task = query.task_type && query.task_index;
  return asks_for_a_task || master_.empty() ? ClusterResolver::find_master(query)
                                            : with_layer(query.rpc_layer, master_);
}

std::map<std::string, int> SimpleClusterResolver::count_accelerators(const std::optional<std::string>& task_type,
                                                                     std::optional<int> task_index) const {
  return num_accelerators_ ? *num_accelerators_ : ClusterResolver::count_accelerators(task_type, task_index);
}

}  // namespace muster

#include "muster/cluster/resolvers/union_cluster_resolver.h"

#include <algorithm>
#include <set>
#include <utility>

#include "muster/base/check.h"
#include "muster/base/status.h"

namespace muster {
namespace {

ResolverTask own_task_of(const std::vector<std::unique_ptr<ClusterResolver>>& resolvers) {
  MUSTER_CHECK(!resolvers.empty());
  const ClusterResolver& first = *resolvers[0];
  return {.task_type = first.task_type(),
          .task_index = first.task_index(),
          .rpc_layer = first.rpc_layer(),
          .environment = first.environment()};
}

ClusterSpec::Tasks merged(const std::vector<ClusterSpec>& clusters, const std::string& job) {
  std::vector<const ClusterSpec*> with_job;
  for (const ClusterSpec& cluster : clusters) {
    if (cluster.contains(job)) with_job.push_back(&cluster);
  }
  const bool lists = std::all_of(with_job.begin(), with_job.end(), [&](const auto* spec) { return spec->dense(job); });
  ClusterSpec::Tasks tasks;
  for (const ClusterSpec* cluster : with_job) {
    const int shift = lists ? static_cast<int>(tasks.size()) : 0;
    for (const auto& [index, address] : cluster->tasks(job)) {
      if (!tasks.emplace(shift + index, address).second) {
        throw invalid_argument("two of the united clusters have a task ", TaskId{job, index}.to_string());
      }
    }
  }
  return tasks;
}

}  // namespace

UnionClusterResolver::UnionClusterResolver(std::vector<std::unique_ptr<ClusterResolver>> resolvers)
    : ClusterResolver(own_task_of(resolvers)), resolvers_(std::move(resolvers)) {}

ClusterSpec UnionClusterResolver::cluster_spec() const {
  std::vector<ClusterSpec> clusters;
  std::set<std::string> jobs;
  for (const auto& resolver : resolvers_) {
    clusters.push_back(resolver->cluster_spec());
    for (std::string& job : clusters.back().jobs()) jobs.insert(std::move(job));
  }
  std::map<std::string, ClusterSpec::Tasks> all;
  for (const std::string& job : jobs) all[job] = merged(clusters, job);
  return ClusterSpec::sparse(std::move(all));
}

std::string UnionClusterResolver::find_master(const MasterQuery& query) const {
  const ClusterResolver& first = *resolvers_[0];
  const bool asks_for_a_task = query.task_type || query.task_index || task() != first.task();
  return asks_for_a_task ? ClusterResolver::find_master(query) : first.master({}, {}, query.rpc_layer);
}

std::map<std::string, int> UnionClusterResolver::count_accelerators(const std::optional<std::string>& task_type,
                                                                    std::optional<int> task_index) const {
  return resolvers_[0]->num_accelerators(task_type, task_index);
}

}  // namespace muster

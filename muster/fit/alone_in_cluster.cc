#include "muster/fit/alone_in_cluster.h"

#include "muster/base/status.h"
#include "muster/cluster/resolvers/tf_config_cluster_resolver.h"
#include "muster/cluster/roles.h"

namespace muster {

std::optional<std::string> alone_in_cluster(const ClusterSpec& cluster, const TaskId& task) {
  if (task.job == "evaluator" || !is_chief(cluster, task)) return std::nullopt;
  if (cluster.contains("ps")) {
    return str_cat("TF_CONFIG names parameter servers (", cluster.num_tasks("ps"),
                   "), and fit uses none of them: ", task.to_string(),
                   " trains alone; expected a model under a ParameterServerStrategy, as "
                   "strategy_named(\"parameter_server\") makes one");
  }
  const int tasks = worker_count(cluster, task.job);
  if (tasks == 1) return std::nullopt;
  return str_cat("TF_CONFIG names ", tasks,
                 " tasks that train together, and fit does not know of them: ", task.to_string(),
                 " trains a model alone, and so do the others that run this program; expected a "
                 "model under a MultiWorkerMirroredStrategy, as strategy_named(\"multi_worker\") makes one");
}

std::optional<std::string> alone_in_cluster() {
  try {
    const TfConfigResolver environment;
    const std::optional<TaskId> task = environment.task();
    return task ? alone_in_cluster(environment.cluster_spec(), *task) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace muster

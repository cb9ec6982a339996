#include "muster/cluster/roles.h"

#include <algorithm>

#include "muster/base/status.h"

namespace muster {
namespace {

bool is_role(const std::string& type) {
  return type == "chief" || type == "worker" || type == "ps" || type == "evaluator";
}

int count(const ClusterSpec& cluster, const std::string& type) {
  return cluster.contains(type) ? cluster.num_tasks(type) : 0;
}

bool is_alone(const ClusterSpec& cluster, const std::string& type) { return cluster.empty() && type.empty(); }

void check_type(const ClusterSpec& cluster, const std::string& type) {
  for (const std::string& job : cluster.jobs()) {
    if (!is_role(job)) {
      throw invalid_argument("job \"", job, "\": expected \"chief\", \"worker\", \"ps\" or \"evaluator\"");
    }
  }
  if (!is_role(type)) {
    throw invalid_argument("Unrecognized `task_type` '", type, "': expected 'chief', 'worker', 'ps' or 'evaluator'");
  }
  if (type != "evaluator" && !cluster.contains(type)) {
    throw invalid_argument("`task_type` '", type, "' not found in cluster_spec.");
  }
  for (const char* single : {"chief", "evaluator"}) {
    if (count(cluster, single) > 1) throw invalid_argument("There must be at most one '", single, "' task.");
  }
}

void check_task(const ClusterSpec& cluster, const TaskId& task) {
  check_type(cluster, task.job);
  if (cluster.contains(task)) return;
  if (task.job == "evaluator" && task.index == 0 && !cluster.contains("evaluator")) return;
  const bool exceeds = count(cluster, task.job) == 0 || task.index > cluster.tasks(task.job).rbegin()->first;
  if (exceeds) throw invalid_argument("The `task_id` ", task.index, " exceeds the maximum id of ", task.job, ".");
  throw invalid_argument("There is no task ", task.index, " of ", task.job, ".");
}

}  // namespace

bool is_chief(const ClusterSpec& cluster, const TaskId& task) {
  if (is_alone(cluster, task.job)) return true;
  check_task(cluster, task);
  if (task.job == "chief" || task.job == "evaluator") return true;
  return task.job == "worker" && count(cluster, "chief") == 0 && id_in_cluster(cluster, task) == 0;
}

int worker_count(const ClusterSpec& cluster, const std::string& task_type) {
  if (is_alone(cluster, task_type)) return 1;
  check_type(cluster, task_type);
  if (task_type == "evaluator") return 1;
  if (task_type == "ps") throw invalid_argument("Unexpected `task_type` 'ps': it does not train");
  return count(cluster, "chief") + count(cluster, "worker");
}

int id_in_cluster(const ClusterSpec& cluster, const TaskId& task) {
  if (is_alone(cluster, task.job)) return 0;
  check_task(cluster, task);
  if (task.job == "chief" || task.job == "evaluator") return 0;
  if (task.job == "ps") throw invalid_argument("There is no id for task_type 'ps': it does not train");
  // The place among the workers that are there: in a sparse job it is less than the index.
  const ClusterSpec::Tasks& workers = cluster.tasks("worker");
  const auto place = std::distance(workers.begin(), workers.find(task.index));
  return count(cluster, "chief") + static_cast<int>(place);
}

std::string collective_leader(const ClusterSpec& cluster, const TaskId& task) {
  if (cluster.empty()) return "";
  check_task(cluster, task);
  if (task.job == "evaluator") return "";
  for (const char* job : {"chief", "worker"}) {
    if (count(cluster, job) > 0) return TaskId{job, cluster.tasks(job).begin()->first}.to_string();
  }
  return "";
}

}  // namespace muster

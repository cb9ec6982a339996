// Who does what in a cluster of "chief", "worker", "ps" and "evaluator" tasks.
// No chief: the first worker is the chief. The evaluator is a cluster of its own and need not be in the spec. An empty
// cluster is a program that runs alone, whose task is {"", 0}.
// All throw Error{kInvalidArgument} for a task that is not in the cluster, for jobs with other names, and for more than
// one chief or evaluator.
#pragma once

#include <string>

#include "muster/cluster/cluster_spec.h"
#include "muster/cluster/task_id.h"

namespace muster {

// Whether the task writes checkpoints and logs for all. The evaluator does so for itself.
bool is_chief(const ClusterSpec& cluster, const TaskId& task);

// How many tasks train together with one of this type. A "ps" is not one of them: Error{kInvalidArgument}.
int worker_count(const ClusterSpec& cluster, const std::string& task_type);

// The task's rank among those, from 0: the chief's, then the workers'. A "ps" has none: Error{kInvalidArgument}.
int id_in_cluster(const ClusterSpec& cluster, const TaskId& task);

// The task that collectives are arranged by, "/job:chief/replica:0/task:0" or that of the first worker. Empty where
// nothing is arranged: alone, and for the evaluator.
std::string collective_leader(const ClusterSpec& cluster, const TaskId& task);

}  // namespace muster

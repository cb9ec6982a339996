// Who trains alone where a cluster was meant.
#pragma once

#include <optional>
#include <string>

#include "muster/cluster/cluster_spec.h"
#include "muster/cluster/task_id.h"

namespace muster {

// What to tell the user of a task of that cluster who trains under no strategy that uses its other tasks; nothing if
// there are none, or if it is for another task to say.
std::optional<std::string> alone_in_cluster(const ClusterSpec& cluster, const TaskId& task);

// The same of this process and its TF_CONFIG, as `muster run` gives it to each of a job. Nothing if that makes no
// sense: whoever uses the cluster is told so.
std::optional<std::string> alone_in_cluster();

}  // namespace muster

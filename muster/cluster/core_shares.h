#pragma once

#include <optional>

#include "muster/cluster/cluster_spec.h"
#include "muster/runtime/devices.h"

namespace muster {

// The cores that a task gets of a machine that has several tasks of its job, by the host in their addresses: each as
// many as the others, since all with all cores are many times slower. None if it is alone there. Tasks of other jobs
// do not count: while a worker waits for parameter servers, these work, and the other way round. But where there are no
// parameter servers a chief computes as workers do, and counts as one.
std::optional<int> share_of_cores(const ClusterSpec& cluster, const TaskId& task);

// The same of its GPUs.
std::optional<GpuShare> share_of_gpus(const ClusterSpec& cluster, const TaskId& task);

}  // namespace muster

#pragma once

#include <optional>

#include "muster/cluster/cluster_spec.h"
#include "muster/runtime/devices.h"

namespace muster {

// Which of the tasks that compute on a machine a task is, by the host in their addresses. None if it is alone there.
// Those of its job count. Tasks of other jobs do not: while a worker waits for parameter servers, these work, and the
// other way round. But where there are no parameter servers a chief computes as workers do, and counts as one.
std::optional<GpuShare> share_of_machine(const ClusterSpec& cluster, const TaskId& task);

// The cores that it gets of them all: as many as each of the others, since all with all cores are many times slower.
// None if it is alone there.
std::optional<int> share_of_cores(const ClusterSpec& cluster, const TaskId& task);

}  // namespace muster

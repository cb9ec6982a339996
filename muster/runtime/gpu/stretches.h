// Which steps of a plan can be recorded as one graph.
#pragma once

#include <cstddef>
#include <vector>

#include "muster/graph/aliases.h"
#include "muster/runtime/executor/plan.h"

namespace muster {

// Those of `plan.lanes[lane]` that a GPU can be told in one go: each maximal run of steps that wait neither for others
// nor for the GPU itself. Short ones are left out. A loop that repeats such steps a known number of times counts as
// they do. `aliases` are those of the plan's program.
std::vector<Stretch> find_stretches(const Plan& plan, size_t lane, const Aliases& aliases);

}  // namespace muster

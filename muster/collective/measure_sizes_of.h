#pragma once

#include <string>

#include "muster/collective/all_reduce_sizes.h"
#include "muster/runtime/worker/collectives.h"

namespace muster {

// Tries all ways of summing that the group has, which does as `in_use` says, and leaves there what is best; all ranks
// call this at the same time and come to the same. Returns what it took, for a log line.
std::string measure_sizes_of(Collectives& group, AllReduceSizes& in_use);

}  // namespace muster

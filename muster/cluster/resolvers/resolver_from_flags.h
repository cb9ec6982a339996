#pragma once

#include "muster/cluster/resolvers/simple_cluster_resolver.h"

namespace muster {

// Who this process is, from its command line:
//   --cluster cluster.json      the file, or the JSON itself: {"ps": ["host:port"], "worker": ["host:port",
//   "host:port"]}
//   --task_type worker
//   --task_index 0
// What the flags leave open comes from TF_CONFIG, which is not looked at when they say all; with neither, the program
// runs alone. Other flags are the program's
// own: they are skipped, and argv stays as it is.
// Throws Error{kNotFound} without the file, and Error{kInvalidArgument} that names the flag: also for a task that is
// not in the cluster (an evaluator need not be).
SimpleClusterResolver resolver_from_flags(int argc, const char* const* argv);

}  // namespace muster

// The short forms in which Slurm writes lists. For SlurmClusterResolver.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace muster {

// "node[01-03,7],other" is node01, node02, node03, node7, other; a name may have several brackets. Throws
// Error{kInvalidArgument}, also for more than 200,000 names.
std::vector<std::string> expand_hostlist(std::string_view text);

// "2(x3),1" is 2, 2, 2, 1. Throws Error{kInvalidArgument}, also for more than 200,000 nodes.
std::vector<int> expand_tasks_per_node(std::string_view text);

}  // namespace muster

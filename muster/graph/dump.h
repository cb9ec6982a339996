// Programs for people to look at.
#pragma once

#include <string>

#include "muster/graph/program.h"

namespace muster {

// One line per argument, variable, constant and instruction; bodies are indented under the instruction that has them:
//   %12 = aten::add.Tensor(%3, %4, alpha=1)  @ /job:worker/replica:0/task:0/device:CPU:0
// REQUIRES: the program has passed check().
std::string dump(const Program& program);

// The same as a graph for graphviz: a cluster for each device, variables as cylinders, constants as notes, arguments as
// houses. `muster dump --dot file | dot -Tsvg` draws it. REQUIRES: the program has passed check().
std::string dot(const Program& program);

}  // namespace muster

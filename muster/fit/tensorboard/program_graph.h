#pragma once

#include "muster/graph/program.h"

namespace muster {

namespace proto {
class EventGraph;
}

// A program as a graph that TensorBoard draws: a node for each argument, variable, constant, instruction and output,
// with its device. The nodes of a body lie under the name of the instruction that has it, and come after it.
// REQUIRES: the program has passed check().
proto::EventGraph graph_of(const Program& program);

}  // namespace muster

#pragma once

#include <string>

#include "muster/graph/placement/homes.h"
#include "muster/graph/program.h"

namespace muster {

// The op of step_ops.h that does nothing, but is known to write memory and to need a value for it.
inline constexpr const char* kWaitFor = "muster_step::wait_for_";

// Cuts a placed program by task. What is left is the program of `driver`, the task that starts the step; everything
// else is in its `parts`, each begun by one muster::remote.
// - A part is a maximal run of instructions on one task: a new one begins only when an instruction needs something that
//   depends on the part before it. So a step with its variables on parameter servers has one part that reads and one
//   that writes per server, however many variables there are.
// - Parts begin as early as their inputs allow, reads before the first instruction of the driver. The parts of one task
//   run in turn.
// - A value that goes from one part to another never passes through the driver: its task keeps it (muster::send) and
//   the other part fetches it there (muster::receive), once for all its readers.
// - Control flow whose bodies are on several tasks is run by the driver, and its bodies are split like the program.
// - kWaitFor has said then what waits for what, and is left out.
// Throws Error{kInvalidArgument} for a body that writes to memory of another task which is not a variable.
// REQUIRES: `program` is checked and placed; full device names.
Program split(Program program, const std::string& driver);

}  // namespace muster

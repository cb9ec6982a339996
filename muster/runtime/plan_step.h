#pragma once

#include <string>

#include "muster/graph/program.h"
#include "muster/runtime/op_guards.h"
#include "muster/runtime/plan.h"

namespace muster {

Step::Kind kind_of(const std::string& op);

// Fill in what `step` takes from its instruction: the stack, and where its tensors go. REQUIRES: kind, device and, for
// libtorch's ops, the op are set. Both throw Error{kInvalidArgument} for arguments that cannot be.
void prepare_op(Step& step, const Instruction& instruction, const FoundByForward& found);
void prepare_control(Step& step, const Instruction& instruction);  // the ops of our own

}  // namespace muster

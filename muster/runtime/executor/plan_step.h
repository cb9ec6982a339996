#pragma once

#include <string>

#include "muster/graph/program.h"
#include "muster/runtime/executor/step.h"
#include "muster/runtime/ops/op_guards.h"

namespace muster {

// What a step does for an op of our own (own_op() of op_traits.h), as yet without what its instruction says.
Step::Action own_action(const std::string& op);

// Fill in what `step` takes from its instruction: where its tensors go, and what is constant. REQUIRES: device and
// results are set, and the action is an op of libtorch's, or made by `own_action`. Both throw Error{kInvalidArgument}
// for arguments that cannot be.
void prepare_op(Step& step, const Instruction& instruction, const FoundByForward& found);
void prepare_own(Step& step, const Instruction& instruction);

}  // namespace muster

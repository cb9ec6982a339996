// What an op that has failed is told about, beyond what libtorch says.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <string>
#include <vector>

#include "muster/base/status.h"
#include "muster/graph/program.h"

namespace muster {

// The variables that an instruction is about, as users know them: those that it is given, or if there are none, those
// for which its results are, in parts of other tasks, too. Of these the ones that are read, if there are some: a table
// where its ids are found, and not what an optimizer changes with them.
std::vector<std::string> variables_about(const Program& program, const Instruction& instruction);

// The words of `status` with the operand that does not fit, where the op has a rule for it (gpu_guard_rules), and the
// variables that it is about. An operand that does not fit is in the detail, too. `stack`: what the op was called with;
// operands on a GPU are not looked at. Costs nothing until something fails.
Status explained(const Status& status, const Program& program, const Instruction& instruction,
                 const c10::OperatorHandle& op, const std::vector<c10::IValue>& stack);

// The op whose operand did not fit, such as "aten::nll_loss_forward"; nothing for any other error.
std::optional<std::string> op_with_unfit_operand(const Status& status);

}  // namespace muster

#include "muster/runtime/executor/plan_memory.h"

namespace muster {

PlanMemory::PlanMemory(const Program& program, const Aliases& aliases)
    : aliases_(aliases), recorded_(program.num_values), seen_(static_cast<size_t>(aliases.num_groups())) {
  auto seen_of = [&](ValueId value) -> Seen& { return seen_[static_cast<size_t>(aliases.group(value))]; };
  for (const ProgramArgument& argument : program.arguments) seen_of(argument.value).argument = true;
  for (const VariableRef& variable : program.variables) seen_of(variable.value).variable = true;
  for (const Constant& constant : program.constants) {
    Seen& seen = seen_of(constant.value);
    (constant.is_number ? seen.number : seen.constant) = true;
  }
  for (ValueId output : program.outputs) {
    if (output != kNoValue) seen_of(output).output = true;
  }
}

}  // namespace muster

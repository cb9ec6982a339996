#include "muster/runtime/executor/variable_uses.h"

namespace muster {
namespace {

// Sets `by_rows` and `read_whole` if any instruction says so, those of bodies included.
void note_uses(const Program& program, const Aliases& aliases, int group, BodyAliases& bodies, VariableUses& uses) {
  for (const Instruction& instruction : program.instructions) {
    const OpSchema& schema = aliases.schema(instruction);
    for (size_t i = 0; i < instruction.arguments.size(); ++i) {
      bool touches = false;
      for_each_value(instruction.arguments[i],
                     [&](ValueId value) { touches = touches || (value >= 0 && aliases.group(value) == group); });
      if (!touches || !instruction.bodies.empty()) continue;
      if (program.op_of(instruction).name.starts_with("muster_rows::")) continue;
      uses.by_rows = false;
      // A view reads nothing, whoever uses it does; a write in place is the writer's business.
      uses.read_whole = uses.read_whole || (!schema.arguments[i].written && schema.arguments[i].aliases.empty());
    }
    for (size_t b = 0; b < instruction.bodies.size(); ++b) {
      const Program& body = program.bodies[instruction.bodies[b]];
      const std::vector<ValueId> inputs = body_inputs(program, instruction, b);
      for (size_t i = 0; i < inputs.size() && i < body.arguments.size(); ++i) {
        if (inputs[i] < 0 || aliases.group(inputs[i]) != group) continue;
        const Aliases& inside = bodies.of(program, aliases, static_cast<size_t>(instruction.bodies[b]));
        note_uses(body, inside, inside.group(body.arguments[i].value), bodies, uses);
      }
    }
  }
  for (ValueId output : program.outputs) {
    if (output < 0 || aliases.group(output) != group) continue;
    uses.by_rows = false;
    uses.read_whole = true;
  }
}

bool overwrites(const Instruction& instruction, ValueId variable, const Aliases& aliases) {
  const auto* self = std::get_if<ValueRef>(&instruction.arguments[0].value);
  const auto* source =
      instruction.arguments.size() > 1 ? std::get_if<ValueRef>(&instruction.arguments[1].value) : nullptr;
  return aliases.schema(instruction).known.overwrites && self && self->id == variable &&
         (!source || aliases.group(source->id) != aliases.group(variable));
}

}  // namespace

VariableUses uses_of(const VariableRef& variable, const Program& program, const Aliases& aliases, BodyAliases& bodies) {
  const int group = aliases.group(variable.value);
  VariableUses uses{.written = aliases.written(group)};
  note_uses(program, aliases, group, bodies, uses);
  auto in_group = [&](ValueId value) { return value >= 0 && aliases.group(value) == group; };
  int touched = 0;
  for (const Instruction& instruction : program.instructions) {
    int here = 0;
    for (const Argument& argument : instruction.arguments) {
      for_each_value(argument, [&](ValueId value) { here += in_group(value); });
    }
    if (here > 0 && touched == 0) uses.overwritten = overwrites(instruction, variable.value, aliases);
    touched += here;
  }
  for (ValueId output : program.outputs) touched += in_group(output);
  uses.touched_once = touched == 1;
  return uses;
}

}  // namespace muster

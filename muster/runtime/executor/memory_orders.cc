#include "muster/runtime/executor/memory_orders.h"

#include <algorithm>

#include "muster/graph/op_table.h"

namespace muster {
namespace {

const ValueRef* operand(const Instruction& instruction, size_t position) {
  return position < instruction.arguments.size() ? std::get_if<ValueRef>(&instruction.arguments[position].value)
                                                 : nullptr;
}

// Whether it adds one value to another one, in whose group nothing else is that it has to do with.
bool is_plain_sum(const Program& program, const Aliases& aliases, const Instruction& instruction) {
  if (!form_of(program.op_of(instruction).name).adds || instruction.results.size() != 1) return false;
  const ValueRef *target = operand(instruction, 0), *value = operand(instruction, 1);
  if (target == nullptr || value == nullptr || instruction.results[0].size() != 1) return false;
  const int group = aliases.group(target->id);
  for (size_t i = 1; i < instruction.arguments.size(); ++i) {
    bool shares = false;
    for_each_value(instruction.arguments[i], [&](ValueId id) { shares = shares || aliases.group(id) == group; });
    if (shares) return false;
  }
  return true;
}

// Positions of images and weights; nothing for other ops than convolutions and their backward, which have a gradient in
// front.
std::vector<size_t> convolved_operands(const OpForm& form) {
  if (form.images == nullptr || form.images->native.empty()) return {};
  const size_t image = form.images->images.size() - 1;
  return {image, image + 1};
}

}  // namespace

std::vector<bool> fixed_orders(const Program& program, const Aliases& aliases) {
  std::vector<bool> fixed(aliases.num_groups(), false), is_input(aliases.num_groups(), false);
  std::vector<int> makers(aliases.num_groups(), 0);
  auto input = [&](ValueId value) { is_input[aliases.group(value)] = true; };
  for (const ProgramArgument& argument : program.arguments) input(argument.value);
  for (const VariableRef& variable : program.variables) input(variable.value);
  for (const Constant& constant : program.constants) input(constant.value);
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    const bool sums = is_plain_sum(program, aliases, instruction);
    for (const auto& values : instruction.results) {
      for (ValueId value : values) {
        if (value >= 0 && !aliases.writes(i, aliases.group(value))) ++makers[aliases.group(value)];
      }
    }
    for (int group : aliases.written_groups(i)) {
      if (!sums || group != aliases.group(operand(instruction, 0)->id)) fixed[group] = true;
    }
    if (family_of(program.op_of(instruction).name).by_strides) {
      for_each_value(instruction.arguments[0], [&](ValueId value) { fixed[aliases.group(value)] = true; });
    }
  }
  for (int group = 0; group < aliases.num_groups(); ++group) {
    if (aliases.written(group) && (is_input[group] || makers[group] != 1)) fixed[group] = true;
  }
  return fixed;
}

bool adds_in_any_order(const Program& program, const Aliases& aliases, const std::vector<bool>& fixed,
                       size_t instruction) {
  const Instruction& sum = program.instructions[instruction];
  return is_plain_sum(program, aliases, sum) && !fixed[aliases.group(operand(sum, 0)->id)];
}

std::vector<bool> only_convolved(const Program& program) {
  std::vector<bool> convolved(program.num_values, false), otherwise(program.num_values, false);
  for (const Instruction& instruction : program.instructions) {
    const std::vector<size_t> operands = convolved_operands(form_of(program.op_of(instruction).name));
    for (size_t i = 0; i < instruction.arguments.size(); ++i) {
      const bool here = std::find(operands.begin(), operands.end(), i) != operands.end();
      for_each_value(instruction.arguments[i], [&](ValueId value) {
        if (value >= 0) (here ? convolved : otherwise)[value] = true;
      });
    }
  }
  for (ValueId output : program.outputs) {
    if (output >= 0) otherwise[output] = true;
  }
  for (size_t i = 0; i < convolved.size(); ++i) convolved[i] = convolved[i] && !otherwise[i];
  return convolved;
}

}  // namespace muster

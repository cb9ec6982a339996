#include <algorithm>
#include <vector>

#include "muster/graph/aliases.h"
#include "muster/graph/passes/passes.h"

namespace muster {
namespace {

// Goes over one program from its end to its beginning and knows at each instruction what the rest of the program needs.
class Liveness {
 public:
  Liveness(const Program& program, const Aliases& aliases, bool is_body)
      : program_(program),
        aliases_(aliases),
        values_(program.num_values),
        groups_(aliases.num_groups()),
        draws_(is_body) {
    // Whoever called holds the memory of arguments and variables and looks at it afterwards.
    for (const ProgramArgument& argument : program.arguments) groups_[aliases.group(argument.value)] = true;
    for (const VariableRef& variable : program.variables) groups_[aliases.group(variable.value)] = true;
    for (ValueId output : program.outputs) use(output);
    live_.resize(program.instructions.size());
    for (size_t i = program.instructions.size(); i-- > 0;) visit(i);
  }

  bool live(size_t instruction) const { return live_[instruction]; }
  bool used(ValueId value) const { return values_[value]; }

 private:
  void use(ValueId value) {
    if (value == kNoValue) return;
    values_[value] = true;
    groups_[aliases_.group(value)] = true;
  }

  void visit(size_t number) {
    const Instruction& instruction = program_.instructions[number];
    bool live = aliases_.acts(number) || (aliases_.draws(number) && draws_);
    for (const auto& result : instruction.results) {
      for (ValueId value : result) live = live || (value != kNoValue && values_[value]);
    }
    for (int group : aliases_.written_groups(number)) live = live || groups_[group];
    if (!live) return;
    live_[number] = true;
    draws_ = draws_ || aliases_.draws(number);
    for (const Argument& argument : instruction.arguments) for_each_value(argument, [&](ValueId id) { use(id); });
  }

  const Program& program_;
  const Aliases& aliases_;
  std::vector<bool> values_, groups_, live_;
  bool draws_;  // Whether a random op follows. After a body there is always its next trip, or the rest of the program.
};

std::vector<bool> used_values(const Program& program) {
  std::vector<bool> used(program.num_values);
  for (ValueId output : program.outputs) {
    if (output != kNoValue) used[output] = true;
  }
  for (const Instruction& instruction : program.instructions) {
    for (const Argument& argument : instruction.arguments)
      for_each_value(argument, [&](ValueId id) { used[id] = true; });
  }
  return used;
}

// Drops the inputs of a cond or a loop that its bodies do not look at. Those of a loop_gradient have gradients, so they
// stay.
void drop_unused_inputs(Program& program, Instruction& instruction) {
  const std::string& name = program.op_of(instruction).name;
  if (name != kCond.name && name != kLoop.name) return;
  const bool is_loop = name == kLoop.name;
  auto& inputs = std::get<ArgumentList>(instruction.arguments[is_loop ? 2 : 1].value);
  const size_t state = is_loop ? std::get<ArgumentList>(instruction.arguments[1].value).size() : 0;
  std::vector<std::vector<bool>> used_in;
  for (int32_t body : instruction.bodies) used_in.push_back(used_values(program.bodies[body]));
  for (size_t i = inputs.size(); i-- > 0;) {
    auto position = [&](size_t body) { return i + state + (is_loop && body == 0 ? 1 : 0); };
    bool used = false;
    for (size_t b = 0; b < instruction.bodies.size(); ++b) {
      used = used || used_in[b][program.bodies[instruction.bodies[b]].arguments[position(b)].value];
    }
    if (used) continue;
    inputs.erase(inputs.begin() + static_cast<std::ptrdiff_t>(i));
    for (size_t b = 0; b < instruction.bodies.size(); ++b) {
      auto& arguments = program.bodies[instruction.bodies[b]].arguments;
      arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(position(b)));
    }
  }
}

void drop_unused_bodies(Program& program) {
  std::vector<int32_t> numbers(program.bodies.size(), -1);
  std::vector<Program> kept;
  for (Instruction& instruction : program.instructions) {
    for (int32_t& body : instruction.bodies) {
      if (numbers[body] < 0) {
        numbers[body] = static_cast<int32_t>(kept.size());
        kept.push_back(std::move(program.bodies[body]));
      }
      body = numbers[body];
    }
  }
  program.bodies = std::move(kept);
}

int run(Program& program, const std::vector<int>& argument_classes, bool is_body) {
  int removed = 0;
  std::vector<int> callers(program.bodies.size());
  for (const Instruction& instruction : program.instructions) {
    for (int32_t body : instruction.bodies) ++callers[body];
  }
  if (!program.bodies.empty()) {
    const Aliases aliases(program, argument_classes);
    for (size_t i = 0; i < program.bodies.size(); ++i)
      removed += run(program.bodies[i], aliases.argument_classes(i), true);
    for (Instruction& instruction : program.instructions) {
      bool own = std::all_of(instruction.bodies.begin(), instruction.bodies.end(),
                             [&](int32_t body) { return callers[body] == 1; });
      if (!instruction.bodies.empty() && own) drop_unused_inputs(program, instruction);
    }
  }

  const Aliases aliases(program, argument_classes);
  const Liveness liveness(program, aliases, is_body);
  std::vector<Instruction> kept;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    if (!liveness.live(i)) continue;
    Instruction& instruction = program.instructions[i];
    if (program.op_of(instruction).name == kLoop.name) {
      for (ValueId& saved : instruction.results[1]) {
        if (saved != kNoValue && !liveness.used(saved)) saved = kNoValue;
      }
    }
    kept.push_back(std::move(instruction));
  }
  removed += static_cast<int>(program.instructions.size() - kept.size());
  program.instructions = std::move(kept);
  std::erase_if(program.constants, [&](const Constant& constant) { return !liveness.used(constant.value); });
  drop_unused_bodies(program);
  return removed;
}

}  // namespace

int eliminate_dead(Program& program) { return run(program, {}, false); }

}  // namespace muster

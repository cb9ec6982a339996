#include "muster/graph/passes/rotate_loops.h"

#include <map>
#include <optional>

#include "muster/graph/end_calls.h"
#include "muster/graph/op_traits.h"

namespace muster {
namespace {

int64_t part_of(const Instruction& remote) { return std::get<int64_t>(remote.arguments[0].value); }

ArgumentList& inputs_of(Instruction& remote) { return std::get<ArgumentList>(remote.arguments[1].value); }

// Whether append() can put it behind another part, for the next trip.
bool can_be_appended(const Program& part) { return part.constants.empty() && part.bodies.empty() && only_reads(part); }

// Appends what `reading` does to `part`, and its outputs to the part's.
void append(Program& part, const Program& reading) {
  std::vector<ValueId> here(reading.num_values, kNoValue);
  auto device = [&](int32_t index) { return part.intern_device(reading.devices[index]); };
  for (const VariableRef& variable : reading.variables) {
    for (const VariableRef& known : part.variables) {
      if (known.name == variable.name) here[variable.value] = known.value;
    }
    if (here[variable.value] != kNoValue) continue;
    here[variable.value] = part.new_value();
    part.variables.push_back(
        {here[variable.value], variable.name, variable.spec, device(variable.device), variable.wire});
  }
  for (const Instruction& given : reading.instructions) {
    Instruction copy = given;
    const Op& op = reading.op_of(given);
    copy.op = part.intern_op(op.name, op.schema);
    copy.device = device(given.device);
    for (Argument& argument : copy.arguments) {
      for_each_value(argument, [&](ValueId& value) { value = value >= 0 ? here[value] : value; });
    }
    for (auto& values : copy.results) {
      for (ValueId& value : values) {
        if (value >= 0) value = here[value] = part.new_value();
      }
    }
    part.instructions.push_back(std::move(copy));
  }
  for (ValueId output : reading.outputs) part.outputs.push_back(output >= 0 ? here[output] : kNoValue);
}

class LoopRotator {
 public:
  explicit LoopRotator(Program& program) : program_(program) { count_uses(program_); }

  int run() {
    int moved = 0;
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      const Instruction& loop = program_.instructions[i];
      const bool counted = program_.op_of(loop).name == kLoop.name &&
                           std::holds_alternative<int64_t>(loop.arguments[0].value) && loop.bodies.size() == 1;
      if (!counted) continue;
      const int32_t body = loop.bodies[0];  // the loop itself moves on below
      while (const auto pair = movable(program_.bodies[body])) {
        move(i, pair->first, pair->second);
        ++i;  // the first reading stands before the loop now
        ++moved;
      }
    }
    return moved;
  }

 private:
  // A part that two instructions name cannot be changed for one of them.
  void count_uses(const Program& program) {
    for (const Instruction& instruction : program.instructions) {
      if (program.op_of(instruction).name == kRemote.name) ++uses_[part_of(instruction)];
    }
    for (const Program& body : program.bodies) count_uses(body);
  }

  // The first and the last call of some task in the body, if the first can go along with the last of the trip before.
  std::optional<std::pair<size_t, size_t>> movable(Program& body) {
    std::map<std::string, std::pair<size_t, size_t>> calls;
    for (size_t i = 0; i < body.instructions.size(); ++i) {
      if (body.op_of(body.instructions[i]).name != kRemote.name) continue;
      auto [it, is_new] = calls.try_emplace(program_.parts[part_of(body.instructions[i])].task, i, i);
      it->second.second = i;
    }
    for (const auto& [task, call] : calls) {
      if (call.first == call.second) continue;
      Instruction& first = body.instructions[call.first];
      const int64_t reading = part_of(first);
      const bool alone = uses_[reading] == 1 && uses_[part_of(body.instructions[call.second])] == 1;
      if (alone && inputs_of(first).empty() && can_be_appended(program_.parts[reading])) return call;
    }
    return std::nullopt;
  }

  void move(size_t loop_index, size_t first, size_t last) {
    Program& body = program_.bodies[program_.instructions[loop_index].bodies[0]];
    const Instruction reading = body.instructions[first];
    const Program& part = program_.parts[part_of(reading)];
    Instruction& writing = body.instructions[last];
    append(program_.parts[part_of(writing)], part);

    Instruction before = reading;
    before.op = program_.intern_op(kRemote.name, kRemote.schema);
    before.device = program_.intern_device(body.devices[reading.device]);
    Instruction& loop = program_.instructions[loop_index];
    ArgumentList& state = std::get<ArgumentList>(loop.arguments[1].value);
    for (size_t i = 0; i < reading.results[0].size(); ++i) {
      ValueId& outside = before.results[0][i];
      const ValueId inside = reading.results[0][i];
      writing.results[0].push_back(inside == kNoValue ? kNoValue : body.new_value());
      if (inside == kNoValue) continue;
      outside = program_.new_value();
      ProgramArgument argument{.value = inside, .spec = {}, .device = reading.device, .any = true};
      for (const VariableRef& variable : part.variables) {
        if (variable.value == part.outputs[i]) argument.spec = variable.spec;
      }
      body.arguments.insert(body.arguments.begin() + 1 + static_cast<std::ptrdiff_t>(state.size()),
                            std::move(argument));
      body.outputs.push_back(writing.results[0].back());
      state.push_back({ValueRef{outside}});
      loop.results[0].push_back(kNoValue);
      loop.results[1].push_back(kNoValue);
    }
    body.instructions.erase(body.instructions.begin() + static_cast<std::ptrdiff_t>(first));
    program_.instructions.insert(program_.instructions.begin() + static_cast<std::ptrdiff_t>(loop_index),
                                 std::move(before));
  }

  Program& program_;
  std::map<int64_t, int> uses_;
};

}  // namespace

int rotate_loops(Program& program) { return LoopRotator(program).run(); }

}  // namespace muster

#include <optional>
#include <vector>

#include "muster/graph/op_schema.h"
#include "muster/graph/op_table.h"
#include "muster/graph/op_traits.h"
#include "muster/graph/passes/passes.h"

namespace muster {
namespace {

// The operand of an op that is written in place, or of a view that shows the same elements in the same order as another
// value: detach(x), t(t(x)).
class ViewCanceller {
 public:
  explicit ViewCanceller(Program& program) : program_(program), definition_(program.num_values, nullptr) {
    for (const Op& op : program.ops) written_operand_.push_back(written_operand(*shared_schema(op.schema)));
  }

  int run() {
    std::vector<ValueId> same(program_.num_values);
    for (ValueId value = 0; value < program_.num_values; ++value) same[value] = value;
    int cancelled = 0;
    for (Instruction& instruction : program_.instructions) {
      for (Argument& argument : instruction.arguments) {
        for_each_value(argument, [&](ValueId& value) { value = value >= 0 ? same[value] : value; });
      }
      if (instruction.results.size() != 1 || instruction.results[0].size() != 1) continue;
      const ValueId result = instruction.results[0][0];
      if (result == kNoValue) continue;
      definition_[result] = &instruction;
      if (const std::optional<size_t> written = written_operand_[instruction.op]) {
        // Two names for one memory; with one name whoever cuts the program apart sees that.
        if (const ValueId memory = operand(instruction, *written); memory != kNoValue) {
          same[result] = memory;
          for (ValueId& output : program_.outputs) output = output == result ? memory : output;
        }
        continue;
      }
      const ValueId original = shown_by(instruction);
      if (original == kNoValue) continue;
      same[result] = original;
      ++cancelled;
    }
    return cancelled;
  }

 private:
  const std::string& name(const Instruction& instruction) const { return program_.op_of(instruction).name; }

  // The operand that an op writes to and returns: by its schema, since a name says nothing (__lshift__ writes nothing).
  static std::optional<size_t> written_operand(const OpSchema& schema) {
    if (schema.results.size() != 1 || !schema.results[0].written || schema.results[0].is_list()) return std::nullopt;
    for (size_t i = 0; i < schema.arguments.size(); ++i) {
      const SchemaArgument& argument = schema.arguments[i];
      if (argument.written && !argument.is_list() && argument.aliases == schema.results[0].aliases) return i;
    }
    return std::nullopt;
  }

  static ValueId operand(const Instruction& instruction, size_t number = 0) {
    if (number >= instruction.arguments.size()) return kNoValue;
    const auto* ref = std::get_if<ValueRef>(&instruction.arguments[number].value);
    return ref ? ref->id : kNoValue;
  }

  ValueId shown_by(const Instruction& view) const {
    const ValueId inner = operand(view);
    if (inner == kNoValue) return kNoValue;
    const OpForm& form = form_of(name(view));
    if (form.identity) return inner;
    const Instruction* other = definition_[inner];
    if (other == nullptr || name(*other) != name(view)) return kNoValue;
    if (form.transposes) return operand(*other);
    if (name(view) == "aten::transpose.int" && view.arguments[1] == other->arguments[1] &&
        view.arguments[2] == other->arguments[2]) {
      return operand(*other);
    }
    return kNoValue;
  }

  Program& program_;
  std::vector<const Instruction*> definition_;
  std::vector<std::optional<size_t>> written_operand_;  // by op
};

bool reshapes_in_place(const Program& program) {
  for (const Op& op : program.ops) {
    if (changes_shape_in_place(op.name)) return true;
  }
  return false;
}

}  // namespace

int cancel_views(Program& program) {
  int cancelled = 0;
  for (Program& body : program.bodies) cancelled += cancel_views(body);
  // A shape that changes under its name is no longer the shape of its views.
  return reshapes_in_place(program) ? cancelled : cancelled + ViewCanceller(program).run();
}

}  // namespace muster

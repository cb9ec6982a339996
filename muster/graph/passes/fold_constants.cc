#include <vector>

#include "muster/graph/aliases.h"
#include "muster/graph/op_traits.h"
#include "muster/graph/passes/passes.h"

namespace muster {
namespace {

// Elements that a list of integers would make as a shape; a factory op is not run just to see that its result is too
// large.
bool names_a_large_shape(const Instruction& instruction, int64_t most) {
  for (const Argument& argument : instruction.arguments) {
    auto* list = std::get_if<ArgumentList>(&argument.value);
    if (!list) continue;
    int64_t elements = 1;
    for (const Argument& element : *list) {
      auto* size = std::get_if<int64_t>(&element.value);
      if (!size || *size <= 0) continue;
      if (*size > most / elements) return true;
      elements *= *size;
    }
  }
  return false;
}

class Folder {
 public:
  Folder(Program& program, const Aliases& aliases, const Evaluate& evaluate, int64_t max_bytes)
      : program_(program),
        aliases_(aliases),
        evaluate_(evaluate),
        max_bytes_(max_bytes),
        constant_(program.num_values),
        kept_apart_(aliases.num_groups()) {
    for (const Constant& constant : program.constants) constant_[constant.value] = true;
    // The caller owns what it is given; it must not be the program's own constant.
    for (ValueId output : program.outputs) {
      if (output != kNoValue) kept_apart_[aliases.group(output)] = true;
    }
    // So does whoever receives what is sent, which may be a task of this process.
    for (const Instruction& instruction : program.instructions) {
      if (program.op_of(instruction).name != kSend.name) continue;
      for (const Argument& argument : instruction.arguments) {
        for_each_value(argument, [&](ValueId id) { kept_apart_[aliases.group(id)] = true; });
      }
    }
  }

  int run() {
    std::vector<Instruction> kept;
    for (Instruction& instruction : program_.instructions) {
      if (!fold(instruction)) kept.push_back(std::move(instruction));
    }
    int folded = static_cast<int>(program_.instructions.size() - kept.size());
    program_.instructions = std::move(kept);
    return folded;
  }

 private:
  bool fold(const Instruction& instruction) {
    if (!may_fold(instruction)) return false;
    std::vector<ValueId> values;
    for (const auto& result : instruction.results) values.insert(values.end(), result.begin(), result.end());
    std::optional<std::vector<Constant>> constants = evaluate_(program_, instruction);
    if (!constants || constants->size() != values.size()) return false;
    int64_t bytes = 0;
    for (const Constant& constant : *constants) {
      if (!constant.bytes) return false;
      bytes += static_cast<int64_t>(constant.bytes->size());
    }
    if (bytes > max_bytes_) return false;
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] == kNoValue) continue;
      (*constants)[i].value = values[i];
      program_.constants.push_back(std::move((*constants)[i]));
      constant_[values[i]] = true;
    }
    return true;
  }

  bool may_fold(const Instruction& instruction) const {
    const OpSchema& schema = aliases_.schema(instruction);
    // A copy says where a value must be, which a constant cannot.
    if (!is_pure(schema) || schema.name == kCopy.name || names_a_large_shape(instruction, max_bytes_)) return false;
    bool may = true;
    for (const Argument& argument : instruction.arguments) {
      for_each_value(argument,
                     [&](ValueId id) { may = may && constant_[id] && !aliases_.written(aliases_.group(id)); });
    }
    for (size_t r = 0; r < instruction.results.size(); ++r) {
      if (!schema.results[r].is_tensor()) return false;
      for (ValueId value : instruction.results[r]) {
        if (value == kNoValue) continue;
        may = may && !aliases_.written(aliases_.group(value)) && !kept_apart_[aliases_.group(value)];
      }
    }
    return may;
  }

  Program& program_;
  const Aliases& aliases_;
  const Evaluate& evaluate_;
  const int64_t max_bytes_;
  std::vector<bool> constant_;    // by value
  std::vector<bool> kept_apart_;  // by group
};

int run(Program& program, const std::vector<int>& argument_classes, const Evaluate& evaluate, int64_t max_bytes) {
  const Aliases aliases(program, argument_classes);
  int folded = 0;
  for (size_t i = 0; i < program.bodies.size(); ++i) {
    folded += run(program.bodies[i], aliases.argument_classes(i), evaluate, max_bytes);
  }
  return folded + Folder(program, aliases, evaluate, max_bytes).run();
}

}  // namespace

int fold_constants(Program& program, const Evaluate& evaluate, int64_t max_bytes) {
  return evaluate ? run(program, {}, evaluate, max_bytes) : 0;
}

}  // namespace muster

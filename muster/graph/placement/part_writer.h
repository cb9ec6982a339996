// Writes the parts that a program is split into.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/status.h"
#include "muster/graph/op_traits.h"
#include "muster/graph/program.h"

namespace muster {

// Copies instructions of one program into another, whose values have their own numbers.
class PartWriter {
 public:
  PartWriter(const Program& from, std::string name, std::string task) : from_(from) {
    to_.name = std::move(name);
    to_.task = std::move(task);
    to_.seed = from.seed;
  }

  bool knows(ValueId value) const { return numbers_.contains(value); }

  ValueId define(ValueId value) {
    if (value == kNoValue) return kNoValue;
    return numbers_[value] = to_.new_value();
  }
  ValueId use(ValueId value) {
    if (value < 0) return value;
    if (auto known = numbers_.find(value); known != numbers_.end()) return known->second;
    for (const Constant& constant : from_.constants) {
      if (constant.value != value) continue;
      Constant copy = constant;
      copy.value = define(value);
      to_.constants.push_back(std::move(copy));
      return numbers_[value];
    }
    // A mistake of ours, but a program of somebody else: it must not end the server that splits it.
    throw Error(Status(StatusCode::kInternal,
                       str_cat("program \"", from_.name, "\" cannot be split: value ", value, " is not in its part")));
  }

  void add_argument(ValueId value, const std::string& device) {
    to_.arguments.push_back({.value = define(value), .device = to_.intern_device(device), .any = true});
  }
  void add_variable(ValueId value, const VariableRef& variable, const std::string& device) {
    if (knows(value)) return;
    to_.variables.push_back({define(value), variable.name, variable.spec, to_.intern_device(device), variable.wire});
  }
  void add_instruction(const Instruction& original) {
    Instruction copy = original;
    for (Argument& argument : copy.arguments) {
      for_each_value(argument, [&](ValueId& id) { id = use(id); });
    }
    const Op& op = from_.op_of(original);
    copy.op = to_.intern_op(op.name, op.schema);
    copy.device = to_.intern_device(from_.devices[original.device]);
    for (auto& values : copy.results) {
      for (ValueId& value : values) value = define(value);
    }
    for (int32_t& body : copy.bodies) {
      to_.bodies.push_back(from_.bodies[body]);
      body = static_cast<int32_t>(to_.bodies.size() - 1);
    }
    to_.instructions.push_back(std::move(copy));
  }
  void add(const ControlOp& op, std::vector<Argument> arguments, std::vector<std::vector<ValueId>> results,
           const std::string& device) {
    to_.instructions.push_back({.op = to_.intern_op(op.name, op.schema),
                                .device = to_.intern_device(device),
                                .arguments = std::move(arguments),
                                .results = std::move(results)});
  }
  // The value as it is now, whatever is written to its memory later.
  ValueId snapshot(ValueId value, const std::string& device) {
    const ValueId now = to_.new_value();
    add(kCopy, {{ValueRef{use(value)}}}, {{now}}, device);
    return now;
  }

  Program& program() { return to_; }

 private:
  const Program& from_;
  Program to_;
  std::map<ValueId, ValueId> numbers_;
};

}  // namespace muster

// Writes programs down in a few lines, for the tests and the seeds of the fuzzer. Not part of the library.
#pragma once

#include <cstring>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/check.h"
#include "muster/graph/program.h"
#include "muster/graph/test_schemas.h"

namespace muster::testing_support {

inline Argument ref(ValueId value) { return {ValueRef{value}}; }
inline Argument number(double value) { return {value}; }
inline Argument integer(int64_t value) { return {value}; }
inline Argument refs(const std::vector<ValueId>& values) {
  ArgumentList list;
  for (ValueId value : values) list.push_back(ref(value));
  return {std::move(list)};
}
inline Argument integers(const std::vector<int64_t>& values) {
  ArgumentList list;
  for (int64_t value : values) list.push_back({value});
  return {std::move(list)};
}

class Builder {
 public:
  explicit Builder(std::string name = "step") { program.name = std::move(name); }

  ValueId argument(TensorSpec spec = {DType::kFloat, {2, 2}}, const std::string& device = "") {
    ValueId value = program.new_value();
    program.arguments.push_back({value, std::move(spec), program.intern_device(device)});
    return value;
  }

  ValueId variable(const std::string& name, const std::string& device = "") {
    ValueId value = program.new_value();
    program.variables.push_back({value, name, {DType::kFloat, {2, 2}}, program.intern_device(device)});
    return value;
  }

  // A 0-dim float64, as libtorch makes of a C++ number.
  ValueId constant(double value, bool is_number = true) {
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    ValueId id = program.new_value();
    program.constants.push_back({id, {DType::kDouble, {}}, std::make_shared<std::string>(std::move(bytes)), is_number});
    return id;
  }

  // Appends an instruction with `results` values per tensor list and one per other result. Returns its number.
  size_t instruction(const std::string& name, std::vector<Argument> arguments, std::vector<size_t> results = {1},
                     const std::string& device = "", std::vector<int32_t> bodies = {}) {
    auto schema = schema_of(name);
    MUSTER_CHECK(schema.has_value()) << name;
    Instruction made{.op = program.intern_op(name, *schema),
                     .device = program.intern_device(device),
                     .arguments = std::move(arguments),
                     .bodies = std::move(bodies)};
    for (size_t count : results) {
      made.results.emplace_back();
      for (size_t i = 0; i < count; ++i) made.results.back().push_back(program.new_value());
    }
    program.instructions.push_back(std::move(made));
    return program.instructions.size() - 1;
  }

  // The same for an op with one tensor as its result; returns that.
  ValueId op(const std::string& name, std::vector<Argument> arguments, const std::string& device = "") {
    return program.instructions[instruction(name, std::move(arguments), {1}, device)].results[0][0];
  }

  ValueId add(ValueId a, ValueId b, const std::string& device = "") {
    return op("aten::add.Tensor", {ref(a), ref(b), integer(1)}, device);
  }
  ValueId add_(ValueId a, ValueId b, const std::string& device = "") {
    return op("aten::add_.Tensor", {ref(a), ref(b), integer(1)}, device);
  }
  ValueId relu(ValueId a, const std::string& device = "") { return op("aten::relu", {ref(a)}, device); }

  int32_t body(Program made) {
    program.bodies.push_back(std::move(made));
    return static_cast<int32_t>(program.bodies.size() - 1);
  }

  Program finish(std::vector<ValueId> outputs) {
    program.outputs = std::move(outputs);
    return std::move(program);
  }

  Program program;
};

// repeat(3): state += input, and `counter`, an input, is increased in place.
inline Program loop_program() {
  Builder body("body");
  body.argument({DType::kLong, {}});
  ValueId state = body.argument(), input = body.argument(), counter = body.argument();
  body.add_(counter, input);
  Program inside = body.finish({body.add(state, input)});

  Builder outer("train");
  ValueId x = outer.argument(), w = outer.argument(), counts = outer.variable("counter");
  int32_t index = outer.body(std::move(inside));
  size_t loop = outer.instruction(kLoop.name, {integer(3), refs({x}), refs({w, counts})}, {1, 1, 1}, "", {index});
  return outer.finish({outer.program.instructions[loop].results[0][0]});
}

// A step of stochastic gradient descent on one matrix: forward, a made-up gradient, two updates.
inline Program small_program() {
  Builder b("step");
  ValueId x = b.argument();
  ValueId w = b.variable("w", "/job:ps/task:0/device:CPU:0"), bias = b.variable("b");
  ValueId rate = b.constant(0.1);
  ValueId y = b.op("aten::mm", {ref(x), ref(b.op("aten::t", {ref(w)}))}, "/device:GPU:0");
  ValueId out = b.relu(b.add(y, bias));
  b.op("aten::sub_.Tensor", {ref(w), ref(b.op("aten::mul.Tensor", {ref(out), ref(rate)})), integer(1)});
  b.op("aten::sub_.Tensor", {ref(bias), ref(b.op("aten::mul.Tensor", {ref(y), ref(rate)})), integer(1)});
  return b.finish({out});
}

}  // namespace muster::testing_support

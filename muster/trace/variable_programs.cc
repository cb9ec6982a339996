#include "muster/trace/variable_programs.h"

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/ops/op_catalog.h"

namespace muster {
namespace {

// An op that writes to its first argument.
void add_op(Program& program, const std::string& op, int32_t device, std::vector<Argument> arguments,
            bool returns = true) {
  const std::optional<std::string> schema = schema_of(op);
  if (!schema) throw internal("this libtorch has no ", op);
  const int32_t number = program.intern_op(op, *schema);
  program.instructions.push_back({.op = number, .device = device, .arguments = std::move(arguments)});
  if (returns) program.instructions.back().results = {{program.new_value()}};
}

const VariableRef& add_variable(Program& program, const Variable::State& variable) {
  const ValueId value = program.new_value();
  program.variables.push_back(
      {value, variable.options.name, variable.spec, program.intern_device(variable.options.device)});
  return program.variables.back();
}

Argument add_argument(VariableProgram& made, const at::Tensor& value) {
  PlainTensors plain;
  const ValueId given = made.program.new_value();
  made.program.arguments.push_back({.value = given, .spec = spec_of(value)});
  made.arguments.push_back(value.contiguous());
  return {ValueRef{given}};
}

void add_assignment(VariableProgram& made, const Variable::State& variable, const at::Tensor& value) {
  const VariableRef self = add_variable(made.program, variable);
  add_op(made.program, "aten::copy_", self.device, {{ValueRef{self.value}}, add_argument(made, value), {false}});
}

}  // namespace

VariableProgram initializing(const Variable::State& variable, const InitialValue& initial) {
  VariableProgram made{.program = {.name = "initialize " + variable.options.name}};
  if (!initial.fill()) {
    add_assignment(made, variable, initial.tensor());
    return made;
  }
  using Fill = InitialValue::Fill;
  const Fill& fill = *initial.fill();
  made.program.seed = fill.seed;
  const VariableRef self = add_variable(made.program, variable);
  const Argument memory{ValueRef{self.value}};
  if (initial.rows_on_demand()) {
    add_op(made.program, "muster_rows::on_demand_", self.device,
           {memory, {int64_t{fill.kind}}, {fill.a}, {fill.b}, {static_cast<int64_t>(fill.seed)}, {fill.first_row}},
           /*returns=*/false);
    return made;
  }
  // Filled as a whole first: that is how an executor sees that the variable needs no value before.
  add_op(made.program, "aten::fill_.Scalar", self.device, {memory, {fill.kind == Fill::kConstant ? fill.a : 0.0}});
  if (fill.kind != Fill::kConstant) {
    add_op(made.program, fill.kind == Fill::kUniform ? "aten::uniform_" : "aten::normal_", self.device,
           {memory, {fill.a}, {fill.b}, {HereGenerator{}}});
  }
  return made;
}

VariableProgram initializing(const std::vector<Variable>& variables) {
  VariableProgram made{.program = {.name = "initializer"}};
  for (const Variable& variable : variables) add_assignment(made, *variable.state(), variable.state()->tracing_value());
  return made;
}

VariableProgram reading(const Variable::State& variable) {
  VariableProgram made{.program = {.name = "read " + variable.options.name}};
  made.program.outputs.push_back(add_variable(made.program, variable).value);
  return made;
}

VariableProgram writing(const Variable::State& variable, VariableHome::Write how, const at::Tensor& value) {
  VariableProgram made{.program = {.name = "write " + variable.options.name}};
  if (how == VariableHome::Write::kAssign && spec_of(value).sizes == variable.spec.sizes) {
    add_assignment(made, variable, value);
    return made;
  }
  const VariableRef self = add_variable(made.program, variable);
  const Argument memory{ValueRef{self.value}}, given = add_argument(made, value);
  switch (how) {
    case VariableHome::Write::kAssign:
      add_op(made.program, "aten::copy_", self.device, {memory, given, {false}});
      break;
    case VariableHome::Write::kAdd:
      add_op(made.program, "aten::add_.Tensor", self.device, {memory, given, {int64_t{1}}});
      break;
    case VariableHome::Write::kSub:
      add_op(made.program, "aten::sub_.Tensor", self.device, {memory, given, {int64_t{1}}});
      break;
  }
  return made;
}

}  // namespace muster

// Small programs about variables, written by hand: what a function would be traced for, if it were worth it.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "muster/graph/program.h"
#include "muster/trace/variable_scope.h"

namespace muster {

struct VariableProgram {
  Program program{};
  std::vector<at::Tensor> arguments{};
};

// Gives the variable its initial value: sends it, or has it filled where the variable lives.
VariableProgram initializing(const Variable::State& variable, const InitialValue& initial);
// The same for several at once, with values that are sent.
VariableProgram initializing(const std::vector<Variable>& variables);
// Returns the value.
VariableProgram reading(const Variable::State& variable);
VariableProgram writing(const Variable::State& variable, VariableHome::Write how, const at::Tensor& value);

}  // namespace muster

// Variables in formulas: w + v, 2 * w, w == v, element by element, as for tensors.
#pragma once

#include <ATen/TensorOperators.h>

#include <concepts>
#include <type_traits>

#include "muster/trace/variable.h"

namespace muster {

namespace formulas {

template <class A, class B>
concept VariableAndNumber = std::same_as<A, Variable> && std::is_arithmetic_v<B>;

// A variable beside a tensor becomes one by itself.
template <class A, class B>
concept VariableFormula =
    (std::same_as<A, Variable> && std::same_as<B, Variable>) || VariableAndNumber<A, B> || VariableAndNumber<B, A>;

inline at::Tensor operand(const Variable& variable) { return variable.value(); }
template <class Number>
at::Scalar operand(Number number) {
  return number;
}

}  // namespace formulas

template <class A, class B>
  requires formulas::VariableFormula<A, B>
at::Tensor operator+(const A& a, const B& b) {
  return formulas::operand(a) + formulas::operand(b);
}

template <class A, class B>
  requires formulas::VariableFormula<A, B>
at::Tensor operator-(const A& a, const B& b) {
  return formulas::operand(a) - formulas::operand(b);
}

template <class A, class B>
  requires formulas::VariableFormula<A, B>
at::Tensor operator*(const A& a, const B& b) {
  return formulas::operand(a) * formulas::operand(b);
}

template <class A, class B>
  requires formulas::VariableFormula<A, B>
at::Tensor operator/(const A& a, const B& b) {
  return formulas::operand(a) / formulas::operand(b);
}

// Where they are equal; the handles themselves are not compared.
template <class A, class B>
  requires formulas::VariableFormula<A, B>
at::Tensor operator==(const A& a, const B& b) {
  return formulas::operand(a) == formulas::operand(b);
}

}  // namespace muster

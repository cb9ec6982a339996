// Operands that an honest program would not hand to an op, and some that it would.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <random>
#include <string>
#include <vector>

namespace muster::testing_support {

// Makes stacks for one op. What has been accepted once is the start of further attempts: with one operand changed it
// gets past most checks.
class Operands {
 public:
  Operands(const c10::FunctionSchema& schema, uint64_t seed, std::vector<std::vector<c10::IValue>> honest);

  std::vector<c10::IValue> make();
  void accepted(std::vector<c10::IValue> stack);

 private:
  c10::IValue argument(const c10::Argument& argument);
  c10::IValue changed(const c10::IValue& value, const c10::Argument& given);
  c10::IValue of_type(const c10::TypePtr& type, const std::string& name, int32_t length);
  at::Tensor tensor(const std::string& name);
  at::Tensor indices(const std::vector<int64_t>& sizes);
  at::Tensor in_some_order(at::Tensor made);
  std::vector<int64_t> sizes();
  int64_t integer();
  double real();

  int64_t below(int64_t end) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(end)); }
  bool chance(int percent) { return below(100) < percent; }
  template <class T>
  const T& one_of(const std::vector<T>& choices) {
    return choices[below(static_cast<int64_t>(choices.size()))];
  }

  const c10::FunctionSchema& schema_;
  std::mt19937_64 random_;
  const std::vector<std::vector<c10::IValue>> honest_;
  std::vector<std::vector<c10::IValue>> accepted_;
  // Of the call that is being made: most tensors look like each other.
  std::vector<int64_t> usual_sizes_{};
  at::ScalarType usual_type_ = at::kFloat;
};

// "aten::relu(float32[2, 3])": what a report says about a call that ended badly.
std::string describe_call(const std::string& op, const std::vector<c10::IValue>& stack);

}  // namespace muster::testing_support

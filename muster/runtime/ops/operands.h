// What can be done with the operands of an op, or of a program, before it is called, and with its results.
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "muster/runtime/executor/plan.h"

namespace muster {

// The tensors of a list argument. Throws Error{kInvalidArgument} if one is not defined that the op cannot do without.
c10::IValue list_operand(const Step::ListSlot& slot, const std::vector<at::Tensor>& values);

// Two images in different orders make an op that works element by element jump about in one of them.
void use_one_order(const Step& step, std::vector<c10::IValue>& stack);

// Of a tensor or a list of them.
void put_in_usual_order(c10::IValue& operand);

// Besides the stack and, unless that was handed over to it, the value that is about to be dropped.
bool nobody_else_sees(const c10::IValue& operand, bool handed_over);

// Whether what an op makes of these element by element is a tensor of the type and the shape of the first.
bool results_fit(at::ArrayRef<c10::IValue> operands);

// Instead of a copy the variable gets the memory of the value that it is given, which gets the variable's. False: it is
// of another kind, or somebody else has it, too. REQUIRES: nobody else sees the variable.
bool move_into(const at::Tensor& variable, const c10::IValue& given, bool handed_over);

// Throws Error{kInvalidArgument} for tensors that are not as the program wants them.
void check_arguments(const Program& program, const std::vector<at::Tensor>& arguments);

// values[index]. Throws Error{kOutOfRange}.
at::Tensor element_of(const at::Tensor& values, int64_t index);

// What an op has returned, a tensor or a list of them, becomes the values with these numbers.
void store_result(const std::vector<ValueId>& numbers, c10::IValue result, std::vector<at::Tensor>& values);

}  // namespace muster

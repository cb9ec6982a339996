// Steps of optimizers that go over the memory of a variable once.
#pragma once

#include <ATen/core/ivalue.h>

#include <string_view>
#include <vector>

namespace muster {

// Does what an op of step_ops.h does, up to rounding, with the operands on the stack, and leaves its result there.
// False: these operands are not its business (other types than float and double, tensors that do not lie alike or share
// memory), and nothing was done.
//
// The op itself is made of ones of libtorch, each of which reads and writes whole tensors: a step of Adam has thirteen
// of them, and brings what a large variable has from memory as often. Here each number is fetched once. Threads share
// large tensors, and the bits are the same however many they are.
using OnePass = bool (*)(std::vector<c10::IValue>& stack);

// By its name. Null: there is none.
OnePass one_pass(std::string_view op_name);

}  // namespace muster

// Arithmetic on a few numbers, and their sums and means.
#pragma once

#include <ATen/core/ivalue.h>

#include <string_view>
#include <vector>

namespace muster {

// Does what libtorch's op does, to the bit, with the operands on the stack, and leaves its result there; false: these
// operands are not its business, and nothing was done. It may put the result into the memory of the first operand if
// `overwrite` is true, as it does anyway where that is what the op is for.
//
// libtorch takes thousands of instructions to find out how two tensors are to be added. For four numbers in the same
// order of memory that is a hundred times the work itself, and small steps consist of such ops.
using SmallOp = bool (*)(std::vector<c10::IValue>& stack, bool overwrite);

// By its name, with overload. Null: there is none.
SmallOp small_op(std::string_view op_name);

}  // namespace muster

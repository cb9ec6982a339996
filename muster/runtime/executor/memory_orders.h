#pragma once

#include <vector>

#include "muster/graph/aliases.h"
#include "muster/graph/program.h"

namespace muster {

// By alias group: whether its memory must lie as it was recorded. So must what is viewed by strides, and what is
// written to, since who brings that to another order writes to a copy. But a gradient that autograd has added another
// one to is written by that sum alone, which takes memory in any order.
std::vector<bool> fixed_orders(const Program& program, const Aliases& aliases);

// Whether the instruction is such a sum: it must be given its first operand as it is.
bool adds_in_any_order(const Program& program, const Aliases& aliases, const std::vector<bool>& fixed,
                       size_t instruction);

// By value: whether convolutions and their backward are all that uses it, as an image or as weights. They bring such
// operands to the order that they want, so it is best made in that.
std::vector<bool> only_convolved(const Program& program);

}  // namespace muster

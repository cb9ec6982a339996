#pragma once

#include "muster/graph/aliases.h"
#include "muster/graph/program.h"

namespace muster {

// Whether the argument `indices` of instruction number `index` comes from the op that this one is the backward pass of,
// which was given the same tensor as its argument `self`, and nobody has written to either since: then they are places
// in that tensor, and nobody needs to look.
bool found_by_forward(const Program& program, const Aliases& aliases, size_t index, size_t indices, size_t self);

}  // namespace muster

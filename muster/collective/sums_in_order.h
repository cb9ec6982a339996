// What several ranks have as one, in an order that is the same everywhere.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "muster/collective/machines.h"
#include "muster/runtime/worker/collectives.h"

namespace muster {

// In the order of the ranks. Half precision is rounded once, at the end: if `all` has it.
void reduce_into(at::Tensor& all, Reduction how, const std::vector<at::Tensor>& by_rank);
at::Tensor reduced(Reduction how, const std::vector<at::Tensor>& by_rank);
// What the ranks of one machine have, to be put together with what others have: not rounded yet. Of the only one it is
// what that one has, and its memory.
at::Tensor reduced_inside(Reduction how, const std::vector<at::Tensor>& by_rank);
// Inside each machine first, if there are several, as reduce_by_machine() does: the bits of a sum do not depend on the
// way that it takes.
at::Tensor reduced(Reduction how, const std::vector<at::Tensor>& by_rank, const Machines& machines);

}  // namespace muster

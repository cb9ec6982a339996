// Sums of ranks that read each other's memory.
#pragma once

#include <vector>

#include "muster/collective/collective_run.h"
#include "muster/collective/packs.h"

namespace muster {

// Everybody says where it has what it gives and where it makes the sum. Each adds up its share of what all have there,
// piece by piece, and when it has, the others copy that share of the sum: nothing is sent but three short messages.
std::vector<at::Tensor> reduce_by_reading(const CollectiveCall& call, const std::vector<at::Tensor>& values,
                                          const std::vector<Pack>& packs, Mail& mail, MemoryOfOthers& memory);

}  // namespace muster

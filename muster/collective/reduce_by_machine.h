// A sum of ranks of several machines, of which some have several ranks.
#pragma once

#include <vector>

#include "muster/collective/collective_run.h"
#include "muster/collective/packs.h"

namespace muster {

// Inside each machine first, then across: what travels between machines is one tensor of each, and not one of each
// rank.
// REQUIRES: machines.several().
std::vector<at::Tensor> reduce_by_machine(const CollectiveCall& call, const std::vector<at::Tensor>& values,
                                          const std::vector<Pack>& packs, const Machines& machines, Mail& mail);

}  // namespace muster

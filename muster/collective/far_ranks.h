// How the ranks of a group on different machines come to have connections of their own.
#pragma once

#include <string>
#include <vector>

#include "muster/near/near_process.h"
#include "muster/runtime/worker/collectives.h"

namespace muster {

// Connections that carry nothing but what is summed, and that are not encrypted: who may make them.
enum class GroupSockets {
  kNone,
  kOfThisMachine,  // processes of this machine alone
  kOfAll,          // whoever reaches it, and was told the words over the group
};

// Sockets by rank; without a number for this one and for those that `wanted` is false of, or that cannot be reached at
// another port than that of their server. Both of two ranks have one, or neither. Every rank of the group calls this at
// the same time; what is said goes over the group, so a stranger at the port knows no word of it. `addresses`: by rank,
// "host:port".
// REQUIRES: `who` is not kNone, and the same at all ranks.
std::vector<Descriptor> meet_far_ranks(Collectives& group, const std::vector<std::string>& addresses,
                                       const std::vector<bool>& wanted, GroupSockets who);

}  // namespace muster

// Which ranks of a group are processes of this machine.
#pragma once

#include <memory>
#include <vector>

#include "muster/near/near_post.h"
#include "muster/runtime/worker/collectives.h"

namespace muster {

// By rank; null for this one and for those that are elsewhere. Both of two ranks have it, or neither. Every rank of the
// group calls this at the same time; `token` is the same at all of them. `wanted`, by rank: who may be near; what two
// ranks say of each other is the same.
std::vector<std::shared_ptr<NearPost>> meet_near_ranks(Collectives& group, const std::vector<bool>& wanted,
                                                       uint64_t token);

}  // namespace muster

// What ranks tell each other while a group is formed.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "muster/runtime/worker/collectives.h"

namespace muster {

// A row from every rank.
inline at::Tensor rows_of_all(Collectives& group, const at::Tensor& own, const std::string& purpose) {
  return group.run({.kind = CollectiveKind::kAllGather, .purpose = purpose}, {own.unsqueeze(0)})[0];
}

}  // namespace muster

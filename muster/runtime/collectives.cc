#include "muster/runtime/collectives.h"

namespace muster {

std::string CollectiveCall::to_string() const {
  switch (kind) {
    case CollectiveKind::kAllReduce: break;
    case CollectiveKind::kAllGather: return "all_gather";
    case CollectiveKind::kBroadcast: return str_cat("broadcast(from rank ", root, ")");
  }
  switch (reduction) {
    case Reduction::kSum: return "all_reduce(sum)";
    case Reduction::kMin: return "all_reduce(min)";
    case Reduction::kMax: return "all_reduce(max)";
  }
  return "";
}

CollectiveCall CollectiveCall::from_numbers(int64_t kind, int64_t reduction, int64_t root) {
  if (kind < 0 || kind > static_cast<int64_t>(CollectiveKind::kBroadcast)) {
    throw invalid_argument("there is no collective with number ", kind);
  }
  if (reduction < 0 || reduction > static_cast<int64_t>(Reduction::kMax)) {
    throw invalid_argument("there is no reduction with number ", reduction);
  }
  return {static_cast<CollectiveKind>(kind), static_cast<Reduction>(reduction), root};
}

}  // namespace muster

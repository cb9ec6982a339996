#include "muster/runtime/collectives.h"

namespace muster {

namespace {

std::string name_of(const CollectiveCall& call) {
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter: break;
    case CollectiveKind::kAllToAll: return "all_to_all";
    case CollectiveKind::kAllGather: return "all_gather";
    case CollectiveKind::kBroadcast: return str_cat("broadcast(from rank ", call.root, ")");
  }
  const char* kind = call.kind == CollectiveKind::kAllReduce ? "all_reduce" : "reduce_scatter";
  switch (call.reduction) {
    case Reduction::kSum: return str_cat(kind, "(sum)");
    case Reduction::kMin: return str_cat(kind, "(min)");
    case Reduction::kMax: return str_cat(kind, "(max)");
  }
  return "";
}

}  // namespace

std::string CollectiveCall::to_string() const {
  return purpose.empty() ? name_of(*this) : str_cat(name_of(*this), " for ", purpose);
}

CollectiveCall CollectiveCall::from_numbers(int64_t kind, int64_t reduction, int64_t root, std::string purpose) {
  if (kind < 0 || kind > static_cast<int64_t>(CollectiveKind::kAllToAll)) {
    throw invalid_argument("there is no collective with number ", kind);
  }
  if (reduction < 0 || reduction > static_cast<int64_t>(Reduction::kMax)) {
    throw invalid_argument("there is no reduction with number ", reduction);
  }
  return {static_cast<CollectiveKind>(kind), static_cast<Reduction>(reduction), root, std::move(purpose)};
}

}  // namespace muster

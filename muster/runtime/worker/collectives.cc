#include "muster/runtime/worker/collectives.h"

namespace muster {

namespace {

const char* name_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum: return "sum";
    case Reduction::kMin: return "min";
    case Reduction::kMax: return "max";
  }
  return "";
}

std::string name_of(const CollectiveCall& call) {
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kReduce: break;
    case CollectiveKind::kBarrier: return "barrier";
    case CollectiveKind::kAllToAll: return "all_to_all";
    case CollectiveKind::kAllGather: return "all_gather";
    case CollectiveKind::kBroadcast: return str_cat("broadcast(from rank ", call.root, ")");
  }
  const std::string how = name_of(call.reduction);
  if (call.kind == CollectiveKind::kReduce) return str_cat("reduce(", how, " to rank ", call.root, ")");
  return str_cat(call.kind == CollectiveKind::kAllReduce ? "all_reduce" : "reduce_scatter", "(", how, ")");
}

}  // namespace

std::string CollectiveCall::to_string() const {
  return purpose.empty() ? name_of(*this) : str_cat(name_of(*this), " for ", purpose);
}

CollectiveCall CollectiveCall::from_numbers(int64_t kind, int64_t reduction, int64_t root, std::string purpose) {
  if (kind < 0 || kind > static_cast<int64_t>(CollectiveKind::kBarrier)) {
    throw invalid_argument("there is no collective with number ", kind);
  }
  if (reduction < 0 || reduction > static_cast<int64_t>(Reduction::kMax)) {
    throw invalid_argument("there is no reduction with number ", reduction);
  }
  return {static_cast<CollectiveKind>(kind), static_cast<Reduction>(reduction), root, std::move(purpose)};
}

}  // namespace muster

#include "muster/train/embedding.h"

#include <ATen/ops/ge.h>

#include "muster/base/status.h"
#include "muster/runtime/tensors.h"

namespace muster {

at::Tensor embedding_lookup(const Variable& table, const at::Tensor& ids, const LookupOptions& options) {
  if (table.sizes().size() != 2) {
    throw invalid_argument("embedding_lookup: table \"", table.name(), "\" is ", table.state()->spec.to_string(),
                           ", expected two dimensions");
  }
  const at::Tensor rows = lookup(table, ids);
  if (!options.combiner) {
    if (options.weights.defined()) throw invalid_argument("embedding_lookup: weights need a combiner");
    return rows;
  }
  if (ids.dim() == 0) throw invalid_argument("embedding_lookup: a combiner needs bags, got a single id");
  at::Tensor weights = at::ge(ids, 0).to(rows.scalar_type());
  if (options.weights.defined()) {
    if (options.weights.sizes() != ids.sizes()) {
      throw invalid_argument("embedding_lookup: weights are ", spec_of(options.weights).to_string(), " for ids ",
                             spec_of(ids).to_string());
    }
    weights = weights.mul(options.weights);
  }
  const at::Tensor sum = rows.mul(weights.unsqueeze(-1)).sum(-2);
  constexpr double kLeast = 1e-12;  // of an empty bag, whose sum is zero
  switch (*options.combiner) {
    case Combiner::kSum: return sum;
    case Combiner::kMean: return sum.div(weights.sum(-1, /*keepdim=*/true).clamp_min(kLeast));
    case Combiner::kSqrtn: return sum.div(weights.square().sum(-1, /*keepdim=*/true).sqrt().clamp_min(kLeast));
  }
  return sum;
}

namespace nn {
namespace {

InitialValue initial_value(const EmbeddingOptions& options) {
  InitialValue drawn = InitialValue::normal({options.rows, options.dim}, 0.0, options.deviation, options.seed);
  return options.on_demand ? drawn.on_demand() : drawn;
}

}  // namespace

Embedding::Embedding(EmbeddingOptions options) : table_(initial_value(options), {.name = options.name}) {}

}  // namespace nn
}  // namespace muster

#include "muster/train/embedding.h"

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {

at::Tensor embedding_lookup(const Variable& table, const at::Tensor& ids, const LookupOptions& options) {
  if (table.sizes().size() != 2) {
    throw invalid_argument("embedding_lookup: table \"", table.name(), "\" is ", table.state()->spec.to_string(),
                           ", expected two dimensions");
  }
  if (!options.combiner) {
    if (options.weights.defined()) throw invalid_argument("embedding_lookup: weights need a combiner");
    return lookup(table, ids);
  }
  if (ids.dim() == 0) throw invalid_argument("embedding_lookup: a combiner needs bags, got a single id");
  const at::Tensor& given = options.weights;
  if (given.defined() && given.sizes() != ids.sizes()) {
    throw invalid_argument("embedding_lookup: weights are ", spec_of(given).to_string(), " for ids ",
                           spec_of(ids).to_string());
  }
  at::Tensor counted = ids;
  if (given.defined() && *options.combiner != Combiner::kSum) {
    counted = ids.masked_fill(given.detach().gt(0).logical_not(), -1);  // a weight that is no number is not positive
  }
  const at::Tensor rows = lookup(table, counted);
  at::Tensor weights = counted.ge(0).to(rows.scalar_type());
  if (given.defined()) weights = given.to(rows.scalar_type()).masked_fill(counted.lt(0), 0);
  const at::Tensor sum = rows.mul(weights.unsqueeze(-1)).sum(-2);
  // What the sum is divided by; 1 for an empty bag, whose sum is zero.
  auto of_bags = [](const at::Tensor& total) { return total.masked_fill(total.detach().eq(0), 1); };
  switch (*options.combiner) {
    case Combiner::kSum: return sum;
    case Combiner::kMean: return sum.div(of_bags(weights.sum(-1, /*keepdim=*/true)));
    case Combiner::kSqrtn: return sum.div(of_bags(weights.square().sum(-1, /*keepdim=*/true)).sqrt());
  }
  return sum;
}

Variable nn::make_table(const EmbeddingOptions& options) {
  InitialValue drawn = InitialValue::normal({options.rows, options.dim}, 0.0, options.deviation, options.seed);
  return Variable(options.on_demand ? drawn.on_demand() : drawn, {.name = options.name});
}

}  // namespace muster

#include "muster/fit/criteria/weighted.h"

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {

int64_t examples_of(const at::Tensor& target) { return target.dim() == 0 ? 1 : target.size(0); }

at::Tensor mean_beyond(const at::Tensor& values, int64_t dims) {
  return values.dim() <= dims ? values : values.flatten(dims).mean(dims);
}

at::Tensor with_dims(at::Tensor values, int64_t dims) {
  while (values.dim() < dims) values = values.unsqueeze(-1);
  return values;
}

void check_weights(const std::string& who, const at::Tensor& weights, const at::Tensor& values) {
  const auto dims = static_cast<size_t>(weights.dim());
  if (weights.dim() <= values.dim() && weights.sizes() == values.sizes().slice(0, dims)) return;
  const int64_t examples = values.dim() == 0 ? 1 : values.size(0);
  throw invalid_argument(who, ": it is ", spec_of(weights).to_string(), ", expected one for each of ", examples,
                         " examples, or for each position of what it weighs, which is ", spec_of(values).to_string());
}

at::Tensor weights_for(const std::string& who, const at::Tensor& weights, const at::Tensor& values) {
  if (weights.sizes() == values.sizes()) return weights;
  check_weights(who, weights, values);
  return with_dims(weights, values.dim()).expand(values.sizes());
}

}  // namespace muster

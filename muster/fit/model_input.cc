#include "muster/fit/model_input.h"

#include "muster/base/status.h"

namespace muster {

std::variant<Dataset, ModelInput::Make> ModelInput::batched(int64_t batch_size, bool shuffle) const {
  if (const auto* dataset = std::get_if<Dataset>(&what_)) return *dataset;
  if (const auto* make = std::get_if<Make>(&what_)) return *make;
  const auto& tensors = std::get<std::vector<at::Tensor>>(what_);
  if (tensors.empty()) throw invalid_argument("a model's input: no tensors");
  const Dataset rows = Dataset::tensors(tensors);  // throws if they have not as many
  return (shuffle ? rows.shuffle(tensors[0].size(0)) : rows).batch(batch_size);
}

}  // namespace muster

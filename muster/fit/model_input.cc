#include "muster/fit/model_input.h"

#include "muster/base/status.h"
#include "muster/data/cardinality.h"

namespace muster {

ModelInput::ModelInput(const Features& inputs, const Features& targets)
    : what_(Tensors{inputs.tensors(), inputs.names(), targets.names()}) {
  auto& all = std::get<Tensors>(what_);
  all.tensors.insert(all.tensors.end(), targets.tensors().begin(), targets.tensors().end());
  all.names.insert(all.names.end(), targets.names().begin(), targets.names().end());
}

ModelInput::Make ModelInput::checked(Make make) {
  if (make) return make;
  throw invalid_argument("a model's input: an empty function, expected one that makes a dataset for its InputContext");
}

Dataset ModelInput::Tensors::named(const Dataset& dataset) const {
  if (names.empty()) return dataset;
  return labels.empty() ? dataset.named(names) : dataset.named(names).labels(labels);
}

std::variant<Dataset, ModelInput::Make> ModelInput::batched(int64_t batch_size, bool shuffle) const {
  if (const auto* dataset = std::get_if<Dataset>(&what_)) return *dataset;
  if (const auto* make = std::get_if<Make>(&what_)) return *make;
  const auto& given = std::get<Tensors>(what_);
  if (given.tensors.empty()) throw invalid_argument("a model's input: no tensors");
  const Dataset rows = given.named(Dataset::tensors(given.tensors));  // throws if they have not as many
  if (given.tensors[0].size(0) == 0) throw out_of_range("a model's input: tensors of 0 rows, so there are no examples");
  return (shuffle ? rows.shuffle(given.tensors[0].size(0)) : rows).batch(batch_size);
}

std::optional<int64_t> ModelInput::batches(int64_t batch_size) const {
  if (const auto* dataset = std::get_if<Dataset>(&what_)) return cardinality_of(*dataset).count;
  const auto* given = std::get_if<Tensors>(&what_);
  if (given == nullptr || given->tensors.empty() || given->tensors[0].dim() == 0 || batch_size < 1) return std::nullopt;
  const int64_t rows = given->tensors[0].size(0);
  return rows / batch_size + (rows % batch_size > 0 ? 1 : 0);
}

std::variant<Dataset, ModelInput::Make> ModelInput::as_one_batch() const {
  const auto* given = std::get_if<Tensors>(&what_);
  if (given == nullptr) return batched(/*batch_size=*/1, /*shuffle=*/false);
  return given->named(Dataset::from_tensors(given->tensors));
}

}  // namespace muster

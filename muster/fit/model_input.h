// What a model is trained on.
#pragma once

#include <functional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "muster/data/dataset.h"

namespace muster {

// A dataset of batches; tensors with a row for each example, which fit() batches; or a function that makes the dataset
// of a pipeline, batches of one replica, for its InputContext. An element is (inputs, target) or (inputs, target,
// weights of examples), or has names: then the target is the column that Dataset::label has named, the weights those of
// a column "sample_weight", if there is one, and the rest are inputs. A value.
class ModelInput {
 public:
  using Make = std::function<Dataset(InputContext)>;

  ModelInput(Dataset dataset) : what_(std::move(dataset)) {}                  // NOLINT: it goes where these go
  ModelInput(std::vector<at::Tensor> tensors) : what_(std::move(tensors)) {}  // NOLINT
  ModelInput(at::Tensor x, at::Tensor y) : what_(std::vector<at::Tensor>{std::move(x), std::move(y)}) {}
  template <class F>
    requires std::is_invocable_r_v<Dataset, F&, InputContext>
  ModelInput(F make) : what_(Make(std::move(make))) {}  // NOLINT

  // With tensors in batches, in another order each time if they are shuffled.
  std::variant<Dataset, Make> batched(int64_t batch_size, bool shuffle) const;

 private:
  std::variant<Dataset, Make, std::vector<at::Tensor>> what_;
};

}  // namespace muster

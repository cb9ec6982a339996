// What a model is trained on.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "muster/data/dataset.h"

namespace muster {

// A dataset of batches; tensors with a row for each example, which fit() batches; or a function that makes the dataset
// of a pipeline, batches of one replica, for its InputContext. An element is (input, target) or (input, target, weights
// of examples), with as many targets as the model has outputs, and one tensor of weights or as many. Or it has names:
// then the targets are the columns that Dataset::label has named, the weights those of a column "sample_weight", or
// "sample_weight_box" for output "box", if there is one, and the rest are inputs. Weights are of examples, or of the
// positions of sequences and pictures, [N, T]. Weights of type bool are a mask, and so is a column "sample_mask" (or
// "sample_mask_box"): what is masked does not count, nor in the number that a mean is divided by. A value.
class ModelInput {
 public:
  using Make = std::function<Dataset(InputContext)>;

  ModelInput(Dataset dataset) : what_(std::move(dataset)) {}                           // NOLINT: it goes where these go
  ModelInput(at::Tensor inputs) : what_(Tensors{{std::move(inputs)}}) {}               // NOLINT
  ModelInput(std::vector<at::Tensor> tensors) : what_(Tensors{std::move(tensors)}) {}  // NOLINT
  ModelInput(std::initializer_list<at::Tensor> tensors) : what_(Tensors{tensors}) {}
  // Tensors with names. Without targets, as for predict(), they are columns as those of a dataset.
  ModelInput(const Features& inputs, const Features& targets = {{}, {}});  // NOLINT
  template <class F>
    requires std::is_invocable_r_v<Dataset, F&, InputContext>
  ModelInput(F make) : what_(checked(std::move(make))) {}  // NOLINT; throws Error{kInvalidArgument} for an empty one
  template <class F>
    requires(std::is_invocable_v<F&, InputContext> && !std::is_invocable_r_v<Dataset, F&, InputContext>)
  ModelInput(F) : what_(Make()) {  // NOLINT
    static_assert(sizeof(F) == 0, "a function that fit() is given makes a muster::Dataset for its InputContext");
  }

  // With tensors in batches, in another order each time if they are shuffled.
  std::variant<Dataset, Make> batched(int64_t batch_size, bool shuffle) const;
  // How many of them there are, where that is known before: of tensors, and of datasets whose descriptions say so.
  std::optional<int64_t> batches(int64_t batch_size) const;
  bool is_tensors() const { return std::holds_alternative<Tensors>(what_); }
  // With tensors as one batch.
  std::variant<Dataset, Make> as_one_batch() const;

 private:
  struct Tensors {
    std::vector<at::Tensor> tensors;
    std::vector<std::string> names{}, labels{};  // of all of them, or none

    Dataset named(const Dataset& dataset) const;
  };

  static Make checked(Make make);

  std::variant<Dataset, Make, Tensors> what_;
};

// One or none, as an option of fit(): tensors in braces will do, {x, y}, which std::optional alone does not take.
class OptionalInput : public std::optional<ModelInput> {
 public:
  using std::optional<ModelInput>::optional;
  OptionalInput() = default;
  OptionalInput(std::optional<ModelInput> input) : std::optional<ModelInput>(std::move(input)) {}  // NOLINT
  OptionalInput(std::initializer_list<at::Tensor> tensors) : std::optional<ModelInput>(std::in_place, tensors) {}
};

}  // namespace muster

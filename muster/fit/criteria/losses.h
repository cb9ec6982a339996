// What training goes down: a number for each example of a batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace muster {

// What the outputs of a model mean to its loss, so that metrics take them for the same.
enum class Outputs {
  kValues,         // what they are: numbers, or what the loss has not said
  kProbabilities,  // of targets 0 and 1, or of classes
  kLogits,         // of one class or none each: sigmoid makes probabilities of them
  kClassLogits,    // of one class of several: softmax does
};

// What the losses of a batch become, as Keras calls it. With a mask the first one divides by what is not masked.
enum class LossReduction {
  kSumOverBatchSize,      // their sum, divided by their number
  kMeanWithSampleWeight,  // their sum, divided by that of their weights
  kSum,                   // that of an epoch is the mean of those of its steps, however many examples these have
};

struct LossOptions {
  Outputs outputs = Outputs::kValues;
  LossReduction reduction = LossReduction::kSumOverBatchSize;
  // The last dimension of several has the values of one thing: their mean is what kSum adds up.
  bool means_last = false;
  std::optional<int64_t> ignored_class{};  // targets of this number do not count, as if a mask said so
  // A row of the target is of an example: one number, which is none of a batch, is an error. Else it may be anything.
  bool of_examples = false;
  // The mean over all examples, for those of which it takes less than each by itself; undefined: it has to be made of
  // these. REQUIRES: an example.
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)> mean{};
};

// A function of the outputs of a model and of what they should be. It gives a number for each example, or for each
// element of each, whose mean counts; or one for the batch, then there are no weights of examples. Traced: it may be
// any libtorch code.
class Loss {
 public:
  using Function = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

  Loss() = default;  // none
  Loss(std::string name, Function function, LossOptions options = {})
      : name_(std::move(name)), function_(std::move(function)), options_(std::move(options)) {}
  Loss(std::string name, Function function, Outputs outputs)
      : Loss(std::move(name), std::move(function), LossOptions{.outputs = outputs}) {}
  template <class F>
    requires std::is_invocable_r_v<at::Tensor, F&, at::Tensor, at::Tensor>
  Loss(F function) : Loss("loss", std::move(function)) {}  // NOLINT: a lambda is a loss

  // The same with another reduction: mean_squared_error.with(LossReduction::kSum).
  Loss with(LossReduction reduction) const;

  explicit operator bool() const { return function_ != nullptr; }
  const std::string& name() const { return name_; }
  const LossOptions& options() const { return options_; }
  Outputs outputs() const { return options_.outputs; }

  // For each example, without a reduction; and for each element, of which weights and masks choose.
  at::Tensor operator()(const at::Tensor& output, const at::Tensor& target) const;
  // Throws Error{kInvalidArgument} if a column and a row have become a square.
  at::Tensor elements(const at::Tensor& output, const at::Tensor& target) const;
  // Of all examples, if the options have it.
  at::Tensor mean(const at::Tensor& output, const at::Tensor& target) const {
    return options_.mean ? options_.mean(output, target) : at::Tensor();
  }
  // Which of the elements count; undefined: all.
  at::Tensor counted(const at::Tensor& elements, const at::Tensor& target) const;

 private:
  std::string name_;
  Function function_;
  LossOptions options_;
};

// As Keras' of these names. Unless said otherwise a target looks like the output, or the output has one more dimension
// of size 1 at its end; else Error{kInvalidArgument} names both shapes, where libtorch would broadcast. Losses of
// outputs with several values are their mean for each example.
extern const Loss mean_squared_error, mean_absolute_error, mean_squared_logarithmic_error, log_cosh, poisson;
extern const Loss hinge, squared_hinge;  // of targets -1 and 1, or 0 and 1
// Of distributions over the last dimension.
extern const Loss kl_divergence, cosine_similarity;
Loss huber(double delta = 1);

// Of targets 0 and 1, and probabilities or logits.
extern const Loss binary_cross_entropy, binary_cross_entropy_with_logits;
struct BinaryLossOptions {
  bool from_logits = true;  // else the outputs are probabilities
  double label_smoothing = 0;
};
Loss make_binary_cross_entropy(const BinaryLossOptions& options);
struct FocalOptions {
  double gamma = 2;
  std::optional<double> alpha{};  // weighs ones, and the rest of 1 zeros
  bool from_logits = true;
  double label_smoothing = 0;
};
Loss make_binary_focal_cross_entropy(const FocalOptions& options);
Loss binary_focal_cross_entropy(double gamma = 2, std::optional<double> alpha = {});  // of logits

// One of several classes, whose logits are the last dimension of the output. The target is a distribution of that
// shape, or, sparse, the number of the class.
extern const Loss categorical_cross_entropy, sparse_categorical_cross_entropy;
struct ClassLossOptions {
  bool from_logits = true;  // else the outputs are probabilities
  double label_smoothing = 0;
  std::optional<int64_t>
      ignore_class{};  // of sparse ones: a number that is none, such as -1 or 255, where nobody knows
};
Loss make_categorical_cross_entropy(const ClassLossOptions& options);
Loss make_sparse_categorical_cross_entropy(const ClassLossOptions& options);
struct CategoricalFocalOptions {
  double gamma = 2;
  std::vector<double> alpha{0.25};  // of all classes, or of each
  bool from_logits = true;
  double label_smoothing = 0;
};
Loss make_categorical_focal_cross_entropy(const CategoricalFocalOptions& options);

// Outputs are vectors, targets the numbers of classes: those of one class should be closer to each other, by `margin`,
// than to others. Of each example counts the farthest of its class and the nearest of another one, within the batch.
Loss triplet(double margin = 1);

// Outputs are the logits of classes at each of several times, [examples, times, classes]; targets are the classes that
// should be found in that order, [examples, most], filled up with `blank`, which is none. Of an example with too few
// times it is infinite, or 0 with `zero_infinity`; its gradient is 0.
Loss ctc(int64_t blank = 0, bool zero_infinity = false);

// The probabilities that outputs of a loss stand for.
at::Tensor probabilities_of(const at::Tensor& output, Outputs kind);
// What another loss would take them for: logits of probabilities and the other way round. Of values nobody knows.
at::Tensor outputs_as(Outputs wanted, const at::Tensor& output, Outputs kind);

}  // namespace muster

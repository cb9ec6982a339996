// Numbers that say how well a model does, over all examples of an epoch.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/fit/criteria/losses.h"

namespace muster {

// It is made of sums over examples, so what replicas, workers and closures have seen adds up to what one process would
// have got. A value.
class Metric {
 public:
  // What a batch adds: a float64 vector of `length`. `weights` has one number for each example, or, where the data says
  // so, for each position of them: [N], or [N, T] of an output [N, T, classes]. Traced.
  using Sums = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target, const at::Tensor& weights)>;
  // The same of outputs as the model gives them; its loss takes them for `kind`.
  using SumsAsGiven = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target,
                                               const at::Tensor& weights, Outputs kind)>;
  // The number, from the sums of all batches.
  using Result = std::function<double(const std::vector<double>& sums)>;

  // The same in parts, which follow each other; undefined weights: all examples count alike, which takes fewer ops.
  using Parts = std::function<std::vector<at::Tensor>(const at::Tensor& output, const at::Tensor& target,
                                                      const at::Tensor& weights, Outputs kind)>;

  // What it reads of scores of classes: their probabilities, only which of them are higher, or what the loss does.
  enum class Reads { kProbabilities, kRanks, kAsGiven };

  Metric(std::string name, int64_t length, Sums sums, Result result, Reads reads = Reads::kProbabilities)
      : Metric(std::move(name), length, parts_of(std::move(sums)), std::move(result), reads) {}
  Metric(std::string name, int64_t length, SumsAsGiven sums, Result result, Reads reads = Reads::kAsGiven)
      : Metric(std::move(name), length, parts_of(std::move(sums)), std::move(result), reads) {}
  Metric(std::string name, int64_t length, Parts parts, Result result, Reads reads = Reads::kProbabilities)
      : name_(std::move(name)), length_(length), parts_(std::move(parts)), result_(std::move(result)), reads_(reads) {}

  const std::string& name() const { return name_; }
  int64_t length() const { return length_; }
  Reads reads() const { return reads_; }
  // Undefined weights: all alike.
  at::Tensor sums(const at::Tensor& output, const at::Tensor& target, const at::Tensor& weights,
                  Outputs kind = Outputs::kValues) const;
  // Puts them, in parts, behind what is there.
  void add_sums(const at::Tensor& output, const at::Tensor& target, const at::Tensor& weights, Outputs kind,
                std::vector<at::Tensor>& all) const;
  double result(const std::vector<double>& sums) const { return result_(sums); }

 private:
  static Parts parts_of(Sums sums);
  static Parts parts_of(SumsAsGiven sums);

  std::string name_;
  int64_t length_;
  Parts parts_;
  Result result_;
  Reads reads_;
};

// The mean of a number of each example: MeanOf("error", [](output, target) { … }). Of a loss, MeanOf("entropy",
// sparse_categorical_cross_entropy), it is of what that takes, logits or probabilities, whatever the model goes down.
class MeanOf : public Metric {
 public:
  using PerExample = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;
  MeanOf(std::string name, PerExample value);
  template <std::same_as<Loss> Only>
  MeanOf(std::string name, const Only& loss) : Metric(of_loss(std::move(name), loss)) {}

 private:
  static Metric of_loss(std::string name, const Loss& loss);
};

// ---- The share that is right. As in Keras, outputs and thresholds are compared as numbers of float32, here and below.
// Chosen by shapes, as Keras chooses for "accuracy": outputs with a score for each class are right if the highest is
// that of the target, a number or a distribution; others if they are on the target's side of `threshold`.
class Accuracy : public Metric {
 public:
  explicit Accuracy(std::string name = "accuracy", double threshold = 0.5);
};
// Of all values, each by itself: those above `threshold` say 1. Several labels of one example are such values.
class BinaryAccuracy : public Metric {
 public:
  explicit BinaryAccuracy(double threshold = 0.5, std::string name = "binary_accuracy");
};
class CategoricalAccuracy : public Metric {  // targets are distributions
 public:
  explicit CategoricalAccuracy(std::string name = "categorical_accuracy");
};
class SparseCategoricalAccuracy : public Metric {  // targets are numbers of classes
 public:
  explicit SparseCategoricalAccuracy(std::optional<int64_t> ignore_class = {},
                                     std::string name = "sparse_categorical_accuracy");
};
// The share of examples whose class is among the k with the highest scores: fewer than k classes have a higher one.
class TopKAccuracy : public Metric {
 public:
  explicit TopKAccuracy(int64_t k = 5, std::string name = "top_k_accuracy");
};

// ---- Cross entropies, of logits where the loss takes outputs for such, else of probabilities.
class BinaryCrossEntropy : public Metric {
 public:
  explicit BinaryCrossEntropy(std::string name = "binary_cross_entropy", double label_smoothing = 0);
};
class CategoricalCrossEntropy : public Metric {
 public:
  explicit CategoricalCrossEntropy(std::string name = "categorical_cross_entropy", double label_smoothing = 0);
};
class SparseCategoricalCrossEntropy : public Metric {
 public:
  explicit SparseCategoricalCrossEntropy(std::optional<int64_t> ignore_class = {},
                                         std::string name = "sparse_categorical_cross_entropy");
};

// ---- Of probabilities of targets 0 and 1.
class Precision : public Metric {
 public:
  explicit Precision(double threshold = 0.5, std::string name = "precision");
};
class Recall : public Metric {
 public:
  explicit Recall(double threshold = 0.5, std::string name = "recall");
};
// Of all values together; or of each class, [N, classes] as Keras' F1Score takes them, and then their average.
struct F1Options {
  enum class Average { kMacro, kMicro, kWeighted };  // the mean; all values together; by how often a class occurs
  int64_t classes;
  Average average = Average::kMacro;
  std::optional<double> threshold{};  // none: the class with the highest score
  std::string name = "f1";
};
class F1 : public Metric {
 public:
  explicit F1(double threshold = 0.5, std::string name = "f1");
  explicit F1(const F1Options& options);
};

struct AucOptions {
  int64_t thresholds = 200;       // between which it is interpolated, as Keras does
  bool precision_recall = false;  // the area under that curve instead of ROC
  std::string name = "auc";
};
class Auc : public Metric {
 public:
  explicit Auc(const AucOptions& options = {});
};

// ---- Of numbers.
class MeanSquaredError : public MeanOf {
 public:
  explicit MeanSquaredError(std::string name = "mean_squared_error");
};
class MeanAbsoluteError : public MeanOf {
 public:
  explicit MeanAbsoluteError(std::string name = "mean_absolute_error");
};
class RootMeanSquaredError : public Metric {
 public:
  explicit RootMeanSquaredError(std::string name = "root_mean_squared_error");
};
// Of one value for each example, or of so many, of which it is the mean or, by variance, the share of all spread.
struct R2Options {
  enum class Average { kUniform, kByVariance };
  int64_t outputs = 1;
  Average average = Average::kUniform;
  std::string name = "r2_score";
};
class R2Score : public Metric {
 public:
  explicit R2Score(std::string name = "r2_score");
  explicit R2Score(const R2Options& options);
};

// Of classes: the mean over those that occur of the share that output and target have in common. Outputs are scores,
// whose last dimension is of the classes, or numbers. What is no class, and `ignore_class`, does not count.
struct MeanIoUOptions {
  int64_t classes;
  std::optional<int64_t> ignore_class{};
  std::string name = "mean_io_u";
};
class MeanIoU : public Metric {
 public:
  explicit MeanIoU(int64_t classes, std::string name = "mean_io_u");
  explicit MeanIoU(const MeanIoUOptions& options);
};

}  // namespace muster

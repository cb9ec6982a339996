// Numbers that say how well a model does, over all examples of an epoch.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace muster {

// It is made of sums over examples, so what replicas, workers and closures have seen adds up to what one process would
// have got. A value.
class Metric {
 public:
  // What a batch adds: a float64 vector of `length`. `weights` has one number for each example. Traced.
  using Sums = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target, const at::Tensor& weights)>;
  // The number, from the sums of all batches.
  using Result = std::function<double(const std::vector<double>& sums)>;

  // What it reads of scores of classes: their probabilities, or only which of them are higher.
  enum class Reads { kProbabilities, kRanks };

  Metric(std::string name, int64_t length, Sums sums, Result result, Reads reads = Reads::kProbabilities)
      : name_(std::move(name)), length_(length), sums_(std::move(sums)), result_(std::move(result)), reads_(reads) {}

  const std::string& name() const { return name_; }
  int64_t length() const { return length_; }
  Reads reads() const { return reads_; }
  at::Tensor sums(const at::Tensor& output, const at::Tensor& target, const at::Tensor& weights) const {
    return sums_(output, target, weights);
  }
  double result(const std::vector<double>& sums) const { return result_(sums); }

 private:
  std::string name_;
  int64_t length_;
  Sums sums_;
  Result result_;
  Reads reads_;
};

// The mean of a number of each example: MeanOf("error", [](output, target) { … }).
class MeanOf : public Metric {
 public:
  using PerExample = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;
  MeanOf(std::string name, PerExample value);
};

// The share of examples that are right. Outputs with a score for each class are right if the highest is that of the
// target, a number or a distribution; others if they are on the target's side of `threshold`.
class Accuracy : public Metric {
 public:
  explicit Accuracy(std::string name = "accuracy", double threshold = 0.5);
};
// The share of examples whose class is among the k with the highest scores: fewer than k classes have a higher one.
class TopKAccuracy : public Metric {
 public:
  explicit TopKAccuracy(int64_t k = 5, std::string name = "top_k_accuracy");
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
class F1 : public Metric {
 public:
  explicit F1(double threshold = 0.5, std::string name = "f1");
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
class R2Score : public Metric {  // over all values of all examples
 public:
  explicit R2Score(std::string name = "r2_score");
};

// Of classes: the mean over those that occur of the share that output and target have in common.
class MeanIoU : public Metric {
 public:
  explicit MeanIoU(int64_t classes, std::string name = "mean_io_u");
};

}  // namespace muster

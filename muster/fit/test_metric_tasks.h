// What models are asked whose numbers every strategy has to have exactly. Not part of the library.
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "muster/fit/model.h"

namespace muster::testing_support {

struct MetricTask {
  std::string name;
  Loss loss;
  std::vector<at::Tensor> tensors;  // input, target, weights
  MetricList metrics;
};

// Of 70 examples: of sequences with a mask, of one class or none, of several labels, of numbers.
inline std::vector<MetricTask> metric_tasks() {
  torch::manual_seed(4);
  const at::Tensor x = torch::randn({70, 4}), sequences = torch::randn({70, 5, 4}), weights = torch::rand({70});
  const at::Tensor labels = (x.narrow(1, 0, 3) + 0.5 * torch::randn({70, 3}) > 0).to(torch::kFloat);
  const at::Tensor lengths = torch::randint(1, 6, {70, 1}), mask = torch::arange(5).unsqueeze(0) < lengths;
  const auto mean = [](const at::Tensor& output, const at::Tensor&) { return output.abs(); };
  return {{"sequences",
           sparse_categorical_cross_entropy,
           {sequences, torch::randint(3, {70, 5}), mask},
           {Accuracy(), SparseCategoricalAccuracy(), TopKAccuracy(2), SparseCategoricalCrossEntropy(), MeanIoU(3),
            F1({.classes = 3}), MeanOf("mean", mean), MeanOf("entropy", sparse_categorical_cross_entropy)}},
          {"classes",
           categorical_cross_entropy.with(LossReduction::kMeanWithSampleWeight),
           {x, torch::one_hot(torch::randint(3, {70}), 3), weights},
           {CategoricalAccuracy(), CategoricalCrossEntropy(), TopKAccuracy(1),
            F1({.classes = 3, .average = F1Options::Average::kWeighted})}},
          {"labels",
           binary_cross_entropy_with_logits,
           {x, labels, weights},
           {BinaryAccuracy(), BinaryCrossEntropy(), Precision(), Recall(), F1(), Auc(),
            Auc({.precision_recall = true, .name = "pr"})}},
          {"numbers",
           mean_squared_error.with(LossReduction::kSum),
           {x, x.narrow(1, 0, 3) * 2 + 1, weights},
           {MeanSquaredError(), MeanAbsoluteError(), RootMeanSquaredError(), R2Score({.outputs = 3})}}};
}

inline Model model_of(const MetricTask& task, const Strategy& strategy, double learning_rate) {
  torch::manual_seed(1);
  return compile(
      strategy.make<torch::nn::Linear>(4, 3),
      {.optimizer = Sgd({.learning_rate = learning_rate}), .loss = task.loss, .metrics = OutputMetrics(task.metrics)});
}

}  // namespace muster::testing_support

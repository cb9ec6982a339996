// What is exact over replicas and workers: losses, metrics and steps, with weights and masks.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "muster/cluster/test_environment.h"
#include "muster/distribute/local_strategies.h"
#include "muster/distribute/test_coordinator.h"
#include "muster/fit/model.h"

namespace muster::model_metrics_test {
namespace {

constexpr int kQuiet = 0;

struct Task {
  std::string name;
  Loss loss;
  std::vector<at::Tensor> tensors;  // input, target, weights
  MetricList metrics;
};

// Of 70 examples: of sequences with a mask, of one class or none, of several labels, of numbers.
std::vector<Task> tasks() {
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

Model model_of(const Task& task, const Strategy& strategy, double learning_rate) {
  torch::manual_seed(1);
  return compile(
      strategy.make<torch::nn::Linear>(4, 3),
      {.optimizer = Sgd({.learning_rate = learning_rate}), .loss = task.loss, .metrics = OutputMetrics(task.metrics)});
}

void expect_same(const Logs& logs, const Logs& expected, const std::string& what) {
  for (const auto& [name, value] : expected) {
    EXPECT_NEAR(logs.at(name), value, 1e-6 * std::max(1.0, std::abs(value))) << what << ", " << name;
  }
}

TEST(ModelMetrics, AreThoseOfOneDevice) {
  InProcessCluster cluster({.workers = 2, .ps = 1, .transport = Transport::kLocal});
  const Strategy servers = testing_support::strategy_of(cluster, Transport::kLocal);
  for (const Task& task : tasks()) {
    const Dataset data = Dataset::tensors(task.tensors).batch(14);
    const Logs expected = model_of(task, Strategy(), 0).evaluate(data);
    for (const Metric& metric : task.metrics) EXPECT_TRUE(expected.contains(metric.name())) << metric.name();

    for (const Strategy& strategy : {Strategy(MirroredStrategy()), servers}) {
      Model model = model_of(task, strategy, 0);
      const History history = model.fit(data, {.verbose = kQuiet});

      const std::string what = str_cat(task.name, strategy.servers() ? " on servers" : " on two devices");
      expect_same(model.evaluate(data), expected, what);
      for (const auto& [name, value] : expected) {
        EXPECT_NEAR(history[name][0], value, 1e-6 * std::max(1.0, std::abs(value))) << what << ", " << name;
      }
    }
  }
}

TEST(ModelMetrics, GoDownTheLossOfTheWholeBatch) {
  for (const Task& task : tasks()) {
    auto trained = [&](const Strategy& strategy) {
      Model model = model_of(task, strategy, 0.01);
      model.fit(Dataset::tensors(task.tensors).batch(14), {.epochs = 2, .verbose = kQuiet});
      return model.variables().all()[0].value().clone();
    };

    EXPECT_TRUE(torch::allclose(trained(MirroredStrategy()), trained(Strategy()), 1e-5, 1e-6)) << task.name;
  }
}

TEST(ModelMetrics, WeighClassesOnTwoDevicesAsOnOne) {
  torch::manual_seed(4);
  const at::Tensor x = torch::randn({28, 4}), y = torch::randint(3, {28});
  auto trained = [&](const Strategy& strategy) {
    torch::manual_seed(1);
    Model model = compile(
        strategy.make<torch::nn::Linear>(4, 3),
        {.optimizer = Sgd({.learning_rate = 0.1}), .loss = sparse_categorical_cross_entropy, .metrics = {Accuracy()}});
    const History history = model.fit(Dataset::tensors({x, y}).batch(14),
                                      {.epochs = 2, .class_weight = {{0, 3.0}, {2, 0.5}}, .verbose = kQuiet});
    return std::tuple(model.variables().all()[0].value().clone(), history["loss"][1], history["accuracy"][1]);
  };

  const auto [values, loss, accuracy] = trained(Strategy());
  const auto [own_values, own_loss, own_accuracy] = trained(MirroredStrategy());

  EXPECT_TRUE(torch::allclose(own_values, values, 1e-5, 1e-6));
  EXPECT_NEAR(own_loss, loss, 1e-6);
  EXPECT_NEAR(own_accuracy, accuracy, 1e-6);
}

TEST(ModelMetrics, LearnNothingFromWhatAColumnMasks) {
  torch::manual_seed(4);
  const at::Tensor x = torch::randn({16, 5, 4}), y = torch::randint(3, {16, 5});
  const at::Tensor mask = torch::arange(5).unsqueeze(0) < torch::randint(1, 6, {16, 1});
  auto trained = [&](const at::Tensor& masked) {
    torch::manual_seed(1);
    Model model = compile(
        torch::nn::Linear(4, 3),
        {.optimizer = Sgd({.learning_rate = 0.5}), .loss = sparse_categorical_cross_entropy, .metrics = {Accuracy()}});
    const at::Tensor input = torch::where(mask.unsqueeze(-1), x, masked);
    const Dataset data = Dataset::tensors({input, mask, y}).named({"x", "sample_mask", "y"}).batch(8);
    const History history = model.fit(data, {.epochs = 3, .verbose = kQuiet});
    return std::tuple(model.variables().all()[0].value().clone(), history["loss"][2], history["accuracy"][2]);
  };

  const auto [values, loss, accuracy] = trained(torch::zeros({16, 5, 4}));
  const auto [own_values, own_loss, own_accuracy] = trained(torch::randn({16, 5, 4}) * 9);

  EXPECT_TRUE(torch::allclose(own_values, values));
  EXPECT_NEAR(own_loss, loss, 1e-6);
  EXPECT_NEAR(own_accuracy, accuracy, 1e-9);
}

}  // namespace
}  // namespace muster::model_metrics_test

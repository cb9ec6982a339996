// What is exact over replicas and workers: losses, metrics and steps, with weights and masks.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "muster/cluster/test_environment.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/distribute/local_strategies.h"
#include "muster/fit/model.h"
#include "muster/fit/test_metric_tasks.h"

namespace muster::model_metrics_test {
namespace {

using testing_support::metric_tasks;
using testing_support::MetricTask;
using testing_support::model_of;

constexpr int kQuiet = 0;

TEST(ModelMetrics, AreThoseOfOneDevice) {
  InProcessCluster cluster({.workers = 2, .ps = 1, .transport = Transport::kLocal});
  const Strategy servers = testing_support::strategy_of(cluster, Transport::kLocal);
  for (const MetricTask& task : metric_tasks()) {
    const Dataset data = Dataset::tensors(task.tensors).batch(14);
    const Logs expected = model_of(task, Strategy(), 0).evaluate(data);
    for (const Metric& metric : task.metrics) EXPECT_TRUE(expected.contains(metric.name())) << metric.name();

    for (const Strategy& strategy : {Strategy(MirroredStrategy()), servers}) {
      Model model = model_of(task, strategy, 0);
      const History history = model.fit(data, {.verbose = kQuiet});

      const std::string what = str_cat(task.name, strategy.servers() ? " on servers" : " on two devices");
      const Logs evaluated = model.evaluate(data);
      for (const auto& [name, value] : expected) {
        // The mean of the sums of steps, of which there is one more where two workers share a batch.
        if (name == "loss" && strategy.servers() && task.name == "numbers") continue;
        const double close = 1e-6 * std::max(1.0, std::abs(value));
        EXPECT_NEAR(evaluated.at(name), value, close) << what << ", " << name;
        EXPECT_NEAR(history[name][0], value, close) << what << ", " << name;
      }
    }
  }
}

TEST(ModelMetrics, GoDownTheLossOfTheWholeBatch) {
  for (const MetricTask& task : metric_tasks()) {
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

TEST(ModelMetrics, DoNotWeighTheClassesOfValidationData) {
  torch::manual_seed(4);
  const at::Tensor x = torch::randn({28, 4}), y = torch::randint(3, {28});
  Model model = compile(torch::nn::Linear(4, 3),
                        {.optimizer = Sgd({.learning_rate = 0}), .loss = sparse_categorical_cross_entropy});

  const History history =
      model.fit({x, y}, {.validation_data = ModelInput{x, y}, .class_weight = {{0, 3.0}, {2, 0.5}}, .verbose = kQuiet});

  EXPECT_NEAR(history["val_loss"][0], model.evaluate({x, y})["loss"], 1e-6);
  EXPECT_GT(std::abs(history["loss"][0] - history["val_loss"][0]), 1e-3) << "which is that of training";
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

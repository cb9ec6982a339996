#include "muster/fit/sidecar_evaluator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "muster/base/status.h"
#include "muster/cluster/test_environment.h"
#include "muster/fit/callbacks.h"
#include "muster/fit/event_reader.h"

namespace muster::sidecar_evaluator_test {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::SizeIs;
using testing_support::ScopedDirectory;

Model small_model() {
  torch::manual_seed(1);
  return compile(torch::nn::Linear(2, 1), {.optimizer = Sgd({.learning_rate = 0.1}), .loss = mean_squared_error});
}

ModelInput some_data() {
  torch::manual_seed(2);
  const at::Tensor x = torch::randn({16, 2});
  return {x, x.sum(1, true)};
}

// Each process has one model, whose variables have the names of the module's tensors: here they are made one after the
// other, since names are given once at a time.
TEST(SidecarEvaluator, EvaluatesTheNewestCheckpointAsTheTrainingWouldHave) {
  const ScopedDirectory directory;
  double trained = 0;
  int64_t step = 0;
  {
    Model model = small_model();
    model.fit(some_data(),
              {.epochs = 3, .callbacks = {ModelCheckpoint({.directory = directory.path()})}, .verbose = 0});
    trained = model.evaluate(some_data()).at("loss");
    step = model.optimizer().iterations();
  }

  std::vector<int64_t> steps;
  std::vector<double> losses;
  SidecarEvaluator evaluator(small_model(), some_data(),
                             {.directory = directory.path(),
                              .logs = directory.path() + "/logs",
                              .on_evaluation = [&](int64_t at, const Logs& logs) {
                                steps.push_back(at);
                                losses.push_back(logs.at("loss"));
                                return false;
                              }});
  EXPECT_EQ(evaluator.run(), 1);
  EXPECT_THAT(steps, ElementsAre(step));
  EXPECT_THAT(losses, ElementsAre(trained));
  const ScalarCurves curves = scalars_below(directory.path() + "/logs");
  ASSERT_THAT(curves.curves, SizeIs(1));
  EXPECT_EQ(curves.curves[0].tag, "evaluation_loss_vs_iterations");
  EXPECT_EQ(curves.curves[0].points.back().step, step);
}

TEST(SidecarEvaluator, FollowsATraining) {
  const ScopedDirectory directory;
  Model model = small_model();
  std::vector<double> losses;
  int seen = 0;
  // As if another process had written it: between two looks of the evaluator.
  auto train_on = [&] {
    model.fit(some_data(), {.callbacks = {ModelCheckpoint({.directory = directory.path()})}, .verbose = 0});
    losses.push_back(model.evaluate(some_data()).at("loss"));
  };
  train_on();
  SidecarEvaluator evaluator(model, some_data(),
                             {.directory = directory.path(),
                              .max_evaluations = 3,
                              .look_every = std::chrono::milliseconds(1),
                              .on_evaluation = [&](int64_t, const Logs& logs) {
                                EXPECT_EQ(logs.at("loss"), losses.at(static_cast<size_t>(seen++)));
                                train_on();
                                return true;
                              }});
  EXPECT_EQ(evaluator.run(), 3);
  EXPECT_EQ(seen, 3);
}

TEST(SidecarEvaluator, EndsWhenNothingComes) {
  const ScopedDirectory directory;
  SidecarEvaluator evaluator(small_model(), some_data(), {.directory = directory.path(), .patience = seconds(0)});
  EXPECT_EQ(evaluator.run(), 0);
  EXPECT_THROW(SidecarEvaluator(small_model(), some_data(), {.directory = ""}), Error);
}

}  // namespace
}  // namespace muster::sidecar_evaluator_test

#include "muster/fit/sidecar_evaluator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <thread>

#include "muster/base/log.h"
#include "muster/base/test_errors.h"
#include "muster/cluster/test_environment.h"
#include "muster/fit/callbacks/callbacks.h"
#include "muster/fit/tensorboard/event_reader.h"
#include "muster/train/checkpoints.h"

namespace muster::sidecar_evaluator_test {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using testing_support::caught;
using testing_support::error_of;
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
  {
    Model model = small_model();
    model.fit(some_data(), {.epochs = 32, .batch_size = 16, .verbose = 0});
    trained = model.evaluate(some_data()).at("loss");
    Checkpoints(Strategy(), {.directory = directory.path()}).save(7);  // a number of somebody's own
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
  EXPECT_THAT(steps, ElementsAre(32)) << "as the optimizer counts";
  EXPECT_THAT(losses, ElementsAre(trained));
  const ScalarCurves curves = scalars_below(directory.path() + "/logs");
  ASSERT_THAT(curves.curves, SizeIs(1));
  EXPECT_EQ(curves.curves[0].run, "validation");
  EXPECT_EQ(curves.curves[0].tag, "evaluation_loss_vs_iterations");
  EXPECT_EQ(curves.curves[0].points.back().step, 32);
}

TEST(SidecarEvaluator, WaitsForTheFirstCheckpointAndSaysSo) {
  const ScopedDirectory directory;
  const std::string elsewhere = directory.path() + "/elsewhere", checkpoints = directory.path() + "/checkpoints";
  small_model().fit(some_data(), {.callbacks = {ModelCheckpoint({.directory = elsewhere})}, .verbose = 0});
  LogCapture log;
  std::jthread training([&] {
    while (!log.contains("No checkpoints appear to be found in " + checkpoints)) std::this_thread::yield();
    std::filesystem::rename(elsewhere, checkpoints);
  });

  SidecarEvaluator evaluator(small_model(), some_data(),
                             {.directory = checkpoints,
                              .max_evaluations = 1,
                              .patience = seconds(0),
                              .look_every = std::chrono::milliseconds(1)});

  EXPECT_EQ(evaluator.run(), 1);
}

TEST(SidecarEvaluator, SaysWhereNoFirstCheckpointHasComeInTime) {
  const ScopedDirectory directory;
  const std::string checkpoints = directory.path() + "/checkpoints";
  Model model = small_model();
  SidecarEvaluator evaluator(model, some_data(),
                             {.directory = checkpoints, .max_evaluations = 1, .first_within = seconds(0)});

  const Status status = caught([&] { evaluator.run(); });

  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(status.message(), HasSubstr("no checkpoint has come to the directory \"" + checkpoints + "\" in 0 s"));
  model.fit(some_data(), {.callbacks = {ModelCheckpoint({.directory = checkpoints})}, .verbose = 0});
  EXPECT_EQ(evaluator.run(), 1) << "one that is there has come in time";
}

TEST(SidecarEvaluator, WaitsNoLongerForTheFirstThanItIsToldThoughItLooksSeldom) {
  const ScopedDirectory directory;
  SidecarEvaluator evaluator(
      small_model(), some_data(),
      {.directory = directory.path(), .first_within = seconds(1), .look_every = std::chrono::hours(24)});

  EXPECT_EQ(caught([&] { evaluator.run(); }).code(), StatusCode::kDeadlineExceeded);
}

TEST(SidecarEvaluator, NamesAnOptionThatIsOutOfItsRange) {
  const Model model = small_model();
  const auto refused = [&](const SidecarEvaluatorOptions& options) {
    return error_of([&] { const SidecarEvaluator evaluator(model, some_data(), options); });
  };

  EXPECT_EQ(refused({.directory = "d", .max_evaluations = -1}),
            "SidecarEvaluator: max_evaluations is -1, expected 0 or more");
  EXPECT_EQ(refused({.directory = "d", .patience = seconds(-2)}),
            "SidecarEvaluator: patience is -2, expected 0 s or more");
  EXPECT_EQ(refused({.directory = "d", .first_within = seconds(-3)}),
            "SidecarEvaluator: first_within is -3, expected 0 s (it is there) or more");
  EXPECT_EQ(refused({.directory = "d", .look_every = std::chrono::milliseconds(0)}),
            "SidecarEvaluator: look_every is 0, expected 1 ms or more");
}

TEST(SidecarEvaluator, NamesACheckpointWithoutTheCountOfSteps) {
  const ScopedDirectory directory;
  Model model = small_model();
  Checkpoints(Strategy(), {.directory = directory.path(), .objects = {{"net", model.variables()}}}).save(3);
  SidecarEvaluator evaluator(model, some_data(), {.directory = directory.path()});

  const Status status = caught([&] { evaluator.run(); });

  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("`iterations` cannot be loaded from the checkpoint " + directory.path() +
                                          "/ckpt-3, which has net/bias, net/weight;"));
}

// A model whose weights are given, and a checkpoint of each, as if it had been trained.
class BestOfSidecarEvaluator : public ::testing::Test {
 protected:
  void save(int64_t step, float weight) {
    std::vector<Variable> variables = model_.variables().all();
    variables.at(0).assign(torch::full({1, 2}, weight));
    variables.at(1).assign(torch::zeros({1}));
    Checkpoints(Strategy(), {.directory = training_, .keep = 1}).save(step, {{"weight", std::to_string(weight)}});
  }
  SidecarEvaluator evaluator(std::function<bool(int64_t, const Logs&)> on_evaluation, const std::string& best) {
    return {model_,
            some_data(),
            {.directory = training_,
             .patience = seconds(0),
             .look_every = std::chrono::milliseconds(1),
             .best = best,
             .on_evaluation = std::move(on_evaluation)}};
  }
  std::vector<int64_t> kept() const {
    std::vector<int64_t> steps;
    for (const Checkpoint& each : CheckpointDirectory(best_).present()) steps.push_back(each.step);
    return steps;
  }

  const ScopedDirectory directory_;
  const std::string training_ = directory_.path() + "/training", best_ = directory_.path() + "/best";
  Model model_ = small_model();
};

TEST_F(BestOfSidecarEvaluator, IsKeptWhenItsCheckpointIsGone) {
  const std::vector<float> weights{0.5F, 1.F, 3.F};  // 1 is the truth
  int64_t step = 1;
  save(step, weights[0]);

  evaluator(
      [&](int64_t, const Logs&) {
        if (step == 3) return false;
        save(step + 1, weights[static_cast<size_t>(step)]);
        ++step;
        return true;
      },
      best_)
      .run();

  EXPECT_THAT(kept(), ElementsAre(2));
  Checkpoints best(Strategy(), {.directory = best_});
  EXPECT_EQ(best.restore(), 2);
  EXPECT_NEAR(model_.evaluate(some_data()).at("loss"), 0, 1e-9);
  EXPECT_EQ(best.metadata("weight"), std::to_string(1.F));
}

TEST_F(BestOfSidecarEvaluator, IsStillTheBestWhenTheEvaluatorIsStartedAgain) {
  const auto once = [](int64_t, const Logs&) { return false; };
  save(5, 1.F);
  evaluator(once, best_).run();

  save(6, 3.F);
  evaluator(once, best_).run();
  EXPECT_THAT(kept(), ElementsAre(5));

  std::filesystem::remove_all(training_);
  save(2, 1.F);  // no better, and of another training
  evaluator(once, best_).run();
  EXPECT_THAT(kept(), ElementsAre(5));
}

TEST_F(BestOfSidecarEvaluator, TakesThePlaceOfAnEarlierTrainingWithMoreSteps) {
  const auto once = [](int64_t, const Logs&) { return false; };
  save(5, 3.F);
  evaluator(once, best_).run();
  std::filesystem::remove_all(training_);
  save(2, 1.F);

  evaluator(once, best_).run();

  EXPECT_THAT(kept(), ElementsAre(2));
}

TEST_F(BestOfSidecarEvaluator, IsByANumberThatThereIsAndInADirectoryOfItsOwn) {
  save(1, 1.F);
  SidecarEvaluator by_another(model_, some_data(), {.directory = training_, .best = best_, .monitor = "val_loss"});

  EXPECT_EQ(caught([&] { by_another.run(); }).message(),
            "SidecarEvaluator: monitor \"val_loss\", but an evaluation gives loss");
  EXPECT_THAT(caught([&] { evaluator({}, training_ + "/../training"); }).message(), HasSubstr("expected another one"));
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

TEST(SidecarEvaluator, SaysNothingOfItsOwnInTheLogForEachCheckpoint) {
  const ScopedDirectory directory;
  Model model = small_model();
  auto train_on = [&] {
    model.fit(some_data(), {.callbacks = {ModelCheckpoint({.directory = directory.path()})}, .verbose = 0});
  };
  train_on();
  SidecarEvaluator evaluator(model, some_data(),
                             {.directory = directory.path(),
                              .max_evaluations = 2,
                              .look_every = std::chrono::milliseconds(1),
                              .on_evaluation = [&](int64_t, const Logs&) {
                                train_on();
                                return true;
                              }});
  const LogCapture log;

  EXPECT_EQ(evaluator.run(), 2);

  EXPECT_FALSE(log.contains("restored")) << "on_evaluation tells what there is to tell";
}

TEST(SidecarEvaluator, EndsWhenNoOtherComes) {
  const ScopedDirectory directory;
  Model model = small_model();
  model.fit(some_data(), {.callbacks = {ModelCheckpoint({.directory = directory.path()})}, .verbose = 0});
  SidecarEvaluator evaluator(model, some_data(), {.directory = directory.path(), .patience = seconds(0)});
  EXPECT_EQ(evaluator.run(), 1);
  EXPECT_THROW(SidecarEvaluator(small_model(), some_data(), {.directory = ""}), Error);
}

}  // namespace
}  // namespace muster::sidecar_evaluator_test

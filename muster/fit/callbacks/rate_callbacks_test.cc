#include "muster/fit/callbacks/rate_callbacks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <limits>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/base/test_errors.h"
#include "muster/fit/model.h"

namespace muster::rate_callbacks_test {
namespace {

using ::testing::ElementsAre;
using testing_support::error_of;

Model small_model(OptimizerRule optimizer) {
  torch::manual_seed(1);
  return compile(torch::nn::Linear(2, 1), {.optimizer = std::move(optimizer), .loss = mean_squared_error});
}

ModelInput some_data() {
  const at::Tensor x = torch::ones({8, 2});
  return {x, x.sum(1, true)};
}

TEST(LearningRateScheduler, SetsTheRateOfEachEpoch) {
  Model model = small_model(Sgd({.learning_rate = 0.4}));
  std::vector<double> seen;
  const LambdaCallback look({.on_epoch_end = [&](Training& training, const Logs&) {
    seen.push_back(training.model.optimizer().learning_rate());
  }});
  model.fit(
      some_data(),
      {.epochs = 3,
       .callbacks = {LearningRateScheduler([](int epoch, double rate) { return epoch == 0 ? rate : rate / 2; }), look},
       .verbose = 0});
  EXPECT_THAT(seen, ElementsAre(0.4, 0.2, 0.1));
}

TEST(LearningRateScheduler, PutsTheRateIntoTheHistory) {
  Model model = small_model(Sgd({.learning_rate = 0.4}));

  const History history = model.fit(
      some_data(),
      {.epochs = 3,
       .callbacks = {LearningRateScheduler([](int epoch, double rate) { return epoch == 0 ? rate : rate / 2; })},
       .verbose = 0});

  EXPECT_THAT(history["learning_rate"], ElementsAre(0.4, 0.2, 0.1));
}

TEST(ReduceLrOnPlateau, PutsTheRateThatAnEpochHadIntoTheHistory) {
  Model model = small_model(Sgd({.learning_rate = 0}));
  model.optimizer().set_learning_rate(1e-30);

  const History history = model.fit(
      some_data(),
      {.epochs = 3, .callbacks = {ReduceLrOnPlateau({.monitor = "loss", .factor = 0.5, .patience = 1})}, .verbose = 0});

  EXPECT_THAT(history["learning_rate"], ElementsAre(1e-30, 1e-30, 5e-31));
}

TEST(LearningRateScheduler, NeedsAFunction) { EXPECT_THROW(LearningRateScheduler(nullptr), Error); }

// The loss of each epoch, as if it had been trained, and the rate afterwards.
std::vector<double> rates_after(ReduceLrOnPlateauOptions options, const std::vector<double>& losses) {
  Model model = small_model(Sgd({.learning_rate = 1}));
  Training training{.model = model, .epochs = 100};
  ReduceLrOnPlateau callback(std::move(options));
  std::vector<double> rates;
  for (const double loss : losses) {
    callback.on_epoch_end(training, {{"val_loss", loss}});
    rates.push_back(model.optimizer().learning_rate());
    ++training.epoch;
  }
  return rates;
}

TEST(ReduceLrOnPlateau, WaitsForEpochsThatAreNoBetter) {
  EXPECT_THAT(rates_after({.factor = 0.5, .patience = 2}, {5, 4, 4, 4, 3, 3, 3, 3, 3}),
              ElementsAre(1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.125));
}

TEST(ReduceLrOnPlateau, BeginsAnewWithEachFit) {
  Model model = small_model(Sgd({.learning_rate = 1}));
  Training training{.model = model, .epochs = 100};
  ReduceLrOnPlateau callback({.factor = 0.5, .patience = 2});
  for (int fits = 0; fits < 2; ++fits) {
    callback.on_train_begin(training);
    for (int epoch = 0; epoch < 2; ++epoch) callback.on_epoch_end(training, {{"val_loss", 3.0}});
  }
  EXPECT_EQ(model.optimizer().learning_rate(), 1);
}

TEST(ReduceLrOnPlateau, CoolsDownAndStopsAtTheLeast) {
  EXPECT_THAT(rates_after({.factor = 0.5, .patience = 1, .cooldown = 2}, {5, 5, 5, 5, 5, 5}),
              ElementsAre(1, 0.5, 0.5, 0.5, 0.25, 0.25));
  EXPECT_THAT(rates_after({.factor = 0.5, .patience = 1, .min_rate = 0.4}, {5, 5, 5, 5}),
              ElementsAre(1, 0.5, 0.4, 0.4));
}

TEST(ReduceLrOnPlateau, AsksForMoreThanTheLeastDifference) {
  EXPECT_THAT(rates_after({.factor = 0.5, .patience = 1, .min_delta = 0.1}, {5, 4.95, 4.89, 4.5}),
              ElementsAre(1, 0.5, 0.5, 0.5));
  EXPECT_THAT(rates_after({.better = Better::kLarger, .factor = 0.5, .patience = 1}, {1, 2, 1.5}),
              ElementsAre(1, 1, 0.5));
}

TEST(ReduceLrOnPlateau, NamesAnOptionThatIsOutOfItsRange) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  const auto refused = [](const ReduceLrOnPlateauOptions& options) {
    return error_of([&] { const ReduceLrOnPlateau callback(options); });
  };

  EXPECT_EQ(refused({.factor = 1}), "ReduceLrOnPlateau: factor is 1, expected more than 0 and less than 1");
  EXPECT_EQ(refused({.factor = 0}), "ReduceLrOnPlateau: factor is 0, expected more than 0 and less than 1");
  EXPECT_EQ(refused({.factor = none}), "ReduceLrOnPlateau: factor is nan, expected more than 0 and less than 1");
  EXPECT_EQ(refused({.patience = -1}), "ReduceLrOnPlateau: patience is -1, expected 0 or more");
  EXPECT_EQ(refused({.min_delta = -0.5}), "ReduceLrOnPlateau: min_delta is -0.5, expected 0 or more");
  EXPECT_EQ(refused({.min_delta = none}), "ReduceLrOnPlateau: min_delta is nan, expected 0 or more");
  EXPECT_EQ(refused({.cooldown = -2}), "ReduceLrOnPlateau: cooldown is -2, expected 0 or more");
  EXPECT_EQ(refused({.min_rate = -0.5}), "ReduceLrOnPlateau: min_rate is -0.5, expected 0 or more");
  EXPECT_EQ(refused({.min_rate = none}), "ReduceLrOnPlateau: min_rate is nan, expected 0 or more");
}

TEST(RateCallbacks, RefuseARateThatFollowsASchedule) {
  Model model = small_model(Sgd({.learning_rate = cosine_decay(0.1, 100)}));
  const LearningRateScheduler same([](int, double rate) { return rate; });
  EXPECT_THROW(model.fit(some_data(), {.callbacks = {same}, .verbose = 0}), Error);
  EXPECT_THROW(model.fit(some_data(), {.callbacks = {ReduceLrOnPlateau()}, .verbose = 0}), Error);
}

TEST(SwapAverages, EvaluatesValidationDataWithTheAverages) {
  const double keeps = 0.9;
  auto compiled = [&] { return small_model(Sgd({.learning_rate = 0.1, .all = {.average = keeps}})); };
  Model swapping = compiled(), other = compiled();
  std::vector<double> expected;
  const LambdaCallback by_hand({.on_epoch_end = [&](Training& training, const Logs&) {
    training.model.optimizer().swap_averages();
    expected.push_back(training.model.evaluate(some_data())["loss"]);
    training.model.optimizer().swap_averages();
  }});

  const History history = swapping.fit(
      some_data(), {.epochs = 4, .validation_data = some_data(), .callbacks = {SwapAverages()}, .verbose = 0});
  const History values =
      other.fit(some_data(), {.epochs = 4, .validation_data = some_data(), .callbacks = {by_hand}, .verbose = 0});

  EXPECT_THAT(history["val_loss"], ::testing::Pointwise(::testing::DoubleNear(1e-6), expected));
  EXPECT_GT(history["val_loss"].back(), values["val_loss"].back()) << "averages come later";
  EXPECT_THAT(history["loss"], ::testing::Pointwise(::testing::DoubleNear(1e-6), values["loss"]))
      << "training goes on with the values";
}

TEST(SwapAverages, LeavesInTheModelWhatValidationHasMeasured) {
  Model model = small_model(Sgd({.learning_rate = 0.1, .all = {.average = 0.9}}));

  const History history = model.fit(
      some_data(), {.epochs = 4, .validation_data = some_data(), .callbacks = {SwapAverages()}, .verbose = 0});

  EXPECT_NEAR(model.evaluate(some_data())["loss"], history["val_loss"].back(), 1e-5);
}

TEST(SwapAverages, SaysThatValidationHadWhatTheModelHasIfThereWasOne) {
  const auto speaks_of_validation = [](const FitOptions& options) {
    Model model = small_model(Sgd({.learning_rate = 0.1, .all = {.average = 0.9}}));
    const LogCapture log;
    model.fit(some_data(), options);
    EXPECT_TRUE(log.contains("the model has the averages of its variables now"));
    return log.contains("as its validation had them");
  };

  EXPECT_TRUE(speaks_of_validation({.validation_data = some_data(), .callbacks = {SwapAverages()}, .verbose = 0}));
  EXPECT_FALSE(speaks_of_validation({.callbacks = {SwapAverages()}, .verbose = 0}));
}

TEST(SwapAverages, LeavesTheAveragesOfTheBestEpochWhereverItStands) {
  for (const bool first : {true, false}) {
    // To and fro, so that the third epoch is worse.
    Model model = small_model(Sgd({.learning_rate = 0.3, .all = {.average = 0.5}}));
    const EarlyStopping stopping({.patience = 1, .restore_best_weights = true});
    Callbacks callbacks;
    if (first) callbacks.add(SwapAverages());
    callbacks.add(stopping);
    if (!first) callbacks.add(SwapAverages());

    const History history =
        model.fit(some_data(), {.epochs = 5, .validation_data = some_data(), .callbacks = callbacks, .verbose = 0});

    const double best = std::ranges::min(history["val_loss"]);
    EXPECT_GT(history["val_loss"].back(), best) << "else nothing is brought back";
    EXPECT_NEAR(model.evaluate(some_data())["loss"], best, 1e-5);
  }
}

TEST(SwapAverages, LeavesTheValuesIfItIsToldTo) {
  auto compiled = [&] { return small_model(Sgd({.learning_rate = 0.1, .all = {.average = 0.9}})); };
  Model swapping = compiled(), other = compiled();

  swapping.fit(
      some_data(),
      {.epochs = 3, .validation_data = some_data(), .callbacks = {SwapAverages({.take_at_end = false})}, .verbose = 0});
  other.fit(some_data(), {.epochs = 3, .verbose = 0});

  EXPECT_NEAR(swapping.evaluate(some_data())["loss"], other.evaluate(some_data())["loss"], 1e-6);
}

TEST(SwapAverages, GivesTheValuesBackIfAnEvaluationFails) {
  Model model = small_model(Sgd({.learning_rate = 0.1, .all = {.average = 0.9}}));
  model.fit(some_data(), {.epochs = 3, .verbose = 0});
  const double loss = model.evaluate(some_data())["loss"];
  const ModelInput wrong{torch::ones({8, 5}), torch::ones({8, 1})};
  model.optimizer().set_learning_rate(0);

  EXPECT_ANY_THROW(
      model.fit(some_data(), {.epochs = 1, .validation_data = wrong, .callbacks = {SwapAverages()}, .verbose = 0}));

  EXPECT_NEAR(model.evaluate(some_data())["loss"], loss, 1e-6);
}

TEST(SwapAverages, GivesTheValuesBackIfAnotherCallbackFails) {
  struct Fails : Callback {
    explicit Fails(bool begin) : at_begin(begin) {}
    void on_validation_begin(Training&) override {
      if (at_begin) throw aborted("at the beginning");
    }
    void on_validation_end(Training&) override { throw aborted("at the end"); }
    bool at_begin;
  };
  for (const bool at_begin : {true, false}) {
    Model model = small_model(Sgd({.learning_rate = 0.1, .all = {.average = 0.9}}));
    model.fit(some_data(), {.epochs = 3, .verbose = 0});
    const double loss = model.evaluate(some_data())["loss"];
    model.optimizer().set_learning_rate(0);
    Callbacks callbacks;
    if (!at_begin) callbacks.add(Fails(false));
    callbacks.add(SwapAverages());
    if (at_begin) callbacks.add(Fails(true));

    const std::string message = testing_support::message_of([&] {
      model.fit(some_data(), {.epochs = 1, .validation_data = some_data(), .callbacks = callbacks, .verbose = 0});
    });

    EXPECT_THAT(message, ::testing::HasSubstr(at_begin ? "at the beginning" : "at the end"));
    EXPECT_NEAR(model.evaluate(some_data())["loss"], loss, 1e-6);
  }
}

TEST(SwapAverages, IsRefusedWithoutAverages) {
  Model model = small_model(Sgd({.learning_rate = 0.1}));

  EXPECT_THROW(model.fit(some_data(), {.callbacks = {SwapAverages()}, .verbose = 0}), Error);
}

}  // namespace
}  // namespace muster::rate_callbacks_test

#include "muster/fit/callbacks/best_so_far.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <vector>

#include "muster/base/log.h"
#include "muster/fit/callbacks/callbacks.h"
#include "muster/fit/model.h"

namespace muster::best_so_far_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The epochs that there are with these numbers, one after the other.
int epochs_of(const EarlyStoppingOptions& options, const std::vector<double>& numbers) {
  const LambdaCallback score({.add_logs = [&](Training& training, Logs& logs) {
    logs.set(options.monitor, numbers[static_cast<size_t>(training.epoch)]);
  }});
  Model model = compile(torch::nn::Linear(2, 1), {.loss = mean_squared_error});
  const History history = model.fit(
      {torch::ones({8, 2}), torch::ones({8, 1})},
      {.epochs = static_cast<int>(numbers.size()), .callbacks = {score, EarlyStopping(options)}, .verbose = 0});
  return static_cast<int>(history.epochs().size());
}

TEST(EarlyStopping, AsksForMoreThanTheLeastDifference) {
  EXPECT_EQ(epochs_of({.monitor = "score", .min_delta = 0.1, .patience = 2}, {5, 4.95, 4.91, 4, 3}), 3);
  EXPECT_EQ(epochs_of({.monitor = "score", .min_delta = 0.1, .patience = 2}, {5, 4.95, 4.89, 4, 3}), 5);
}

TEST(EarlyStopping, IsToldWhichNumbersAreBetter) {
  const std::vector<double> rising{1, 2, 3, 4};
  EXPECT_EQ(epochs_of({.monitor = "score", .better = Better::kLarger, .patience = 1}, rising), 4);
  EXPECT_EQ(epochs_of({.monitor = "accuracy", .better = Better::kSmaller, .patience = 1}, rising), 2);
  EXPECT_EQ(epochs_of({.monitor = "accuracy", .patience = 1}, rising), 4);
}

TEST(EarlyStopping, EndsWhatDoesNotReachTheBaseline) {
  const EarlyStoppingOptions options{.monitor = "score", .patience = 3, .baseline = 2.0};
  EXPECT_EQ(epochs_of(options, {5, 4, 3, 3, 3}), 4);
  EXPECT_EQ(epochs_of(options, {5, 4, 3, 2.5, 2.1}), 5) << "it still becomes better";
  EXPECT_EQ(epochs_of(options, {5, 4, 1.9, 1.8, 1.7}), 5);
}

TEST(BestSoFar, ANumberThatEndsInLossIsBetterIfSmaller) {
  BestSoFar best("val_recall_loss", Better::kAuto);
  EXPECT_TRUE(best.improves({{"val_recall_loss", 0.5}}, "EarlyStopping"));
  EXPECT_TRUE(best.improves({{"val_recall_loss", 0.4}}, "EarlyStopping"));
  EXPECT_FALSE(best.improves({{"val_recall_loss", 0.45}}, "EarlyStopping"));
}

TEST(BestSoFar, KnowsFromTheNameWhichNumbersAreBetter) {
  for (const char* name :
       {"val_iou", "mean_iou", "miou", "mean_io_u", "top_1", "val_top_5", "top5", "top_k", "acc", "val_acc"}) {
    EXPECT_TRUE(BestSoFar(name, Better::kAuto).better(2, 1)) << name;
  }
  for (const char* name : {"iou_loss", "top_1_error", "previous", "stop_1", "topology", "desktop_2", "accent",
                           "decoder2_mse", "layer2_binary_cross_entropy", "sauce_mae", "radio_user_mae", "leaf1_mae"}) {
    EXPECT_TRUE(BestSoFar(name, Better::kAuto).better(1, 2)) << name;
  }
}

TEST(BestSoFar, WarnsOfANameThatDoesNotSayWhatIsBetter) {
  Model model = compile(torch::nn::Linear(2, 1), {.loss = mean_squared_error});
  const Training training{.model = model, .epochs = 1};
  const auto said = [&](const std::string& name, Better better) {
    const LogCapture log;
    BestSoFar(name, better).expect_in(training, "EarlyStopping");
    return log.lines();
  };

  EXPECT_THAT(said("val_bleu", Better::kAuto),
              ElementsAre(LogLine{LogLevel::kWarning,
                                  "EarlyStopping: whether smaller or larger is better is not known of the name "
                                  "\"val_bleu\"; taken for better if smaller. The option better says it"}));
  EXPECT_THAT(said("val_bleu", Better::kLarger), IsEmpty());
  EXPECT_THAT(said("val_bleu", Better::kSmaller), IsEmpty());
  for (const char* name : {"loss", "val_box_loss", "val_accuracy", "acc", "top_5", "mean_squared_error", "val_mae",
                           "binary_cross_entropy", "perplexity", "mean_io_u", "r2_score", "kl_divergence"}) {
    EXPECT_THAT(said(name, Better::kAuto), IsEmpty()) << name;
  }
}

TEST(EarlyStopping, RestoresTheAveragesOfTheBestWeights) {
  const std::vector<double> numbers{3, 1, 2};
  torch::manual_seed(5);
  Model model = compile(torch::nn::Linear(2, 1), {.optimizer = Sgd({.learning_rate = 0.01, .all = {.average = 0.5}}),
                                                  .loss = mean_squared_error});
  at::Tensor value, mean;
  const Variable weight = model.variables().all()[0];
  const LambdaCallback score({.add_logs = [&](Training& training, Logs& logs) {
    logs.set("score", numbers[static_cast<size_t>(training.epoch)]);
    if (training.epoch != 1) return;
    value = weight.value().clone();
    model.optimizer().swap_averages();
    mean = weight.value().clone();
    model.optimizer().swap_averages();
  }});

  model.fit({torch::ones({8, 2}), torch::ones({8, 1})},
            {.epochs = 3,
             .batch_size = 2,
             .callbacks = {score, EarlyStopping({.monitor = "score", .patience = 1, .restore_best_weights = true})},
             .verbose = 0});

  EXPECT_FALSE(torch::allclose(mean, value));
  EXPECT_TRUE(torch::allclose(weight.value(), value)) << weight.value() << "\ninstead of\n" << value;
  model.optimizer().take_averages();
  EXPECT_TRUE(torch::allclose(weight.value(), mean)) << weight.value() << "\ninstead of\n" << mean;
}

}  // namespace
}  // namespace muster::best_so_far_test

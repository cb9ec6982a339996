#include "muster/fit/fit_display.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <sstream>

#include "muster/fit/model.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// What it shows of an epoch of two executions.
std::string shown(const FitDisplayOptions& options) {
  std::ostringstream out;
  FitDisplayOptions here = options;
  here.out = &out;
  FitDisplay display(here);
  Model model = compile(torch::nn::Linear(1, 1), {.loss = mean_squared_error});
  Training training{.model = model, .epochs = 3, .epoch = 1};
  display.on_epoch_begin(training);
  for (int i = 0; i < 2; ++i) {
    training.steps += 1000;
    training.examples += 64'000;
    display.on_steps(training, {{"loss", 0.5}});
  }
  display.on_epoch_end(training, {{"accuracy", 0.9}, {"loss", 0.25}, {"val_loss", 0.125}});
  return out.str();
}

TEST(FitDisplay, IsALineForAnEpochWhereThereIsNoTerminal) {
  EXPECT_THAT(shown({.steps = 2000}),
              AllOf(StartsWith("epoch 2/3  2,000 steps  0.0 s  "),
                    HasSubstr(" examples/s  loss 0.25  accuracy 0.9  val_loss 0.125\n"), Not(HasSubstr("\x1b"))));
}

TEST(FitDisplay, IsABarOnATerminalThatBecomesALine) {
  const std::string text = shown({.steps = 2000, .tty = true});

  EXPECT_THAT(text, AllOf(HasSubstr("\repoch 2/3  50%"), HasSubstr("\x1b[2Kepoch 2/3  2,000 steps")));
  EXPECT_THAT(shown({.steps = 2000, .bar = false, .tty = true}), Not(HasSubstr("\x1b")));
}

TEST(FitDisplay, SaysOneStep) {
  std::ostringstream out;
  FitDisplay display({.out = &out});
  Model model = compile(torch::nn::Linear(1, 1), {.loss = mean_squared_error});
  Training training{.model = model, .epochs = 1};

  display.on_epoch_begin(training);
  training.steps = 1;
  display.on_epoch_end(training, {{"loss", 0.25}});

  EXPECT_THAT(out.str(), StartsWith("epoch 1/1  1 step  "));
}

}  // namespace
}  // namespace muster

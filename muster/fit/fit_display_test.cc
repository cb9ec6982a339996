#include "muster/fit/fit_display.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <pty.h>
#include <torch/torch.h>
#include <unistd.h>

#include <iostream>
#include <sstream>

#include "muster/fit/callbacks/callbacks.h"
#include "muster/fit/model.h"

namespace muster::fit_display_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

// What a terminal shows that was written this.
std::vector<std::string> screen(const std::string& written) {
  std::vector<std::string> lines(1);
  size_t line = 0, column = 0;
  for (size_t i = 0; i < written.size(); ++i) {
    if (written[i] == '\r') {
      column = 0;
    } else if (written[i] == '\n') {
      if (++line == lines.size()) lines.emplace_back();
      column = 0;
    } else if (written.compare(i, 3, "\x1b[K") == 0) {
      lines[line].resize(column);
      i += 2;
    } else if (written.compare(i, 4, "\x1b[2K") == 0) {
      lines[line].clear();
      i += 3;
    } else if (written.compare(i, 4, "\x1b[1A") == 0) {
      line -= line > 0 ? 1 : 0;
      i += 3;
    } else {
      lines[line].resize(std::max(lines[line].size(), column), ' ');
      lines[line].replace(column++, 1, 1, written[i]);
    }
  }
  if (lines.back().empty()) lines.pop_back();
  return lines;
}

class FitDisplayTest : public ::testing::Test {
 protected:
  // What it shows of an epoch of two executions, of 1000 steps each.
  std::string shown(FitDisplayOptions options) {
    std::ostringstream out;
    options.out = &out;
    FitDisplay display(options);
    Training training{.model = model_, .epochs = 3, .epoch = 1};
    display.begin_epoch(training);
    for (int i = 0; i < 2; ++i) step(display, training, 1000);
    display.end_epoch(training, {{"accuracy", 0.9}, {"loss", 0.25}, {"val_loss", 0.125}});
    return out.str();
  }
  static void step(FitDisplay& display, Training& training, int64_t steps) {
    training.steps += steps;
    training.examples += 64 * steps;
    display.steps(training, {{"loss", 0.5}});
  }

  Model model_ = compile(torch::nn::Linear(1, 1), {.loss = mean_squared_error});
};

TEST_F(FitDisplayTest, IsALineForAnEpochWhereThereIsNoTerminal) {
  EXPECT_THAT(shown({.steps = 2000}),
              AllOf(StartsWith("epoch 2/3  2,000 steps  0.0 s  "),
                    HasSubstr(" examples/s  loss 0.25  accuracy 0.9  val_loss 0.125\n"), Not(HasSubstr("\x1b"))));
}

TEST_F(FitDisplayTest, IsABarOnATerminalThatBecomesALine) {
  const std::string text = shown({.steps = 2000, .tty = true});

  EXPECT_THAT(text, AllOf(HasSubstr("\repoch 2/3  50% ["), HasSubstr(" left"), HasSubstr(" examples/s  ")));
  EXPECT_THAT(screen(text), ElementsAre(StartsWith("epoch 2/3  2,000 steps  0.0 s  ")));
  EXPECT_THAT(shown({.steps = 2000, .bar = false, .tty = true}), Not(HasSubstr("\x1b")));
}

TEST_F(FitDisplayTest, SaysHowFarItIsWhereNobodyKnowsTheLength) {
  const std::string text = shown({.tty = true});

  EXPECT_THAT(text, AllOf(HasSubstr("\repoch 2/3  1000  "), HasSubstr(" examples/s"), Not(HasSubstr("%"))));
  EXPECT_THAT(screen(text), ElementsAre(StartsWith("epoch 2/3  2,000 steps  0.0 s  ")));
}

TEST_F(FitDisplayTest, LeavesWhatStandsAboveEpochsWhoseBarWasNeverDrawn) {
  std::ostringstream out;
  out << "of the user\n";
  FitDisplay display({.steps = 1, .out = &out, .tty = true});
  Training training{.model = model_, .epochs = 2};
  for (; training.epoch < 2; ++training.epoch) {
    display.begin_epoch(training);
    step(display, training, 1);
    display.end_epoch(training, {{"loss", 0.25}});
  }

  EXPECT_THAT(screen(out.str()),
              ElementsAre("of the user", StartsWith("epoch 1/2  1 step  "), StartsWith("epoch 2/2")));
}

TEST_F(FitDisplayTest, LeavesATrainingThatFailsOnAFreshLine) {
  std::ostringstream out;
  {
    FitDisplay display({.steps = 4, .out = &out, .tty = true});
    Training training{.model = model_, .epochs = 1};
    display.begin_epoch(training);
    step(display, training, 1);
  }
  out << "error";

  EXPECT_THAT(screen(out.str()), ElementsAre(StartsWith("epoch 1/1  25%"), "error"));
}

// A terminal in the place of standard output.
class Terminal {
 public:
  Terminal() {
    winsize size{.ws_row = 30, .ws_col = 100, .ws_xpixel = 0, .ws_ypixel = 0};
    int terminal = -1;
    if (openpty(&here_, &terminal, nullptr, nullptr, &size) != 0) throw std::runtime_error("no terminal");
    std::cout << std::flush;
    output_ = dup(STDOUT_FILENO);
    dup2(terminal, STDOUT_FILENO);
    close(terminal);
  }
  ~Terminal() {
    give_back();
    close(here_);
  }
  // That was written to it, which is standard output no more. It holds a few thousand characters.
  std::string written() {
    give_back();
    std::string all;
    std::array<char, 4096> some{};
    for (ssize_t count = 0; (count = read(here_, some.data(), some.size())) > 0;) all.append(some.data(), count);
    return all;
  }

 private:
  void give_back() {
    if (output_ < 0) return;
    std::cout << std::flush;
    dup2(output_, STDOUT_FILENO);
    close(std::exchange(output_, -1));
  }

  int here_ = -1, output_ = -1;
};

// What a terminal shows of two epochs of so many steps, between which a callback prints.
std::vector<std::string> shown_of_fit(Model& model, int64_t steps, std::string* written = nullptr) {
  const auto print = [](const Training& training) { std::cout << "of epoch " << training.epoch << std::endl; };
  const LambdaCallback prints({.add_logs = [&](Training& training, Logs&) { print(training); },
                               .on_epoch_end = [&](Training& training, const Logs&) { print(training); },
                               .on_epoch_over = print});
  Terminal terminal;
  std::cout << "before" << std::endl;
  model.fit({torch::ones({4 * steps, 1}), torch::ones({4 * steps, 1})},
            {.epochs = 2, .batch_size = 4, .callbacks = {prints}});
  const std::string all = terminal.written();
  if (written != nullptr) *written = all;
  return screen(all);
}

TEST_F(FitDisplayTest, KeepsWhatCallbacksPrintApartFromTheBarOfFit) {
  std::string written;
  for (const int64_t steps : {1, 3}) {
    EXPECT_THAT(shown_of_fit(model_, steps, &written),
                ElementsAre("before", "of epoch 0", StartsWith("epoch 1/2  "), "of epoch 0", "of epoch 0", "of epoch 1",
                            StartsWith("epoch 2/2  "), "of epoch 1", "of epoch 1"));
  }
  EXPECT_THAT(written, HasSubstr("\repoch 1/2  33% [")) << "the length of tensors is known before the first epoch";
}

TEST_F(FitDisplayTest, KnowsTheLengthOfADatasetBeforeTheFirstEpoch) {
  const at::Tensor x = torch::ones({12, 1});
  Terminal terminal;

  model_.fit(Dataset::tensors({x, x}).shuffle(12).batch(5, /*drop_remainder=*/true).prefetch(2), {.epochs = 1});

  EXPECT_THAT(terminal.written(), HasSubstr("\repoch 1/1  50% ["));
}

TEST_F(FitDisplayTest, SaysOneStep) {
  std::ostringstream out;
  FitDisplay display({.out = &out});
  Training training{.model = model_, .epochs = 1};

  display.begin_epoch(training);
  training.steps = 1;
  display.end_epoch(training, {{"loss", 0.25}});

  EXPECT_THAT(out.str(), StartsWith("epoch 1/1  1 step  "));
}

}  // namespace
}  // namespace muster::fit_display_test

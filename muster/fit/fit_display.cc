#include "muster/fit/fit_display.h"

#include <absl/strings/str_format.h>
#include <unistd.h>

#include <iostream>

#include "muster/base/strings.h"

namespace muster {
namespace {

void add(std::string& text, const std::string& name, double value) {
  str_append(text, text.empty() ? "" : "  ", name, " ", absl::StrFormat("%.4g", value));
}

}  // namespace

std::string with_commas(int64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string described(const Logs& logs) {
  std::string text;
  for (const std::string prefix : {"", "val_"}) {
    const auto loss = logs.find(prefix + "loss");
    if (loss != logs.end()) add(text, loss->first, loss->second);
    for (auto log = logs.begin(); log != logs.end(); ++log) {
      if (log != loss && log->first.starts_with("val_") == !prefix.empty()) add(text, log->first, log->second);
    }
  }
  return text;
}

FitDisplay::FitDisplay(const FitDisplayOptions& options)
    : out_(options.out != nullptr ? *options.out : std::cout),
      bar_(options.bar && options.tty.value_or(options.out == nullptr && ::isatty(STDOUT_FILENO) != 0)),
      steps_(options.steps) {}

void FitDisplay::on_epoch_begin(Training& training) {
  began_ = std::chrono::steady_clock::now();
  steps_before_ = training.steps;
  examples_before_ = training.examples;
  if (!bar_ || !steps_ || *steps_ < 1) return;
  shown_ = std::make_shared<ProgressBar>(
      ProgressOptions{.title = str_cat("epoch ", training.epoch + 1, "/", training.epochs),
                      .total = *steps_,
                      .out = &out_,
                      .tty = true});
}

void FitDisplay::on_steps(Training& training, const Logs& logs) {
  // It finishes by itself at the total, and the line of the epoch takes its place.
  if (shown_ && training.steps - steps_before_ < *steps_)
    shown_->update(training.steps - steps_before_, described(logs));
}

void FitDisplay::on_epoch_end(Training& training, const Logs& logs) {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  const int64_t steps = training.steps - steps_before_, examples = training.examples - examples_before_;
  steps_ = steps;
  if (shown_) {
    shown_.reset();
    out_ << "\x1b[1A\x1b[2K";  // over the bar
  }
  out_ << "epoch " << training.epoch + 1 << "/" << training.epochs << "  " << with_commas(steps)
       << (steps == 1 ? " step  " : " steps  ") << absl::StrFormat("%.1f", seconds) << " s  "
       << with_commas(static_cast<int64_t>(static_cast<double>(examples) / std::max(seconds, 1e-9))) << " examples/s  "
       << described(logs) << std::endl;
}

}  // namespace muster

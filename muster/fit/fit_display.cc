#include "muster/fit/fit_display.h"

#include <absl/strings/str_format.h>
#include <unistd.h>

#include <algorithm>
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

double FitDisplay::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
}

std::string FitDisplay::rate(const Training& training, double seconds) const {
  const auto examples = static_cast<double>(training.examples - examples_before_);
  return str_cat(with_commas(static_cast<int64_t>(examples / std::max(seconds, 1e-9))), " examples/s");
}

void FitDisplay::begin_epoch(const Training& training) {
  began_ = std::chrono::steady_clock::now();
  steps_before_ = training.steps;
  examples_before_ = training.examples;
  if (!bar_) return;
  shown_ = std::make_unique<ProgressBar>(
      ProgressOptions{.title = str_cat("epoch ", training.epoch + 1, "/", training.epochs),
                      .total = steps_,
                      .out = &out_,
                      .tty = true,
                      .rate = false});
}

void FitDisplay::steps(const Training& training, const Logs& logs) {
  const int64_t steps = training.steps - steps_before_;
  // It finishes by itself at the total, and the line of the epoch takes its place.
  if (!shown_ || (steps_ && steps >= *steps_)) return;
  shown_->update(steps, str_cat(rate(training, seconds()), "  ", described(logs)));
}

void FitDisplay::erase_bar() {
  if (shown_) shown_->erase();
}

void FitDisplay::end_epoch(const Training& training, const Logs& logs) {
  erase_bar();
  shown_.reset();
  const double took = seconds();
  const int64_t steps = training.steps - steps_before_;
  steps_ = steps;
  out_ << "epoch " << training.epoch + 1 << "/" << training.epochs << "  " << with_commas(steps)
       << (steps == 1 ? " step  " : " steps  ") << absl::StrFormat("%.1f", took) << " s  " << rate(training, took)
       << "  " << described(logs) << std::endl;
}

}  // namespace muster

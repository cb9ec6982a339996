// How fit() shows what it does.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>

#include "muster/base/progress.h"
#include "muster/fit/callbacks/callback.h"

namespace muster {

struct FitDisplayOptions {
  std::optional<int64_t> steps{};  // of an epoch, if that is known
  bool bar = true;                 // where it can be drawn
  std::ostream* out = nullptr;     // standard output
  std::optional<bool> tty{};       // whether it is a terminal
};

// On a terminal a bar for each epoch that becomes a line; elsewhere a line:
//   epoch 2/10  937 steps  1.9 s  31,540 examples/s  loss 0.2961  accuracy 0.9137
// No callback, but told before all callbacks what an epoch had: what these print comes after its line. What is written
// to the terminal while the bar is there stands behind it, and the bar goes on below.
class FitDisplay {
 public:
  explicit FitDisplay(const FitDisplayOptions& options);
  void begin_epoch(const Training& training);
  void steps(const Training& training, const Logs& logs);  // so far
  bool wants_steps() const { return bar_; }
  void erase_bar();  // before others print
  void end_epoch(const Training& training, const Logs& logs);

 private:
  double seconds() const;  // of this epoch
  std::string rate(const Training& training, double seconds) const;

  std::ostream& out_;
  const bool bar_;
  std::optional<int64_t> steps_;
  std::unique_ptr<ProgressBar> shown_;  // of this epoch
  std::chrono::steady_clock::time_point began_;
  int64_t steps_before_ = 0, examples_before_ = 0;  // it
};

// "loss 0.2961  accuracy 0.9137": the loss first, then in order.
std::string described(const Logs& logs);
std::string with_commas(int64_t number);  // "1,234,567"

}  // namespace muster

// How fit() shows what it does.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>

#include "muster/base/progress.h"
#include "muster/fit/callback.h"

namespace muster {

struct FitDisplayOptions {
  std::optional<int64_t> steps{};  // of an epoch, if that is known
  bool bar = true;                 // where it can be drawn
  std::ostream* out = nullptr;     // standard output
  std::optional<bool> tty{};       // whether it is a terminal
};

// On a terminal a bar for each epoch that becomes a line; elsewhere a line:
//   epoch 2/10  937 steps  1.9 s  31,540 examples/s  loss 0.2961  accuracy 0.9137
class FitDisplay : public Callback {
 public:
  explicit FitDisplay(const FitDisplayOptions& options);
  void on_epoch_begin(Training& training) override;
  void on_steps(Training& training, const Logs& logs) override;
  bool wants_steps() const override { return bar_; }
  void on_epoch_end(Training& training, const Logs& logs) override;

 private:
  std::ostream& out_;
  const bool bar_;
  std::optional<int64_t> steps_;
  std::shared_ptr<ProgressBar> shown_;  // of this epoch
  std::chrono::steady_clock::time_point began_;
  int64_t steps_before_ = 0, examples_before_ = 0;  // it
};

// "loss 0.2961  accuracy 0.9137": the loss first, then in order.
std::string described(const Logs& logs);
std::string with_commas(int64_t number);  // "1,234,567"

}  // namespace muster

// Callbacks for what an optimizer keeps: they change the learning rate, without a new trace, or put averages in.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "muster/fit/callbacks/callbacks.h"

namespace muster {

// Sets the rate of each epoch (from 0) to what a function makes of the number and the rate so far. For rates that
// change from step to step an optimizer takes a Schedule; one that has one is refused when the training begins.
class LearningRateScheduler : public Callback {
 public:
  using Rule = std::function<double(int epoch, double rate)>;
  // Throws Error{kInvalidArgument} for no function.
  explicit LearningRateScheduler(Rule rule);
  void on_train_begin(Training& training) override;
  void on_epoch_begin(Training& training) override;
  void add_logs(Training& training, Logs& logs) override;
  std::optional<std::vector<std::string>> added_names() const override { return {{"learning_rate"}}; }

 private:
  Rule rule_;
};

// An epoch is in the cooldown if it ends in it, as in PyTorch; Keras counts the one that the rate was reduced in.
struct ReduceLrOnPlateauOptions {
  std::string monitor = "val_loss";
  Better better = Better::kAuto;
  double factor = 0.1;      // that the rate is multiplied with
  int patience = 10;        // epochs that may be no better before it is
  double min_delta = 1e-4;  // less is no better
  int cooldown = 0;         // epochs after it was that do not count
  double min_rate = 0;
};
class ReduceLrOnPlateau : public Callback {
 public:
  // Throws Error{kInvalidArgument} for a factor that is not between 0 and 1, and for other numbers below 0.
  explicit ReduceLrOnPlateau(ReduceLrOnPlateauOptions options = {});
  void on_train_begin(Training& training) override;
  void add_logs(Training& training, Logs& logs) override;
  std::optional<std::vector<std::string>> added_names() const override { return {{"learning_rate"}}; }
  void on_epoch_end(Training& training, const Logs& logs) override;
  std::string memory() const override;
  void remember(const std::string& memory) override;

 private:
  ReduceLrOnPlateauOptions options_;
  BestSoFar best_;
  int waited_ = 0, cooling_ = 0;
};

struct SwapAveragesOptions {
  bool take_at_end = true;  // false: the model has the values after fit(), and another fit() goes on with them
};
// Keras' SwapEMAWeights: validation data is evaluated with the averages of the variables (UpdateOptions::average), and
// training goes on with the values. After the last epoch the model has the averages for good, as Keras leaves them:
// those of the best epoch if EarlyStopping brings that back; not if it was preempted, and goes on. So what was measured
// is what predict(), evaluate() and exports of the model use. Checkpoints have the values, and the averages beside
// them: after Checkpoints::restore() Optimizer::take_averages() takes these. Without validation the values stay where a
// table makes its rows on demand.
class SwapAverages : public Callback {
 public:
  explicit SwapAverages(SwapAveragesOptions options = {}) : options_(options) {}
  // Throws Error{kInvalidArgument} if the optimizer keeps no averages.
  void on_train_begin(Training& training) override;
  void on_validation_begin(Training& training) override;
  void on_validation_end(Training& training) override;
  void on_train_over(Training& training) override;

 private:
  SwapAveragesOptions options_;
  bool validated_ = false;
};

}  // namespace muster

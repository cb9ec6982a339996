// How the learning rate of an optimizer changes with the steps that it has taken.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace muster {

// A number that stays, or one that a rule changes: `Sgd({.learning_rate = 0.1})`,
// `Adam({.learning_rate = warm_up(1000, cosine_decay(0.001, 100'000))})`. The rule is traced code: steps that run as
// one program each have their own rate.
class Schedule {
 public:
  // From the number of steps taken before (float64, no dimension) to what the initial rate is multiplied with.
  using Factor = std::function<at::Tensor(const at::Tensor& steps)>;

  Schedule(double constant) : initial_(constant) {}  // NOLINT: a number is a schedule
  // Throws Error{kInvalidArgument} for no factor.
  Schedule(double initial, Factor factor);

  double initial() const { return initial_; }
  bool is_constant() const { return !factor_; }
  at::Tensor factor(const at::Tensor& steps) const;
  double at(int64_t steps) const;  // the rate itself

 private:
  double initial_;
  Factor factor_;
};

// Those of Keras, by the same formulas; a step that is no whole number of periods counts in part, unless `staircase`.
// Each throws Error{kInvalidArgument} for numbers of steps below 1.
Schedule exponential_decay(double initial, int64_t decay_steps, double decay_rate, bool staircase = false);
Schedule inverse_time_decay(double initial, int64_t decay_steps, double decay_rate, bool staircase = false);
// `cycle`: where it would stay at the end it begins again with what twice as many steps have left, then thrice. From 0
// it rises to `end`, which is then its initial() and what set_learning_rate() changes.
Schedule polynomial_decay(double initial, int64_t decay_steps, double end = 0.0001, double power = 1,
                          bool cycle = false);
// Down to `end` times the initial rate along a half cosine.
Schedule cosine_decay(double initial, int64_t decay_steps, double end = 0);

struct CosineRestartsOptions {
  int64_t first_steps = 1000;  // until it begins again
  double longer = 2;           // each period is so many times as long as that before
  double lower = 1;            // and begins with so many times its rate
  double end = 0;              // of the initial rate
};
Schedule cosine_restarts(double initial, const CosineRestartsOptions& options = {});

// values[0] up to and including step boundaries[0], then values[1], and so on: one more value than boundaries, which
// ascend.
Schedule piecewise_constant(const std::vector<int64_t>& boundaries, const std::vector<double>& values);

// Rises from 0 to the initial rate of `after` in `steps` steps; then `after` begins.
Schedule warm_up(int64_t steps, const Schedule& after);

struct OneCycleOptions {
  double rising = 0.3;         // the part of the steps in which the rate rises
  double begin_divisor = 25;   // it begins with the largest rate divided by this
  double end_divisor = 10000;  // and ends with that divided by this
};
// PyTorch's OneCycleLR: up and down again along half cosines.
Schedule one_cycle(double largest, int64_t steps, const OneCycleOptions& options = {});

}  // namespace muster

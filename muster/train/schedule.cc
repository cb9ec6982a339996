#include "muster/train/schedule.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ceil.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/floor.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/log.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <numbers>

#include "muster/base/status.h"

namespace muster {
namespace {

double checked_steps(const char* schedule, int64_t steps) {
  if (steps < 1) throw invalid_argument(schedule, ": ", steps, " steps, expected at least 1");
  return static_cast<double>(steps);
}

// From 1 at 0 to 0 at 1.
at::Tensor half_cosine(const at::Tensor& done) { return at::cos(done * std::numbers::pi) * 0.5 + 0.5; }

// What part of a period is over; only whole periods with `staircase`.
at::Tensor periods(const at::Tensor& steps, double of, bool staircase) {
  return staircase ? at::floor(steps / of) : steps / of;
}

}  // namespace

Schedule::Schedule(double initial, Factor factor) : initial_(initial), factor_(std::move(factor)) {
  if (!factor_) throw invalid_argument("a schedule without a rule, expected a function from steps to a factor");
}

at::Tensor Schedule::factor(const at::Tensor& steps) const {
  return factor_ ? factor_(steps) : at::full_like(steps, 1.0);
}

double Schedule::at(int64_t steps) const {
  c10::AutoGradMode no_gradients(false);
  return is_constant() ? initial_ : initial_ * factor_(at::scalar_tensor(steps, at::kDouble)).item<double>();
}

Schedule exponential_decay(double initial, int64_t decay_steps, double decay_rate, bool staircase) {
  const double each = checked_steps("exponential_decay", decay_steps);
  if (decay_rate < 0) throw invalid_argument("exponential_decay: a rate of ", decay_rate, ", expected 0 or more");
  return {initial,
          [=](const at::Tensor& steps) { return at::pow(at::Scalar(decay_rate), periods(steps, each, staircase)); }};
}

Schedule inverse_time_decay(double initial, int64_t decay_steps, double decay_rate, bool staircase) {
  const double each = checked_steps("inverse_time_decay", decay_steps);
  return {initial,
          [=](const at::Tensor& steps) { return (periods(steps, each, staircase) * decay_rate + 1).reciprocal(); }};
}

Schedule polynomial_decay(double initial, int64_t decay_steps, double end, double power, bool cycle) {
  const double all = checked_steps("polynomial_decay", decay_steps);
  // No end is a multiple of 0: what rises from there is in units of its end.
  const double unit = initial == 0 ? end : initial;
  const double first = initial == 0 ? 0 : 1, rest = unit == 0 ? 0 : end / unit;
  return {unit, [=](const at::Tensor& steps) {
            const at::Tensor over = steps / all;
            const at::Tensor done = cycle ? over / at::ceil(over).clamp_min(1) : over.clamp_max(1);
            return at::pow(1 - done, power) * (first - rest) + rest;
          }};
}

Schedule cosine_decay(double initial, int64_t decay_steps, double end) {
  const double all = checked_steps("cosine_decay", decay_steps);
  return {initial, [=](const at::Tensor& steps) { return half_cosine(steps.clamp_max(all) / all) * (1 - end) + end; }};
}

Schedule cosine_restarts(double initial, const CosineRestartsOptions& options) {
  const double first = checked_steps("cosine_restarts", options.first_steps);
  if (options.longer < 1) {
    throw invalid_argument("cosine_restarts: periods ", options.longer, " times as long, expected at least 1");
  }
  return {initial, [=](const at::Tensor& steps) {
            const at::Tensor over = steps / first;  // in periods as long as the first
            const auto [longer, lower, end] = std::tuple(options.longer, options.lower, options.end);
            // Period k begins after the sum of longer^i, i < k. What is about whole is whole: logarithms round.
            const at::Tensor period =
                at::floor(longer == 1 ? over : at::log(over * (longer - 1) + 1) / std::log(longer) + 1e-9);
            const at::Tensor length = at::pow(at::Scalar(longer), period);
            const at::Tensor begin = longer == 1 ? period : (length - 1) / (longer - 1);
            const at::Tensor height = at::pow(at::Scalar(lower), period);
            return height * half_cosine((over - begin) / length) * (1 - end) + end;
          }};
}

Schedule piecewise_constant(const std::vector<int64_t>& boundaries, const std::vector<double>& values) {
  if (values.size() != boundaries.size() + 1) {
    throw invalid_argument("piecewise_constant: ", values.size(), " values for ", boundaries.size(),
                           " boundaries, expected one more");
  }
  for (size_t i = 1; i < boundaries.size(); ++i) {
    if (boundaries[i] <= boundaries[i - 1]) {
      throw invalid_argument("piecewise_constant: boundary ", boundaries[i], " after ", boundaries[i - 1],
                             ", expected ascending ones");
    }
  }
  if (values[0] == 0) throw invalid_argument("piecewise_constant: it begins with 0, of which others are no multiple");
  return {values[0], [=](const at::Tensor& steps) {
            at::Tensor factor = at::full_like(steps, 1.0);
            for (size_t i = 0; i < boundaries.size(); ++i) {
              factor = at::where(steps > boundaries[i], values[i + 1] / values[0], factor);
            }
            return factor;
          }};
}

Schedule warm_up(int64_t warm_steps, const Schedule& after) {
  const double rising = checked_steps("warm_up", warm_steps);
  return {after.initial(), [=](const at::Tensor& steps) {
            return (steps / rising).clamp_max(1) * after.factor((steps - rising).clamp_min(0));
          }};
}

Schedule one_cycle(double largest, int64_t total_steps, const OneCycleOptions& options) {
  // As PyTorch counts: the largest rate is that of a step, and so is the last.
  const double last = checked_steps("one_cycle", total_steps) - 1;
  const double top = options.rising * static_cast<double>(total_steps) - 1;
  if (options.rising <= 0 || options.rising >= 1 || top <= 0 || top >= last) {
    throw invalid_argument("one_cycle: the rate rises for ", options.rising, " of ", total_steps,
                           " steps, expected a part of them that leaves at least one for each way");
  }
  if (options.begin_divisor <= 0 || options.end_divisor <= 0) {
    throw invalid_argument("one_cycle: divisors ", options.begin_divisor, " and ", options.end_divisor,
                           ", expected more than 0");
  }
  const double peak = options.begin_divisor, end = 1 / options.end_divisor;  // in units of the first rate
  return {largest / peak, [=](const at::Tensor& steps) {
            const at::Tensor up = half_cosine((steps / top).clamp_max(1)) * (1 - peak) + peak;
            const at::Tensor down = half_cosine(((steps - top) / (last - top)).clamp(0, 1)) * (peak - end) + end;
            return at::where(steps <= top, up, down);
          }};
}

}  // namespace muster

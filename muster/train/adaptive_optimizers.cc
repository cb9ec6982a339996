#include "muster/train/adaptive_optimizers.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/where.h>

#include "muster/base/status.h"
#include "muster/runtime/executor/step_ops.h"
#include "muster/train/expect_option.h"
#include "muster/train/rule_options.h"
#include "muster/train/sum_of_squares.h"

namespace muster {

using step_ops::descend_;
using step_ops::one_minus_power;

// ---- Adadelta
Adadelta::Adadelta(const AdadeltaOptions& options)
    : RuleWith("adadelta", {{.name = "squares"}, {.name = "steps"}}, options) {
  expect_share("adadelta", "rho", options_.rho);
  expect_not_negative("adadelta", "epsilon", options_.epsilon);
}

void Adadelta::update(Update step) const {
  const at::Tensor gradient = step.decayed_gradient();
  at::Tensor &squares = step.slots[0], &steps = step.slots[1];
  squares.mul_(options_.rho).addcmul_(gradient, gradient, 1 - options_.rho);
  const at::Tensor change =
      steps.add(options_.epsilon).sqrt_().div_(squares.add(options_.epsilon).sqrt_()).mul_(gradient);
  steps.mul_(options_.rho).addcmul_(change, change, 1 - options_.rho);
  descend_(step.value, change, step.rate);
}

// ---- Adamax
Adamax::Adamax(const AdamaxOptions& options)
    : RuleWith("adamax", {{.name = "mean"}, {.name = "largest"}, {.name = "steps", .scalar = true}}, options) {
  expect_moments("adamax", options_);
}

void Adamax::update(Update step) const {
  const at::Tensor gradient = step.decayed_gradient();
  at::Tensor &mean = step.slots[0], &largest = step.slots[1], &count = step.slots[2];
  count.add_(1);
  mean.lerp_(gradient, 1 - options_.beta1);
  largest.copy_(at::maximum(largest.mul(options_.beta2), gradient.abs().add_(options_.epsilon)));
  descend_(step.value, mean.div(largest), step.rate.div(one_minus_power(options_.beta1, count)));
}

// ---- Nadam
Nadam::Nadam(const NadamOptions& options)
    : RuleWith("nadam",
               {{.name = "mean"},
                {.name = "variance"},
                {.name = "steps", .scalar = true},
                {.name = "momentum_product", .initial = 1, .scalar = true}},
               options) {
  expect_moments("nadam", options_);
  expect_not_negative("nadam", "momentum_decay", options_.momentum_decay);
}

void Nadam::update(Update step) const {
  const at::Tensor gradient = step.decayed_gradient();
  at::Tensor &mean = step.slots[0], &variance = step.slots[1], &count = step.slots[2];
  count.add_(1);
  auto momentum_at = [&](const at::Tensor& steps) {
    return (at::pow(0.96, steps.reshape({}) * options_.momentum_decay) * -0.5 + 1) * options_.beta1;
  };
  const at::Tensor now = momentum_at(count), next = momentum_at(count + 1);
  const at::Tensor product = step.slots[3].mul_(now).reshape({});
  add_to_moments(options_, mean, variance, gradient);
  const at::Tensor divisor = variance.div(one_minus_power(options_.beta2, count)).sqrt_().add_(options_.epsilon);
  const at::Tensor of_gradient = (1 - now) / (1 - product), of_mean = next / (1 - product * next);
  descend_(step.value, (gradient * of_gradient + mean * of_mean).div_(divisor), step.rate);
}

// ---- FTRL
Ftrl::Ftrl(const FtrlOptions& options)
    : RuleWith("ftrl", {{.name = "sums", .initial = options.initial_accumulator}, {.name = "linear"}}, options) {
  const double power = options_.learning_rate_power;
  expect_option(power <= 0, "ftrl", "learning_rate_power", power, "0 or less");
  for (const auto& [option, value] :
       {std::pair("initial_accumulator", options_.initial_accumulator), std::pair("l1", options_.l1),
        std::pair("l2", options_.l2), std::pair("l2_shrinkage", options_.l2_shrinkage),
        std::pair("beta", options_.beta)}) {
    expect_not_negative("ftrl", option, value);
  }
  for (const ParameterGroup& group : options_.all.groups) {
    if (group.weight_decay.value_or(0) == 0) continue;
    throw invalid_argument("ftrl: group \"", group.names, "\" has the weight_decay ", *group.weight_decay,
                           ", which this rule has not, expected none; its l2 and l2_shrinkage are of all variables");
  }
}

void Ftrl::update(Update step) const {
  const at::Tensor& gradient = step.gradient;
  at::Tensor &sums = step.slots[0], &linear = step.slots[1];
  const at::Tensor shrunk = gradient + step.value * (2 * options_.l2_shrinkage);
  const at::Tensor more = sums + gradient * gradient;
  const at::Tensor before = at::pow(sums, -options_.learning_rate_power);
  const at::Tensor after = at::pow(more, -options_.learning_rate_power);
  const at::Tensor target = linear + (shrunk - (after - before) / step.rate * step.value);
  // l2 + beta / (2 rate), twice.
  const at::Tensor quadratic = after / step.rate + (options_.beta / step.rate + 2 * options_.l2);
  // At a rate of 0, and of a number that has seen no gradient yet, there is no such minimum: all stays as it is. A
  // gradient that is no number is not hidden by that.
  const at::Tensor stays = step.rate.le(0).logical_or(quadratic.le(0));
  const at::Tensor minimum = (target.clamp(-options_.l1, options_.l1) - target) / quadratic;
  step.value.copy_(at::where(stays, step.value, minimum));
  linear.copy_(at::where(stays, linear, target));
  sums.copy_(at::where(stays, sums, more));
}

// ---- LAMB
Lamb::Lamb(const LambOptions& options)
    : RuleWith("lamb", {{.name = "mean"}, {.name = "variance"}, {.name = "steps", .scalar = true}}, options) {
  expect_moments("lamb", options_);
}

void Lamb::update(Update step) const {
  at::Tensor &mean = step.slots[0], &variance = step.slots[1], &count = step.slots[2];
  count.add_(1);
  add_to_moments(options_, mean, variance, step.gradient);
  const at::Tensor divisor = variance.div(one_minus_power(options_.beta2, count)).sqrt_().add_(options_.epsilon);
  at::Tensor direction = mean.div(one_minus_power(options_.beta1, count)).div_(divisor);
  if (step.weight_decay != 0) direction = direction.add(step.value, step.weight_decay);
  const at::Tensor weight = sum_of_squares(step.value).sqrt(), length = sum_of_squares(direction).sqrt();
  const at::Tensor trust = at::where(weight.gt(0).logical_and(length.gt(0)), weight / length, at::ones_like(weight));
  descend_(step.value, direction, step.rate.mul(trust));
}

// ---- Lion
Lion::Lion(const LionOptions& options) : RuleWith("lion", {{.name = "mean"}}, options) {
  expect_share("lion", "beta1", options_.beta1);
  expect_share("lion", "beta2", options_.beta2);
}

void Lion::update(Update step) const {
  at::Tensor& mean = step.slots[0];
  step.decay_value();
  const at::Tensor blend = mean.lerp(step.gradient, 1 - options_.beta1);
  // The sign of what is no number is 0, and nobody would see that it has stopped to learn.
  descend_(step.value, at::where(blend.ne(blend), blend, blend.sign()), step.rate);
  mean.lerp_(step.gradient, 1 - options_.beta2);
}

}  // namespace muster

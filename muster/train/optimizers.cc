#include "muster/train/optimizers.h"

#include <ATen/ops/maximum.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/where.h>

#include <limits>

#include "muster/base/status.h"
#include "muster/runtime/executor/step_ops.h"
#include "muster/runtime/rows/row_ops.h"
#include "muster/train/expect_option.h"
#include "muster/train/rule_options.h"

namespace muster {

using step_ops::adam_;
using step_ops::descend_;
using step_ops::momentum_;
using step_ops::one_minus_power;

// ---- SGD
namespace {

// The momentum before the first gradient, which is not dampened.
constexpr double kNoMomentumYet = std::numeric_limits<double>::infinity();

}  // namespace

Sgd::Sgd(const SgdOptions& options) : RuleWith("sgd", {}, options) {
  if (options_.momentum != 0) {
    // By another name: whoever goes on without dampening cannot begin with that mark.
    const bool dampened = options_.dampening != 0;
    add_slot({.name = dampened ? "dampened_momentum" : "momentum", .initial = dampened ? kNoMomentumYet : 0});
  }
  expect_not_negative("sgd", "momentum", options_.momentum);
  expect_option(options_.dampening >= 0 && options_.dampening <= 1, "sgd", "dampening", options_.dampening, "0 to 1");
  if (options_.nesterov && options_.dampening != 0) {
    throw invalid_argument("sgd: nesterov with a dampening of ", options_.dampening, ", expected none");
  }
  if (options_.nesterov && options_.momentum <= 0) {
    throw invalid_argument("sgd: nesterov needs a momentum, got ", options_.momentum);
  }
}

void Sgd::update(Update step) const {
  if (step.slots.empty()) return descend_(step.value, step.decayed_gradient(), step.rate);
  at::Tensor& momentum = step.slots[0];
  if (options_.dampening == 0) {
    return momentum_(step.value, step.gradient, momentum, step.rate,
                     {.factor = options_.momentum, .decay = step.weight_decay, .nesterov = options_.nesterov});
  }
  const at::Tensor gradient = step.decayed_gradient();
  const at::Tensor later = momentum.mul(options_.momentum).add_(gradient, 1 - options_.dampening);
  momentum.copy_(at::where(momentum.eq(kNoMomentumYet), gradient, later));
  descend_(step.value, momentum, step.rate);
}

void Sgd::update_rows(Update table, const at::Tensor& ids) const {
  if (!table.slots.empty() || table.weight_decay != 0) return Optimizer::update_rows(table, ids);
  rows::add_(table.value, ids, table.gradient.mul(table.rate), -1);
}

// ---- Adagrad
Adagrad::Adagrad(const AdagradOptions& options)
    : RuleWith("adagrad", {{.name = "sums", .initial = options.initial_accumulator}}, options) {
  expect_not_negative("adagrad", "initial_accumulator", options_.initial_accumulator);
  expect_not_negative("adagrad", "epsilon", options_.epsilon);
}

void Adagrad::update(Update step) const {
  const at::Tensor gradient = step.decayed_gradient();
  step.slots[0].addcmul_(gradient, gradient);
  descend_(step.value, gradient.div(step.slots[0].sqrt().add_(options_.epsilon)), step.rate);
}

void Adagrad::update_rows(Update table, const at::Tensor& ids) const {
  if (table.weight_decay != 0) return Optimizer::update_rows(table, ids);
  rows::adagrad_(table.value, table.slots[0], ids, table.gradient, table.rate, options_.epsilon);
}

// ---- Adam
Adam::Adam(const std::string& name, const AdamOptions& options, bool decoupled)
    : RuleWith(name, {{.name = "mean"}, {.name = "variance"}, {.name = "steps", .scalar = true}}, options),
      decoupled_(decoupled) {
  expect_moments(name, options_);
  if (options_.amsgrad) add_slot({.name = "largest_variance"});
}

void Adam::update(Update step) const {
  at::Tensor &mean = step.slots[0], &variance = step.slots[1], &count = step.slots[2];
  if (!options_.amsgrad) {
    return adam_(step.value, step.gradient, mean, variance, count, step.rate,
                 {.beta1 = options_.beta1,
                  .beta2 = options_.beta2,
                  .epsilon = options_.epsilon,
                  .decay = step.weight_decay,
                  .decoupled = decoupled_});
  }
  if (decoupled_) step.decay_value();
  const at::Tensor gradient = decoupled_ ? step.gradient : step.decayed_gradient();
  count.add_(1);
  add_to_moments(options_, mean, variance, gradient);
  at::Tensor& largest = step.slots[3];
  largest.copy_(at::maximum(largest, variance));
  // The count of steps is a tensor, so what depends on it is, too.
  const at::Tensor correction1 = one_minus_power(options_.beta1, count);
  const at::Tensor correction2 = one_minus_power(options_.beta2, count).sqrt_();
  descend_(step.value, mean.div(largest.sqrt().div_(correction2).add_(options_.epsilon)), step.rate.div(correction1));
}

void Adam::update_rows(Update table, const at::Tensor& ids) const {
  if (options_.amsgrad || (!decoupled_ && table.weight_decay != 0)) return Optimizer::update_rows(table, ids);
  table.slots[2].add_(1);
  rows::adam_(table.value, table.slots[0], table.slots[1], table.slots[2], ids, table.gradient, table.rate,
              options_.beta1, options_.beta2, options_.epsilon, table.weight_decay);
}

AdamW::AdamW(const AdamWOptions& options)
    : Adam("adamw",
           {.learning_rate = options.learning_rate,
            .beta1 = options.beta1,
            .beta2 = options.beta2,
            .epsilon = options.epsilon,
            .weight_decay = options.weight_decay,
            .amsgrad = options.amsgrad,
            .all = options.all},
           /*decoupled=*/true) {}

// ---- RMSprop
RmsProp::RmsProp(const RmsPropOptions& options) : RuleWith("rmsprop", {{.name = "squares"}}, options) {
  expect_share("rmsprop", "alpha", options_.alpha);
  expect_not_negative("rmsprop", "epsilon", options_.epsilon);
  expect_not_negative("rmsprop", "momentum", options_.momentum);
  if (options_.centered) add_slot({.name = "mean"});
  if (options_.momentum > 0) add_slot({.name = "momentum"});
}

void RmsProp::update(Update step) const {
  const at::Tensor gradient = step.decayed_gradient();
  at::Tensor& squares = step.slots[0];
  squares.mul_(options_.alpha).addcmul_(gradient, gradient, 1 - options_.alpha);
  at::Tensor divisor = squares.sqrt();
  if (options_.centered) {
    at::Tensor& mean = step.slots[1];
    mean.lerp_(gradient, 1 - options_.alpha);
    divisor = squares.addcmul(mean, mean, -1).sqrt_();
  }
  at::Tensor direction = gradient.div(divisor.add_(options_.epsilon));
  if (options_.momentum > 0) direction = step.slots.back().mul_(options_.momentum).add_(direction);
  descend_(step.value, direction, step.rate);
}

}  // namespace muster

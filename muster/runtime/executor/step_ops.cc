#include "muster/runtime/executor/step_ops.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/pow.h>
#include <torch/library.h>

#include <vector>

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"

namespace muster::step_ops {
namespace {

void check_rate(const at::Tensor& rate) {
  if (rate.defined() && rate.numel() == 1) return;
  throw invalid_argument("muster_step: the rate is ", rate.defined() ? spec_of(rate).to_string() : "no tensor",
                         ", expected one number");
}

// A number that is on another kind of device stays there: to look at it would stop that device.
at::Tensor& descend(at::Tensor& value, const at::Tensor& direction, const at::Tensor& rate) {
  check_rate(rate);
  return rate.is_cpu() ? value.sub_(direction, rate.item()) : value.sub_(direction.mul(rate.reshape({})));
}

void descend_all(at::TensorList values, at::TensorList directions, const at::Tensor& rate) {
  check_rate(rate);
  if (rate.is_cpu()) return at::_foreach_sub_(values, directions, rate.item());
  std::vector<at::Tensor> scaled;
  for (const at::Tensor& direction : directions) scaled.push_back(direction.mul(rate.reshape({})));
  at::_foreach_sub_(values, scaled);
}

at::Tensor& momentum(at::Tensor& value, const at::Tensor& given, at::Tensor& momentum, const at::Tensor& rate,
                     double factor, double decay, bool nesterov) {
  check_rate(rate);
  const at::Tensor gradient = decay == 0 ? given : given.add(value, decay);
  momentum.mul_(factor).add_(gradient);
  return descend(value, nesterov ? gradient.add(momentum, factor) : momentum, rate);
}

void momentum_some(at::TensorList values, at::TensorList given, at::TensorList momenta, const at::Tensor& rate,
                   double factor, double decay, bool nesterov) {
  const std::vector<at::Tensor> gradients = decay == 0 ? given.vec() : at::_foreach_add(given, values, decay);
  at::_foreach_mul_(momenta, factor);
  at::_foreach_add_(momenta, gradients);
  if (!nesterov) return descend_all(values, momenta, rate);
  descend_all(values, at::_foreach_add(gradients, momenta, factor), rate);
}

// Some at a time, since what is between needs memory.
void momentum_all(at::TensorList values, at::TensorList given, at::TensorList momenta, const at::Tensor& rate,
                  double factor, double decay, bool nesterov) {
  constexpr size_t kMost = 64 << 20;  // bytes
  check_rate(rate);
  if (given.size() != values.size() || momenta.size() != values.size()) {
    throw invalid_argument("muster_step: ", values.size(), " values, ", given.size(), " gradients and ", momenta.size(),
                           " momenta, expected as many of each");
  }
  for (size_t from = 0, to = 0; from < values.size(); from = to) {
    for (size_t bytes = 0; to < values.size() && bytes < kMost; ++to) bytes += values[to].nbytes();
    const size_t count = to - from;
    momentum_some(values.slice(from, count), given.slice(from, count), momenta.slice(from, count), rate, factor, decay,
                  nesterov);
  }
}

at::Tensor& adam(at::Tensor& value, const at::Tensor& given, at::Tensor& mean, at::Tensor& variance, at::Tensor& steps,
                 const at::Tensor& given_rate, double beta1, double beta2, double epsilon, double decay,
                 bool decoupled) {
  check_rate(given_rate);
  const at::Tensor rate = given_rate.reshape({});
  if (decoupled && decay != 0) value.mul_(rate.mul(-decay).add_(1));
  const at::Tensor gradient = decoupled || decay == 0 ? given : given.add(value, decay);
  steps.add_(1);
  mean.lerp_(gradient, 1 - beta1);
  variance.mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
  // The count of steps is a tensor, so what depends on it is, too.
  const at::Tensor correction1 = one_minus_power(beta1, steps), correction2 = one_minus_power(beta2, steps).sqrt_();
  return descend(value, mean.div(variance.sqrt().div_(correction2).add_(epsilon)), rate.div(correction1));
}

void wait_for(at::TensorList, const at::Tensor&) {}

}  // namespace

at::Tensor one_minus_power(double base, const at::Tensor& steps) {
  return at::pow(base, steps.reshape({})).neg_().add_(1);
}

void descend_(at::Tensor& value, const at::Tensor& direction, const at::Tensor& rate) {
  c10::Dispatcher::singleton()
      .findSchemaOrThrow("muster_step::descend_", "")
      .typed<at::Tensor&(at::Tensor&, const at::Tensor&, const at::Tensor&)>()
      .call(value, direction, rate);
}

void momentum_(at::Tensor& value, const at::Tensor& gradient, at::Tensor& momentum, const at::Tensor& rate,
               const MomentumRule& rule) {
  c10::Dispatcher::singleton()
      .findSchemaOrThrow("muster_step::momentum_", "")
      .typed<at::Tensor&(at::Tensor&, const at::Tensor&, at::Tensor&, const at::Tensor&, double, double, bool)>()
      .call(value, gradient, momentum, rate, rule.factor, rule.decay, rule.nesterov);
}

void adam_(at::Tensor& value, const at::Tensor& gradient, at::Tensor& mean, at::Tensor& variance, at::Tensor& steps,
           const at::Tensor& rate, const AdamRule& rule) {
  c10::Dispatcher::singleton()
      .findSchemaOrThrow("muster_step::adam_", "")
      .typed<at::Tensor&(at::Tensor&, const at::Tensor&, at::Tensor&, at::Tensor&, at::Tensor&, const at::Tensor&,
                         double, double, double, double, bool)>()
      .call(value, gradient, mean, variance, steps, rate, rule.beta1, rule.beta2, rule.epsilon, rule.decay,
            rule.decoupled);
}

void wait_for_(at::TensorList memory, const at::Tensor& value) {
  c10::Dispatcher::singleton()
      .findSchemaOrThrow("muster_step::wait_for_", "")
      .typed<void(at::TensorList, const at::Tensor&)>()
      .call(memory, value);
}

TORCH_LIBRARY(muster_step, library) {
  library.def("descend_(Tensor(a!) value, Tensor direction, Tensor rate) -> Tensor(a!)");
  library.def("descend_all_(Tensor(a!)[] values, Tensor[] directions, Tensor rate) -> ()");
  library.def(
      "momentum_(Tensor(a!) value, Tensor gradient, Tensor(b!) momentum, Tensor rate, float factor, float decay, bool "
      "nesterov) -> Tensor(a!)");
  library.def(
      "momentum_all_(Tensor(a!)[] values, Tensor[] gradients, Tensor(b!)[] momenta, Tensor rate, float factor, float "
      "decay, bool nesterov) -> ()");
  library.def(
      "adam_(Tensor(a!) value, Tensor gradient, Tensor(b!) mean, Tensor(c!) variance, Tensor(d!) steps, Tensor rate, "
      "float beta1, float beta2, float epsilon, float decay, bool decoupled) -> Tensor(a!)");
  library.def("wait_for_(Tensor(a!)[] memory, Tensor value) -> ()");
}

TORCH_LIBRARY_IMPL(muster_step, CompositeExplicitAutograd, library) {
  library.impl("descend_", descend);
  library.impl("descend_all_", descend_all);
  library.impl("momentum_", momentum);
  library.impl("momentum_all_", momentum_all);
  library.impl("adam_", adam);
  library.impl("wait_for_", wait_for);
}

}  // namespace muster::step_ops

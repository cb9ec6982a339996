// Ops of optimizers' steps, which libtorch has not: registered with its dispatcher as muster_step::…, and called
// through it, so that they are traced and run like its own ops.
#pragma once

#include <ATen/core/Tensor.h>

namespace muster::step_ops {

// value -= rate * direction, as value.sub_(direction, rate) does it for a number. `rate` is one number, which is a
// tensor so that it can change without a new trace.
void descend_(at::Tensor& value, const at::Tensor& direction, const at::Tensor& rate);

struct MomentumRule {
  double factor;  // of the momentum, in each step
  double decay;   // times the value, is added to the gradient
  bool nesterov;
};

// momentum = factor * momentum + gradient, along which the value descends; Nesterov's along gradient + factor *
// momentum.
void momentum_(at::Tensor& value, const at::Tensor& gradient, at::Tensor& momentum, const at::Tensor& rate,
               const MomentumRule& rule);

struct AdamRule {
  double beta1, beta2, epsilon, decay;
  bool decoupled;  // AdamW: the decay is taken off the value, and not added to the gradient
};

// A step of Adam. `mean` and `variance` are those of the gradients so far, `steps` is how many there were: one number.
void adam_(at::Tensor& value, const at::Tensor& gradient, at::Tensor& mean, at::Tensor& variance, at::Tensor& steps,
           const at::Tensor& rate, const AdamRule& rule);

// 1 - base^steps, by which a mean that began with zeros is too small after so many steps (one number). Made of
// libtorch's ops.
at::Tensor one_minus_power(double base, const at::Tensor& steps);

// Changes nothing. In a program, what reads or writes the memory after it is not done before `value` is there; the
// split (graph/placement/split.h) puts that into the same part, and leaves this out.
void wait_for_(at::TensorList memory, const at::Tensor& value);

}  // namespace muster::step_ops

// What the rules of optimizers have in common.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "muster/train/expect_option.h"

namespace muster {

inline void expect_not_negative(const std::string& rule, const char* option, double value) {
  expect_option(value >= 0, rule, option, value, "0 or more");
}

// Of a mean: how much of it stays.
inline void expect_share(const std::string& rule, const char* option, double value) {
  expect_option(value >= 0 && value < 1, rule, option, value, "0 or more and less than 1");
}

// Of rules that keep a mean of the gradients and one of their squares.
template <class Options>
void expect_moments(const std::string& rule, const Options& options) {
  expect_share(rule, "beta1", options.beta1);
  expect_share(rule, "beta2", options.beta2);
  expect_not_negative(rule, "epsilon", options.epsilon);
}

template <class Options>
void add_to_moments(const Options& options, at::Tensor& mean, at::Tensor& variance, const at::Tensor& gradient) {
  mean.lerp_(gradient, 1 - options.beta1);
  variance.mul_(options.beta2).addcmul_(gradient, gradient, 1 - options.beta2);
}

}  // namespace muster

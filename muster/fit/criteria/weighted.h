// How much the values of examples count.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace muster {

// How many a target is of.
int64_t examples_of(const at::Tensor& target);

// The mean over all dimensions after the first `dims`.
at::Tensor mean_beyond(const at::Tensor& values, int64_t dims);

// The same with dimensions of size 1 at its end, so that it has `dims`.
at::Tensor with_dims(at::Tensor values, int64_t dims);

// Weights are of examples, [N], or of their positions, [N, T], [N, H, W]: what is given in the first dimensions of
// `values`. Others, which would be broadcast, are Error{kInvalidArgument} in the name of `who`.
void check_weights(const std::string& who, const at::Tensor& weights, const at::Tensor& values);

// A weight for each of the values. Likewise.
at::Tensor weights_for(const std::string& who, const at::Tensor& weights, const at::Tensor& values);

}  // namespace muster

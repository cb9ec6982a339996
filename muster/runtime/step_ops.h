// Steps of optimizers whose length is a tensor, so that it can change without a new trace: registered with libtorch's
// dispatcher as muster_step::…, and called through it, so that they are traced and run like its own ops.
#pragma once

#include <ATen/core/Tensor.h>

namespace muster::step_ops {

// value -= rate * direction, as value.sub_(direction, rate) does it for a number. `rate` is one number.
void descend_(at::Tensor& value, const at::Tensor& direction, const at::Tensor& rate);

}  // namespace muster::step_ops

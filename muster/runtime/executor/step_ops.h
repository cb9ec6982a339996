// Ops of optimizers' steps, which libtorch has not: registered with its dispatcher as muster_step::…, and called
// through it, so that they are traced and run like its own ops.
#pragma once

#include <ATen/core/Tensor.h>

namespace muster::step_ops {

// value -= rate * direction, as value.sub_(direction, rate) does it for a number. `rate` is one number, which is a
// tensor so that it can change without a new trace.
void descend_(at::Tensor& value, const at::Tensor& direction, const at::Tensor& rate);

// Changes nothing. In a program, what reads or writes the memory after it is not done before `value` is there; the
// split (graph/placement/split.h) puts that into the same part, and leaves this out.
void wait_for_(at::TensorList memory, const at::Tensor& value);

}  // namespace muster::step_ops

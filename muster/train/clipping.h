// Gradients that must not be too large.
#pragma once

#include "muster/train/optimizer.h"

namespace muster {

// Throws Error{kInvalidArgument} unless each is more than 0.
void check(const Clipping& clipping);
// As PyTorch's clip_grad_value_ and clip_grad_norm_: those of tables by the rows that there are.
void clip(const Clipping& most, Gradients& gradients);

}  // namespace muster

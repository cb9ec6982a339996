// Outputs and targets that belong together.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace muster {

struct OutputAndTarget {
  at::Tensor output, target;
};

// Both in one shape: a dimension of size 1 that only one of them has at its end is left out. Nothing is broadcast:
// other shapes are Error{kInvalidArgument} in the name of `who`, and so is a complex target of an output that is not.
OutputAndTarget in_one_shape(const std::string& who, at::Tensor output, at::Tensor target);

// The number of the class of each row of scores, which are the last dimension of `output`. Likewise; none is complex.
at::Tensor class_of_each_row(const std::string& who, const at::Tensor& output, const at::Tensor& target);

}  // namespace muster

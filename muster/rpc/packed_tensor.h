// Tensors in the form that they have between machines (WireForm).
#pragma once

#include <ATen/core/Tensor.h>

#include "muster/graph/program.h"

namespace muster {

struct PackedTensor {
  at::Tensor tensor{};  // what is sent
  WireForm form{};      // that it has: less than was asked for where that gains nothing
};

// REQUIRES: contiguous, on the CPU.
PackedTensor pack_tensor(const at::Tensor& tensor, const WireForm& form);

// What comes for a tensor that is `spec` to its users; `deflated_bytes` are those of one that is deflated. Throws
// Error{kInvalidArgument} if the tensor cannot have the form, Error{kDataLoss} if so few bytes cannot be all of it.
TensorSpec packed_spec(const TensorSpec& spec, const WireForm& form, int64_t deflated_bytes);
// Throws Error{kDataLoss} if it is not `spec`. REQUIRES: it is as packed_spec() says.
at::Tensor unpack_tensor(const PackedTensor& packed, const TensorSpec& spec);

}  // namespace muster

#pragma once

#include "muster/runtime/memory/tensors.h"

namespace muster {

// Whether a variable of this spec can have this value: ops may resize in place.
inline bool can_be(const at::Tensor& value, const TensorSpec& spec) {
  return value.defined() && value.sizes() == spec.sizes && value.scalar_type() == scalar_type_of(spec.dtype) &&
         value.storage().nbytes() >= static_cast<size_t>(spec.bytes());
}

}  // namespace muster

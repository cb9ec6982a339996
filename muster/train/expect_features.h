#pragma once

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {

// Throws Error{kInvalidArgument} unless the input of a batch norm has so many features, in its second dimension.
inline void expect_features(const char* whose, const at::Tensor& input, int64_t features) {
  if (features > 0 && input.dim() >= 2 && input.size(1) == features) return;
  throw invalid_argument(whose, " of ", features, " features got ", spec_of(input).to_string(), "; expected [rows, ",
                         features, ", …]");
}

}  // namespace muster

#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace muster {

// Why nobody can read the elements of a tensor where they lie: it is undefined, sparse, quantized or of the meta
// device. Of all others "". For errors: "tensor 0 " + why_unreadable(tensor).
std::string why_unreadable(const at::Tensor& tensor);

}  // namespace muster

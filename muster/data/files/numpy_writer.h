// Arrays as numpy.load reads them.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace muster {

// Writes a tensor, wherever it is, to a .npy file, which replaces one that is there. numpy has no bfloat16, which
// becomes float32. Throws Error{kUnimplemented} for element types that numpy has not, and what says that the disk
// fails.
void write_npy(const std::string& path, const at::Tensor& tensor);

}  // namespace muster

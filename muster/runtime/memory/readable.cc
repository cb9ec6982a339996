#include "muster/runtime/memory/readable.h"

namespace muster {

std::string why_unreadable(const at::Tensor& tensor) {
  if (!tensor.defined()) return "is undefined, expected one with elements";
  if (tensor.is_meta()) return "is of the meta device, which keeps no elements, expected one that has some";
  if (tensor.is_quantized()) return "is quantized, expected a plain one; dequantize() gives it";
  if (tensor.is_nested()) return "is nested, expected a plain one; to_padded_tensor() gives it";
  const bool dense = tensor.layout() == at::kStrided;
  return dense ? "" : "is sparse, or of another layout, expected a dense one; to_dense() gives it";
}

}  // namespace muster

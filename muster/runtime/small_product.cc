#include "muster/runtime/small_product.h"

namespace muster {
namespace {

// What libtorch asks of a product before it goes to oneDNN.
constexpr int64_t kLeastSize = 8;         // of each dimension, and one more
constexpr int64_t kLeastProduct = 8'192;  // of all three
// Above these the copy is no longer small beside the product, or oneDNN's kernels make up for their beginning.
constexpr int64_t kMostCopied = 16 << 10;  // elements
constexpr int64_t kMostProduct = 2 << 20;

}  // namespace

bool is_worth_a_copy(const at::Tensor& first, const at::Tensor& second) {
#if defined(__aarch64__)
  if (second.scalar_type() != at::kFloat || first.scalar_type() != at::kFloat) return false;
  if (first.dim() != 2 || second.dim() != 2 || !second.is_cpu()) return false;
  const int64_t rows = first.size(0), inner = second.size(0), columns = second.size(1);
  if (rows <= kLeastSize || inner <= kLeastSize || columns <= kLeastSize) return false;
  const int64_t copied = inner * columns, product = copied * rows;
  const bool transposed = second.stride(0) == 1 && second.stride(1) >= inner && first.stride(1) == 1;
  return transposed && copied < kMostCopied && product >= kLeastProduct && product <= kMostProduct;
#else
  (void)first, (void)second;
  return false;
#endif
}

}  // namespace muster

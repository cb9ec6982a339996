#include <ATen/ops/as_strided.h>
#include <torch/library.h>

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

// Whether a view with these sizes and strides, whose first element is `first` of the storage, lies within its elements.
bool lies_within(int64_t elements, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t first) {
  if (sizes.size() != strides.size() || first < 0 || first > elements) return false;
  int64_t last = first;
  bool empty = false;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0 || strides[i] < 0) return false;
    empty = empty || sizes[i] == 0;
  }
  for (size_t i = 0; i < sizes.size() && !empty; ++i) {
    int64_t reach = 0;
    if (__builtin_mul_overflow(sizes[i] - 1, strides[i], &reach) || __builtin_add_overflow(last, reach, &last)) {
      return false;
    }
  }
  return empty || last < elements;
}

// as_strided whose offset counts from the tensor's own first element. A value of a program may be a part of larger
// memory in one run and not in another.
at::Tensor strided(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride, int64_t offset) {
  if (!self.defined() || !self.has_storage())
    throw invalid_argument("muster_views::strided of a tensor without memory");
  const auto elements = static_cast<int64_t>(self.storage().nbytes() / self.itemsize());
  int64_t first = 0;
  if (__builtin_add_overflow(self.storage_offset(), offset, &first) || !lies_within(elements, size, stride, first)) {
    throw invalid_argument("muster_views::strided of ", spec_of(self).to_string(), ": sizes ", c10::str(size),
                           " with strides ", c10::str(stride), " from element ", offset,
                           " on lie outside of its memory");
  }
  return at::as_strided(self, size, stride, first);
}

}  // namespace

TORCH_LIBRARY(muster_views, library) {
  library.def("strided(Tensor(a) self, int[] size, int[] stride, int offset) -> Tensor(a)");
}

TORCH_LIBRARY_IMPL(muster_views, CompositeExplicitAutograd, library) { library.impl("strided", strided); }

}  // namespace muster

#include "muster/distribute/replicas.h"

#include "muster/runtime/tensors.h"

namespace muster::replicas_internal {

at::Tensor reduce(ReduceOp op, const std::vector<at::Tensor>& values, std::optional<int64_t> axis) {
  at::Tensor sum;
  int64_t count = 0;
  for (const at::Tensor& value : values) {
    if (axis && (*axis < -value.dim() || *axis >= value.dim())) {
      throw invalid_argument("reduce: axis ", *axis, " of ", spec_of(value).to_string());
    }
    const at::Tensor own = axis ? value.sum(*axis) : value;
    count += axis ? value.size(*axis) : 1;
    sum = sum.defined() ? sum.add(own) : own;
  }
  if (op == ReduceOp::kSum) return sum;
  return sum.div(count);
}

}  // namespace muster::replicas_internal

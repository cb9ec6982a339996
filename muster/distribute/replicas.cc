#include "muster/distribute/replicas.h"

#include <ATen/ops/scalar_tensor.h>

#include "muster/runtime/tensors.h"

namespace muster::replicas_internal {

at::Tensor reduce(ReduceOp op, const std::vector<at::Tensor>& values, std::optional<int64_t> axis,
                  const AcrossWorkers& across) {
  at::Tensor sum;
  int64_t count = 0;
  for (const at::Tensor& value : values) {
    if (value.scalar_type() == at::kBool) {
      throw invalid_argument(
          "reduce of bool: a sum counts, so convert it first, to(torch::kLong) or to(torch::kFloat)");
    }
    if (axis && (*axis < -value.dim() || *axis >= value.dim())) {
      throw invalid_argument("reduce: axis ", *axis, " of ", spec_of(value).to_string());
    }
    const at::Tensor own = axis ? value.sum(*axis) : value;
    count += axis ? value.size(*axis) : 1;
    sum = sum.defined() ? sum.add(own) : own;
  }
  sum = across.sum(sum, op == ReduceOp::kSum ? "reduce(sum)" : "reduce(mean)");
  if (op == ReduceOp::kSum) return sum;
  // Others may have more along the axis.
  if (!across.alone() && axis)
    return sum.div(across.sum(at::scalar_tensor(count, at::kLong), "the number of rows of reduce(mean)"));
  return sum.div(count * across.size);
}

}  // namespace muster::replicas_internal

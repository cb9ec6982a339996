#include "muster/distribute/replicas.h"

#include <ATen/ops/scalar_tensor.h>

#include "muster/runtime/tensors.h"
#include "muster/trace/replica_context.h"

namespace muster::replicas_internal {

void check_alike(const std::string& what, const std::vector<at::Tensor>& values, std::optional<int64_t> axis) {
  const auto compared = [&](const at::Tensor& value) {
    std::vector<int64_t> sizes = value.sizes().vec();
    if (axis) sizes.at(static_cast<size_t>(*axis < 0 ? *axis + value.dim() : *axis)) = -1;
    return sizes;
  };
  for (size_t i = 0; i < values.size(); ++i) {
    const at::Tensor &first = values[0], &value = values[i];
    if (!value.defined()) throw invalid_argument(what, ": the value of replica ", i, " here is not defined");
    if (axis && (*axis < -value.dim() || *axis >= value.dim())) {
      throw invalid_argument(what, ": axis ", *axis, " of ", spec_of(value).to_string());
    }
    if (value.scalar_type() == first.scalar_type() && value.dim() == first.dim() && compared(value) == compared(first))
      continue;
    throw invalid_argument(what, " of ", spec_of(first).to_string(), " in the first replica of this process and ",
                           spec_of(value).to_string(), " in the one ", i, " after it; expected the same",
                           axis ? str_cat(" but for axis ", *axis) : "; an axis of each may differ if it is given");
  }
}

at::Tensor reduce(ReduceOp op, const std::vector<at::Tensor>& values, std::optional<int64_t> axis,
                  const AcrossWorkers& across) {
  // A sum of what is not alike would be one by libtorch's rules of broadcasting: of losses with an uneven last batch,
  // too.
  check_alike(op == ReduceOp::kSum ? "reduce(sum)" : "reduce(mean)", values, axis);
  at::Tensor sum;
  int64_t count = 0;
  for (const at::Tensor& value : values) {
    if (value.scalar_type() == at::kBool) {
      throw invalid_argument(
          "reduce of bool: a sum counts, so convert it first, to(torch::kLong) or to(torch::kFloat)");
    }
    const at::Tensor own = axis ? value.sum(*axis) : value;
    count += axis ? value.size(*axis) : 1;
    sum = sum.defined() ? sum.add(own) : own;
  }
  sum = across.sum(sum, op == ReduceOp::kSum ? "reduce(sum)" : "reduce(mean)");
  note_alike({sum});
  if (op == ReduceOp::kSum) return sum;
  if (!across.alone() && axis) {  // others may have more along the axis
    const at::Tensor rows = across.sum(at::scalar_tensor(count, at::kLong), "the number of rows of reduce(mean)");
    note_alike({rows});
    return sum.div(rows);
  }
  return sum.div(count * across.size);
}

}  // namespace muster::replicas_internal

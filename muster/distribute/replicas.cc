#include "muster/distribute/replicas.h"

#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/scalar_tensor.h>

#include "muster/runtime/tensors.h"
#include "muster/trace/replica_context.h"

namespace muster::replicas_internal {
namespace {

// One value of the elements along an axis.
at::Tensor along(ReduceOp op, const at::Tensor& value, int64_t axis) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMean: break;
    case ReduceOp::kMin: return value.amin(axis);
    case ReduceOp::kMax: return value.amax(axis);
  }
  return value.sum(axis);
}

}  // namespace

const char* in_words(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return "sum";
    case ReduceOp::kMean: return "mean";
    case ReduceOp::kMin: return "min";
    case ReduceOp::kMax: return "max";
  }
  return "";
}

Reduction reduction_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMean: break;
    case ReduceOp::kMin: return Reduction::kMin;
    case ReduceOp::kMax: return Reduction::kMax;
  }
  return Reduction::kSum;
}

at::Tensor combined(ReduceOp op, const at::Tensor& some, const at::Tensor& others) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMean: break;
    case ReduceOp::kMin: return at::minimum(some, others);
    case ReduceOp::kMax: return at::maximum(some, others);
  }
  return some.add(others);
}

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
  const std::string what = str_cat("reduce(", in_words(op), ")");
  check_alike(what, values, axis);
  const bool adds_up = op == ReduceOp::kSum || op == ReduceOp::kMean;
  at::Tensor all;
  int64_t count = 0;
  for (const at::Tensor& value : values) {
    if (adds_up && value.scalar_type() == at::kBool) {
      throw invalid_argument(what,
                             " of bool: a sum counts, so convert it first, to(torch::kLong) or to(torch::kFloat); "
                             "kMin is whether all are true, kMax whether any is");
    }
    const at::Tensor own = axis ? along(op, value, *axis) : value;
    count += axis ? value.size(*axis) : 1;
    all = all.defined() ? combined(op, all, own) : own;
  }
  all = across.make_one({.reduction = reduction_of(op), .purpose = what}, {all})[0];
  note_alike({all});
  if (op != ReduceOp::kMean) return all;
  if (!across.alone() && axis) {  // others may have more along the axis
    const at::Tensor rows = across.sum(at::scalar_tensor(count, at::kLong), "the number of rows of reduce(mean)");
    note_alike({rows});
    return all.div(rows);
  }
  return all.div(count * across.size);
}

}  // namespace muster::replicas_internal

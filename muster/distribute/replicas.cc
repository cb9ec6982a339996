#include "muster/distribute/replicas.h"

#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <limits>

#include "muster/runtime/memory/tensors.h"
#include "muster/trace/replica_context.h"
#include "muster/trace/tracer/tracer.h"

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

template <class T>
c10::Scalar end_of(bool least) {
  return static_cast<int64_t>(least ? std::numeric_limits<T>::max() : std::numeric_limits<T>::lowest());
}

// What takes part in a least (or a most) and changes nothing: that of no elements.
c10::Scalar of_nothing(bool least, at::ScalarType type) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (c10::isFloatingType(type)) return least ? kInfinity : -kInfinity;
  switch (type) {
    case at::kBool: return least;
    case at::kByte: return end_of<uint8_t>(least);
    case at::kChar: return end_of<int8_t>(least);
    case at::kShort: return end_of<int16_t>(least);
    case at::kInt: return end_of<int32_t>(least);
    default: return end_of<int64_t>(least);
  }
}

// The least, or the most, of all processes along an axis. `own` is that of this one, undefined if it has no rows, which
// are `like` those that it would have.
at::Tensor end_along(ReduceOp op, const std::string& what, at::Tensor own, const at::Tensor& like, int64_t axis,
                     const AcrossWorkers& across) {
  const auto nobody_has_any = [&] {
    return invalid_argument(what, " along axis ", axis, ": no replica has rows, and of nothing there is neither a ",
                            "least nor a most; the first one has ", spec_of(like).to_string());
  };
  if (across.alone()) {
    if (!own.defined()) throw nobody_has_any();
    return own;
  }
  const bool least = op == ReduceOp::kMin, has_rows = own.defined();
  if (!has_rows) {
    std::vector<int64_t> sizes = like.sizes().vec();
    sizes.erase(sizes.begin() + (axis < 0 ? axis + like.dim() : axis));
    own = like.new_full(sizes, of_nothing(least, like.scalar_type()));
  }
  // Whether anybody has rows is one more of what is reduced, so that all know it alike. Limit: in a traced function
  // nobody can look, and the result of no rows at all is the one that changes nothing.
  const at::Tensor any = at::scalar_tensor(int64_t{has_rows != least}, own.options().dtype(at::kLong));
  const std::vector<at::Tensor> all = across.make_one({.reduction = reduction_of(op), .purpose = what}, {own, any});
  note_alike(all);
  if (Tracer::current() == nullptr && (all[1].item<int64_t>() != 0) == least) throw nobody_has_any();
  return all[0];
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

// bfloat16 has the range of float32: a sum of it fits where the mean does, and goes in half of the bytes.
at::Tensor operand(ReduceOp op, const at::Tensor& value) {
  return op == ReduceOp::kMean && value.scalar_type() == at::kHalf ? value.to(at::kFloat) : value;
}

at::Tensor mean_as(at::ScalarType type, const at::Tensor& mean) { return type == at::kHalf ? mean.to(type) : mean; }

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
    // Before rows are counted: all processes refuse it.
    if (!adds_up && value.is_complex()) throw invalid_argument(what, " of complex numbers, which have no order");
    const int64_t rows = axis ? value.size(*axis) : 1;
    if (!adds_up && rows == 0) continue;  // there is no least of nothing
    const at::Tensor own = axis ? along(op, operand(op, value), *axis) : operand(op, value);
    count += rows;
    all = all.defined() ? combined(op, all, own) : own;
  }
  if (!adds_up && axis) return end_along(op, what, all, values[0], *axis, across);
  all = across.make_one({.reduction = reduction_of(op), .purpose = what}, {all})[0];
  note_alike({all});
  if (op != ReduceOp::kMean) return all;
  const at::ScalarType type = values[0].scalar_type();
  if (!across.alone() && axis) {  // others may have more along the axis
    const at::Tensor rows = across.sum(at::scalar_tensor(count, at::kLong), "the number of rows of reduce(mean)");
    note_alike({rows});
    return mean_as(type, all.div(rows));
  }
  return mean_as(type, all.div(count * across.size));
}

}  // namespace muster::replicas_internal

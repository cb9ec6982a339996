#include "muster/fit/criteria/one_shape.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/where.h>

#include <utility>

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/ops/integer_range.h"

namespace muster {
namespace {

// Half of it would be lost.
void refuse_complex(const std::string& who, const at::Tensor& target) {
  if (!target.is_complex()) return;
  throw invalid_argument(who, ": the target is ", spec_of(target).to_string(), ", expected real numbers");
}

// 0.83 is the number of no class, and would be cut to class 0. Files have 3.0 for class 3. Errors show what is no whole
// number, or too large for one, as it is.
at::Tensor whole_ones(const at::Tensor& classes) {
  if (!at::isFloatingType(classes.scalar_type())) return classes.to(at::kLong);
  const at::Tensor number = classes.to(at::kFloat);
  const at::Tensor is_whole = classes.frac().eq(0).logical_and(number.abs().lt(0x1p53));
  return at::where(is_whole, classes.to(at::kLong), number.contiguous().view(at::kInt).to(at::kLong) + kNoIndex);
}

}  // namespace

OutputAndTarget in_one_shape(const std::string& who, at::Tensor output, at::Tensor target) {
  if (!output.is_complex()) refuse_complex(who, target);
  if (output.dim() == target.dim() + 1 && output.size(-1) == 1) output = output.squeeze(-1);
  if (target.dim() == output.dim() + 1 && target.size(-1) == 1) target = target.squeeze(-1);
  if (output.sizes() == target.sizes()) return {std::move(output), std::move(target)};
  if (target.dim() == 0) {
    throw invalid_argument(who, ": the output is ", spec_of(output).to_string(), " and the target ",
                           spec_of(target).to_string(), ", which is of one example: batch() the dataset");
  }
  throw invalid_argument(who, ": the output is ", spec_of(output).to_string(), " and the target ",
                         spec_of(target).to_string(), ", expected the same shape");
}

at::Tensor class_of_each_row(const std::string& who, const at::Tensor& output, const at::Tensor& target) {
  refuse_complex(who, target);
  at::Tensor classes = target;
  if (classes.dim() > 0 && classes.dim() == output.dim() && classes.size(-1) == 1) classes = classes.squeeze(-1);
  if (output.dim() < 1 || classes.sizes() != output.sizes().slice(0, static_cast<size_t>(output.dim()) - 1)) {
    throw invalid_argument(who, ": the output is ", spec_of(output).to_string(), " and the target ",
                           spec_of(target).to_string(), ", expected the number of a class for each row of scores");
  }
  return whole_ones(classes);
}

}  // namespace muster

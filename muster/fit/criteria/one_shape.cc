#include "muster/fit/criteria/one_shape.h"

#include <utility>

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

// Half of it would be lost.
void refuse_complex(const std::string& who, const at::Tensor& target) {
  if (!target.is_complex()) return;
  throw invalid_argument(who, ": the target is ", spec_of(target).to_string(), ", expected real numbers");
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
  return classes.to(at::kLong);
}

}  // namespace muster

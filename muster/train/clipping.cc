#include "muster/train/clipping.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/sqrt.h>

#include <functional>
#include <utility>

#include "muster/base/status.h"
#include "muster/train/sum_of_squares.h"

namespace muster {
namespace {

// By variable: its gradient, whole or the rows of its parts.
using Group = std::vector<std::reference_wrapper<at::Tensor>>;

std::vector<Group> groups_of(Gradients& gradients) {
  std::vector<Group> groups;
  for (at::Tensor& dense : gradients.dense) {
    if (dense.defined()) groups.push_back({dense});
  }
  for (RowGradient& table : gradients.rows) groups.emplace_back(table.rows.begin(), table.rows.end());
  return groups;
}

at::Tensor squares(const Group& group) {
  at::Tensor sum;
  for (const at::Tensor& part : group) {
    const at::Tensor one = sum_of_squares(part);
    sum = sum.defined() ? sum + one : one;
  }
  return sum;
}

void scale_down(const Group& group, const at::Tensor& squared_norm, double most) {
  const at::Tensor scale = (at::sqrt(squared_norm) + 1e-6).reciprocal().mul_(most).clamp_max_(1);
  for (at::Tensor& part : group) {
    const at::Tensor wide = with_range_for_squares(part);
    part = (wide * scale.to(wide.scalar_type())).to(part.scalar_type());
  }
}

}  // namespace

void check(const Clipping& clipping) {
  for (const auto& [option, most] : {std::pair("value", clipping.value), std::pair("norm", clipping.norm),
                                     std::pair("global_norm", clipping.global_norm)}) {
    if (most && !(*most > 0)) throw invalid_argument("clipping: ", option, " is ", *most, ", expected more than 0");
  }
}

void clip(const Clipping& most, Gradients& gradients) {
  if (!most.value && !most.norm && !most.global_norm) return;
  const std::vector<Group> groups = groups_of(gradients);
  for (const Group& group : groups) {
    if (most.value) {
      for (at::Tensor& part : group) part = part.clamp(-*most.value, *most.value);
    }
    if (most.norm && !group.empty()) scale_down(group, squares(group), *most.norm);
  }
  if (!most.global_norm) return;
  at::Tensor all;
  for (const Group& group : groups) {
    if (group.empty()) continue;
    const at::Tensor one = squares(group).to(at::kDouble);
    all = all.defined() ? all + one : one;
  }
  if (!all.defined()) return;
  for (const Group& group : groups) scale_down(group, all, *most.global_norm);
}

}  // namespace muster

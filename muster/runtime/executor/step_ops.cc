#include "muster/runtime/executor/step_ops.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_foreach_sub.h>
#include <torch/library.h>

#include <vector>

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"

namespace muster::step_ops {
namespace {

void check_rate(const at::Tensor& rate) {
  if (rate.defined() && rate.numel() == 1) return;
  throw invalid_argument("muster_step: the rate is ", rate.defined() ? spec_of(rate).to_string() : "no tensor",
                         ", expected one number");
}

// A number that is on another kind of device stays there: to look at it would stop that device.
at::Tensor& descend(at::Tensor& value, const at::Tensor& direction, const at::Tensor& rate) {
  check_rate(rate);
  return rate.is_cpu() ? value.sub_(direction, rate.item()) : value.sub_(direction.mul(rate.reshape({})));
}

void descend_all(at::TensorList values, at::TensorList directions, const at::Tensor& rate) {
  check_rate(rate);
  if (rate.is_cpu()) return at::_foreach_sub_(values, directions, rate.item());
  std::vector<at::Tensor> scaled;
  for (const at::Tensor& direction : directions) scaled.push_back(direction.mul(rate.reshape({})));
  at::_foreach_sub_(values, scaled);
}

void wait_for(at::TensorList, const at::Tensor&) {}

}  // namespace

void descend_(at::Tensor& value, const at::Tensor& direction, const at::Tensor& rate) {
  c10::Dispatcher::singleton()
      .findSchemaOrThrow("muster_step::descend_", "")
      .typed<at::Tensor&(at::Tensor&, const at::Tensor&, const at::Tensor&)>()
      .call(value, direction, rate);
}

void wait_for_(at::TensorList memory, const at::Tensor& value) {
  c10::Dispatcher::singleton()
      .findSchemaOrThrow("muster_step::wait_for_", "")
      .typed<void(at::TensorList, const at::Tensor&)>()
      .call(memory, value);
}

TORCH_LIBRARY(muster_step, library) {
  library.def("descend_(Tensor(a!) value, Tensor direction, Tensor rate) -> Tensor(a!)");
  library.def("descend_all_(Tensor(a!)[] values, Tensor[] directions, Tensor rate) -> ()");
  library.def("wait_for_(Tensor(a!)[] memory, Tensor value) -> ()");
}

TORCH_LIBRARY_IMPL(muster_step, CompositeExplicitAutograd, library) {
  library.impl("descend_", descend);
  library.impl("descend_all_", descend_all);
  library.impl("wait_for_", wait_for);
}

}  // namespace muster::step_ops

#include "muster/fit/criteria/totals.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

namespace muster {

void Totals::add(const at::Tensor& step) {
  if (!sums_.defined()) sums_ = at::zeros(step.sizes(), at::kDouble);
  sums_.add_(step.to(at::kCPU));
}

void Totals::add(const Totals& others) {
  if (others.sums_.defined()) add(others.sums_);
}

void Totals::add_others(const AcrossWorkers& across, size_t length) {
  if (across.alone()) return;
  if (!sums_.defined()) sums_ = at::zeros({static_cast<int64_t>(length)}, at::kDouble);
  sums_ = across.sum(sums_, "metrics of an epoch");
}

double Totals::examples() const { return sums_.defined() ? sums_.const_data_ptr<double>()[Criteria::kExamples] : 0; }

Logs Totals::logs(const Criteria& criteria) const {
  const double* const first = sums_.const_data_ptr<double>();
  return criteria.logs({first, first + sums_.numel()});
}

}  // namespace muster

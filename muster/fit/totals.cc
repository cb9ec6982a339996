#include "muster/fit/totals.h"

#include <ATen/ops/tensor.h>

#include <algorithm>

namespace muster {

void Totals::add(const at::Tensor& step) {
  const at::Tensor here = step.to(at::kCPU, at::kDouble).contiguous();
  const double* values = here.const_data_ptr<double>();
  for (size_t i = 0; i < sums_.size(); ++i) sums_[i] += values[i];
}

void Totals::add_others(const AcrossWorkers& across) {
  if (across.alone()) return;
  const at::Tensor all = across.sum(at::tensor(sums_, at::kDouble), "metrics of an epoch").contiguous();
  sums_.assign(all.const_data_ptr<double>(), all.const_data_ptr<double>() + sums_.size());
}

Logs Totals::logs(const std::vector<Metric>& metrics) const {
  Logs logs{{"loss", sums_[kLoss] / std::max(sums_[kExamples], 1.0)}};
  size_t next = kMetrics;
  for (const Metric& metric : metrics) {
    const auto begin = sums_.begin() + static_cast<ptrdiff_t>(next);
    logs[metric.name()] = metric.result({begin, begin + metric.length()});
    next += static_cast<size_t>(metric.length());
  }
  return logs;
}

}  // namespace muster

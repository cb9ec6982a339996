#include "muster/fit/totals.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

namespace muster {

Totals::Totals(size_t length) : sums_(at::zeros({static_cast<int64_t>(length)}, at::kDouble)) {}

void Totals::add(const at::Tensor& step) { sums_.add_(step.to(at::kCPU)); }

void Totals::add_others(const AcrossWorkers& across) {
  if (!across.alone()) sums_ = across.sum(sums_, "metrics of an epoch");
}

std::vector<double> Totals::values() const {
  const double* const first = sums_.const_data_ptr<double>();
  return {first, first + sums_.numel()};
}

Logs Totals::logs(const std::vector<Metric>& metrics) const {
  const std::vector<double> sums = values();
  Logs logs{{"loss", sums[kLoss] / std::max(sums[kExamples], 1.0)}};
  size_t next = kMetrics;
  for (const Metric& metric : metrics) {
    const auto begin = sums.begin() + static_cast<ptrdiff_t>(next);
    logs[metric.name()] = metric.result({begin, begin + metric.length()});
    next += static_cast<size_t>(metric.length());
  }
  return logs;
}

}  // namespace muster

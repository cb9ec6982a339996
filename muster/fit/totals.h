// What the steps of an epoch add up to.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "muster/fit/history.h"
#include "muster/fit/metric.h"
#include "muster/trace/across_workers.h"

namespace muster {

class Totals {
 public:
  static constexpr size_t kExamples = 0, kLoss = 1, kMetrics = 2;  // where they begin in what a step returns

  explicit Totals(size_t length);
  void add(const at::Tensor& step);
  void add_others(const AcrossWorkers& across);  // what other processes have

  double examples() const { return sums_.const_data_ptr<double>()[kExamples]; }
  Logs logs(const std::vector<Metric>& metrics) const;

 private:
  std::vector<double> values() const;

  at::Tensor sums_;  // float64
};

}  // namespace muster

// What the steps of an epoch add up to.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "muster/fit/criteria/criteria.h"
#include "muster/fit/history.h"
#include "muster/trace/across_workers.h"

namespace muster {

class Totals {
 public:
  void add(const at::Tensor& step);  // as Criteria::judge gives it
  void add(const Totals& others);
  void add_others(const AcrossWorkers& across, size_t length);  // what other processes have: so many sums

  double examples() const;
  // REQUIRES: a step was added.
  Logs logs(const Criteria& criteria) const;

 private:
  at::Tensor sums_;  // float64; undefined before the first step
};

}  // namespace muster

// Finds out in which order a program should have its weights.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/synchronization/mutex.h>

#include <atomic>
#include <chrono>
#include <vector>

#include "muster/runtime/plan.h"
#include "muster/runtime/variable_store.h"

namespace muster {

// Measures, during one run of a program, every product that a weight takes part in, with the weight in rows and in
// columns. Which is faster depends on the machine and the shapes, and so do the bits: kernels add up in an order of
// their own. Columns are for products that have the same bits either way, so that nobody can tell which they got.
// Thread-safe.
class OrderTrial {
 public:
  // False if there is nothing to find out.
  static bool worthwhile(const Plan& plan);

  // `values` are those of the run that begins. `plan` outlives the trial.
  OrderTrial(const Plan& plan, const std::vector<at::Tensor>& values);

  // What `step`, a product, is about to do with `stack`, if a weight takes part. `values` are those of the program that
  // the step belongs to.
  void measure(const Step& step, const std::vector<c10::IValue>& stack, const std::vector<at::Tensor>& values)
      ABSL_LOCKS_EXCLUDED(mu_);

  // After the run: how those to come should take each variable. In rows, if this one has not come by all its products.
  void decide(std::vector<std::atomic<MatrixOrder>>& orders) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Duration = std::chrono::steady_clock::duration;
  struct Tally {
    int products = 0;
    bool same_bits = true;
    Duration rows{}, columns{};
  };

  MatrixOrder order(size_t variable) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Plan& plan_;
  absl::flat_hash_map<const void*, size_t> weights_;  // memory -> number of the variable

  mutable absl::Mutex mu_;
  std::vector<Tally> tallies_ ABSL_GUARDED_BY(mu_);  // by variable
  absl::flat_hash_set<const Step*> measured_ ABSL_GUARDED_BY(mu_);
};

// Calls aten::mm so that the product is in columns.
void multiply_into_columns(std::vector<c10::IValue>& stack);

}  // namespace muster

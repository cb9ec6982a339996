// Finds out in which order a program should have its weights.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/synchronization/mutex.h>

#include <atomic>
#include <string>
#include <vector>

#include "muster/runtime/executor/plan.h"
#include "muster/runtime/tuning/autotuner.h"
#include "muster/runtime/variables/variable_store.h"

namespace muster {

// Notes, during one run of a program, every product that a weight takes part in, and asks the autotuner whether they
// are faster with the weight in rows or in columns; who only reads it leaves that to those who write. That depends on
// the machine and the shapes, and so do the bits: kernels add up in an order of their own. Columns are for products
// that have the same bits either way, so that nobody can tell which they got. Thread-safe.
class OrderTrial {
 public:
  // False if there is nothing to find out.
  static bool worthwhile(const Plan& plan);

  // `values` are those of the run that begins. `plan` and `tuner` outlive the trial.
  OrderTrial(const Plan& plan, const std::vector<at::Tensor>& values, Autotuner& tuner);

  // A replica on another device multiplies by a copy of the weight.
  void note_copy(const at::Tensor& source, const at::Tensor& target) ABSL_LOCKS_EXCLUDED(mu_);

  // What `step`, a product, is about to do with `stack`, if a weight takes part. `values` are those of the program that
  // the step belongs to. Asks when it has come by the last product of a weight, on the thread that has made it.
  void note(const Step::Op& step, const std::vector<c10::IValue>& stack, const std::vector<at::Tensor>& values)
      ABSL_LOCKS_EXCLUDED(mu_);

  // After the run: how those to come should take each variable. In rows, if this one has not come by all its products.
  void decide(std::vector<std::atomic<MatrixOrder>>& orders) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A tensor without its memory.
  struct Operand {
    size_t position;
    std::vector<int64_t> sizes, strides;
    at::ScalarType dtype;
  };
  struct Product {
    c10::OperatorHandle op;
    std::vector<c10::IValue> others;  // a stack with what is no tensor
    std::vector<Operand> operands;
    size_t second_factor;
    bool is_update;
    std::string text;  // for the question
  };
  struct Weight {
    std::vector<Product> products{};
    bool asked = false, columns = false;  // a program that only reads it takes both orders
  };
  // A product with made-up numbers, ready to be called.
  struct Call {
    c10::OperatorHandle op;
    std::vector<c10::IValue> rows, columns;
    size_t second_factor;
    bool is_update;
  };

  static Product product_of(const Step::Op& step, const std::vector<c10::IValue>& stack);
  static Call call_of(const Product& product);
  bool columns_will_do(size_t variable, std::vector<Product> products) const;
  MatrixOrder order(size_t variable) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Plan& plan_;
  Autotuner& tuner_;

  mutable absl::Mutex mu_;
  absl::flat_hash_map<const void*, size_t> weights_ ABSL_GUARDED_BY(mu_);  // memory -> number of the variable
  std::vector<at::Tensor> copies_ ABSL_GUARDED_BY(mu_);  // of weights; held, so that their memory is of nothing else
  std::vector<Weight> found_ ABSL_GUARDED_BY(mu_);       // by variable
  absl::flat_hash_set<const Step::Op*> noted_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster

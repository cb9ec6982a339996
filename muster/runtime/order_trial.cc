#include "muster/runtime/order_trial.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include "muster/runtime/tensors.h"

namespace muster {
namespace {

// Numbers that no order of additions rounds alike, in the place of an operand that may be all zeros so far.
at::Tensor with_other_numbers(const at::Tensor& operand) {
  if (!operand.is_non_overlapping_and_dense()) return operand;
  at::Tensor made = at::empty_strided(operand.sizes(), operand.strides(), operand.options());
  made.copy_(at::arange(operand.numel(), operand.options()).sin_().view(operand.sizes()));
  return made;
}

}  // namespace

bool OrderTrial::worthwhile(const Plan& plan) {
  return std::any_of(plan.weight_products.begin(), plan.weight_products.end(),
                     [](int products) { return products > 0; });
}

OrderTrial::OrderTrial(const Plan& plan, const std::vector<at::Tensor>& values)
    : plan_(plan), tallies_(plan.weight_products.size()) {
  for (size_t i = 0; i < plan.weight_products.size(); ++i) {
    if (plan.weight_products[i] > 0) weights_[values[plan.program.variables[i].value].const_data_ptr()] = i;
  }
}

void OrderTrial::measure(const Step& step, const std::vector<c10::IValue>& stack,
                         const std::vector<at::Tensor>& values) {
  using Clock = std::chrono::steady_clock;
  constexpr int kTrials = 8;  // the first one only warms up
  constexpr auto kPatience = std::chrono::milliseconds(100);
  const bool is_update = step.target >= 0;
  auto weight =
      weights_.find((is_update ? values[step.target] : stack[step.second_factor].toTensor()).const_data_ptr());
  if (weight == weights_.end()) return;
  {
    absl::MutexLock lock(&mu_);
    if (!measured_.insert(&step).second) return;
  }
  std::vector<c10::IValue> for_rows = stack;
  for (c10::IValue& operand : for_rows) {
    if (operand.isTensor()) operand = with_other_numbers(operand.toTensor());
  }
  std::vector<c10::IValue> for_columns = for_rows;
  if (!is_update) {
    const at::Tensor transposed = for_rows[step.second_factor].toTensor();
    for_rows[step.second_factor] = transposed.t().contiguous().t();
    for_columns[step.second_factor] = transposed.contiguous();
  }
  auto product = [&](bool columns, Duration& best) {
    std::vector<c10::IValue> called = columns ? for_columns : for_rows;
    const auto begin = Clock::now();
    if (is_update && columns) {
      multiply_into_columns(called);
    } else {
      step.op->callBoxed(called);
    }
    best = std::min(best, Clock::now() - begin);
    return called[0].toTensor();
  };
  Duration rows = Duration::max(), columns = Duration::max();
  const bool same_bits = at::equal(product(false, rows), product(true, columns));
  rows = columns = Duration::max();
  // In turn, so that what else happens on the machine happens to both.
  const auto begin = Clock::now();
  for (int trial = 1; same_bits && trial < kTrials && (trial < 3 || Clock::now() - begin < kPatience); ++trial) {
    product(false, rows);
    product(true, columns);
  }
  absl::MutexLock lock(&mu_);
  Tally& tally = tallies_[weight->second];
  ++tally.products;
  tally.same_bits = tally.same_bits && same_bits;
  if (!same_bits) return;
  tally.rows += rows;
  tally.columns += columns;
}

MatrixOrder OrderTrial::order(size_t variable) const {
  const Tally& tally = tallies_[variable];
  if (tally.products == 0 || tally.products != plan_.weight_products[variable] || !tally.same_bits) {
    return MatrixOrder::kRows;
  }
  // Who only reads leaves it to those who write.
  if (!plan_.variable_uses[variable].written) return MatrixOrder::kEither;
  return tally.columns < tally.rows / 100 * 97 ? MatrixOrder::kColumns : MatrixOrder::kRows;
}

void OrderTrial::decide(std::vector<std::atomic<MatrixOrder>>& orders) const {
  absl::MutexLock lock(&mu_);
  for (size_t i = 0; i < orders.size(); ++i) orders[i].store(order(i), std::memory_order_relaxed);
}

void multiply_into_columns(std::vector<c10::IValue>& stack) {
  const at::Tensor a = stack[0].toTensor(), b = stack[1].toTensor();
  at::Tensor product = at::empty_strided({a.size(0), b.size(1)}, {1, a.size(0)}, a.options());
  at::mm_out(product, a, b);
  stack.assign({std::move(product)});
}

}  // namespace muster

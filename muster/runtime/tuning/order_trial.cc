#include "muster/runtime/tuning/order_trial.h"

#include <ATen/ops/arange.h>

#include <algorithm>
#include <iterator>
#include <sstream>

#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/ops/matrix_product.h"

namespace muster {

bool OrderTrial::worthwhile(const Plan& plan) {
  return std::any_of(plan.weight_products.begin(), plan.weight_products.end(),
                     [](int products) { return products > 0; });
}

OrderTrial::OrderTrial(const Plan& plan, const std::vector<at::Tensor>& values, Autotuner& tuner)
    : plan_(plan), tuner_(tuner), found_(plan.weight_products.size()) {
  for (size_t i = 0; i < plan.weight_products.size(); ++i) {
    if (plan.weight_products[i] > 0) weights_[values[plan.program.variables[i].value].const_data_ptr()] = i;
  }
}

OrderTrial::Product OrderTrial::product_of(const Step::Op& step, const std::vector<c10::IValue>& stack) {
  Product product{step.op, stack, {}, static_cast<size_t>(step.second_factor), step.target >= 0, {}};
  std::ostringstream text;
  text << step.op.operator_name().name;
  for (size_t i = 0; i < stack.size(); ++i) {
    if (!stack[i].isTensor()) continue;
    const at::Tensor& tensor = stack[i].toTensor();
    product.operands.push_back({i, tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type()});
    product.others[i] = c10::IValue();
    text << ' ' << tensor.dtype() << tensor.sizes();
    // The weight is measured in both orders.
    if (i != product.second_factor && !tensor.is_contiguous()) text << " by " << tensor.strides();
  }
  if (product.is_update) text << " into it";
  product.text = text.str();
  return product;
}

void OrderTrial::note_copy(const at::Tensor& source, const at::Tensor& target) {
  absl::MutexLock lock(&mu_);
  const auto weight = weights_.find(source.const_data_ptr());
  if (weight == weights_.end()) return;
  const size_t variable = weight->second;
  weights_[target.const_data_ptr()] = variable;
  copies_.push_back(target);
}

void OrderTrial::note(const Step::Op& step, const std::vector<c10::IValue>& stack,
                      const std::vector<at::Tensor>& values) {
  const at::Tensor& matrix = step.target >= 0 ? values[step.target] : stack[step.second_factor].toTensor();
  size_t variable = 0;
  std::vector<Product> all;
  {
    absl::MutexLock lock(&mu_);
    const auto weight = weights_.find(matrix.const_data_ptr());
    if (weight == weights_.end()) return;
    variable = weight->second;
    if (!noted_.insert(&step).second) return;
    std::vector<Product>& products = found_[variable].products;
    products.push_back(product_of(step, stack));
    if (products.size() != static_cast<size_t>(plan_.weight_products[variable])) return;
    all = std::move(products);
  }
  const bool columns = columns_will_do(variable, std::move(all));
  absl::MutexLock lock(&mu_);
  found_[variable].asked = true;
  found_[variable].columns = columns;
}

// Numbers that no order of additions rounds alike, where those of the run may be all zeros so far, in memory that lies
// as that of the run does.
OrderTrial::Call OrderTrial::call_of(const Product& product) {
  Call call{product.op, product.others, {}, product.second_factor, product.is_update};
  for (const Operand& operand : product.operands) {
    int64_t elements = 1;
    for (size_t i = 0; i < operand.sizes.size(); ++i) elements += (operand.sizes[i] - 1) * operand.strides[i];
    const at::Tensor numbers = at::arange(std::max<int64_t>(elements, 0), at::TensorOptions(operand.dtype)).sin_();
    call.rows[operand.position] = numbers.as_strided(operand.sizes, operand.strides);
  }
  call.columns = call.rows;
  if (!call.is_update) {
    const at::Tensor transposed = call.rows[product.second_factor].toTensor();
    call.rows[product.second_factor] = transposed.t().contiguous().t();
    call.columns[product.second_factor] = transposed.contiguous();
  }
  return call;
}

bool OrderTrial::columns_will_do(size_t variable, std::vector<Product> products) const {
  // Lanes may come by them in another order the next time.
  std::sort(products.begin(), products.end(), [](const Product& a, const Product& b) { return a.text < b.text; });
  const bool written = plan_.variable_uses[variable].written;
  std::string what =
      str_cat(written ? "weight " : "weight that is read ", plan_.program.variables[variable].spec.to_string());
  for (const Product& product : products) str_append(what, "; ", product.text);
  std::vector<Call> calls;  // made when they are needed: what is known already is not called
  auto prepare = [&] { std::transform(products.begin(), products.end(), std::back_inserter(calls), &call_of); };
  auto run = [&](bool columns) {
    std::vector<at::Tensor> results;
    for (const Call& call : calls) {
      std::vector<c10::IValue> stack = columns ? call.columns : call.rows;
      if (columns && call.is_update) {
        multiply_into_columns(stack);
      } else if (!multiply_here(static_cast<int>(call.second_factor), stack)) {
        call.op.callBoxed(stack);
      }
      results.push_back(stack[0].toTensor());
    }
    return results;
  };
  TuningQuestion question{.what = std::move(what),
                          .device = at::kCPU,
                          .alternatives = {{"rows", [&] { return run(false); }}},
                          .goal = written ? TuningGoal::kFastestOfSameBits : TuningGoal::kAnyOfSameBits,
                          .prepare = prepare,
                          .percent = 3};
  question.alternatives.push_back({written ? "columns" : "either", [&] { return run(true); }});
  return tuner_.choose(question) == 1;
}

MatrixOrder OrderTrial::order(size_t variable) const {
  if (!found_[variable].asked || !found_[variable].columns) return MatrixOrder::kRows;
  return plan_.variable_uses[variable].written ? MatrixOrder::kColumns : MatrixOrder::kEither;
}

void OrderTrial::decide(std::vector<std::atomic<MatrixOrder>>& orders) const {
  absl::MutexLock lock(&mu_);
  for (size_t i = 0; i < orders.size(); ++i) orders[i].store(order(i), std::memory_order_relaxed);
}

}  // namespace muster

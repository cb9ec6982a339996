#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "muster/base/status.h"
#include "muster/runtime/executor/plan.h"
#include "muster/runtime/variables/variable_shape.h"
#include "muster/runtime/variables/variable_store.h"

namespace muster {

// Takes the variables of a run and gives them back, written or not, however the run ends. What is waited for after that
// may wait for one of them: a run has all that comes from others before it takes the first.
class HeldVariables {
 public:
  HeldVariables(const Plan& plan, const std::vector<std::shared_ptr<VariableCell>>& cells,
                const std::vector<std::atomic<MatrixOrder>>& orders)
      : plan_(plan), cells_(cells), orders_(orders) {}
  ~HeldVariables() {
    for (size_t i : written_) cells_[i]->end_write(complete_ || !plan_.variable_uses[i].overwritten);
    for (size_t i : read_) cells_[i]->end_read();
  }
  HeldVariables(const HeldVariables&) = delete;
  HeldVariables& operator=(const HeldVariables&) = delete;

  void take(const std::vector<size_t>& order, std::vector<at::Tensor>& values, const Cancellation* cancellation) {
    for (size_t i : order) {
      at::Tensor& value = values[plan_.program.variables[i].value];
      const VariableUses& uses = plan_.variable_uses[i];
      const MatrixOrder order = orders_[i].load(std::memory_order_relaxed);
      if (uses.written) {
        value = cells_[i]->begin_write(uses.overwritten, uses.by_rows, order, cancellation);
        written_.push_back(i);
      } else if (plan_.variable_held[i]) {
        value = cells_[i]->begin_read(uses.by_rows, order, cancellation);
        read_.push_back(i);
      } else {
        value = cells_[i]->read(uses.by_rows, order, cancellation);
      }
      if (uses.read_whole) cells_[i]->count_whole_read();
    }
  }
  // Throws if the run has left something in place of a variable that cannot be one.
  void complete(const std::vector<at::Tensor>& values) {
    for (size_t i : written_) {
      const VariableRef& variable = plan_.program.variables[i];
      const at::Tensor& value = values[variable.value];
      if (can_be(value, variable.spec)) continue;
      throw invalid_argument("program \"", plan_.program.name, "\" resizes variable \"", variable.name, "\", which is ",
                             variable.spec.to_string());
    }
    complete_ = true;
  }

 private:
  const Plan& plan_;
  const std::vector<std::shared_ptr<VariableCell>>& cells_;
  const std::vector<std::atomic<MatrixOrder>>& orders_;
  std::vector<size_t> written_, read_;
  bool complete_ = false;
};

}  // namespace muster

// Rules that change variables by their gradients, as traced code that runs where the variables live.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "muster/trace/rows.h"
#include "muster/trace/variable.h"

namespace muster {

// Keeps what a rule remembers of each variable (its slots) beside the variable, in the same parts. Made outside of
// traced functions, used inside. A variable that the function has looked up by rows changes in those rows alone.
// A handle, cheap to copy; thread-safe.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // One step down the gradient of `loss`. Variables that the loss does not depend on get a gradient of zeros. In one of
  // several replicas (ParameterServerStrategy::run) the gradients of all are summed, and the step is taken once, when
  // all have ended; the optimizer lives until then.
  void minimize(const at::Tensor& loss) const { apply(gradients_by_rows(loss, variables_)); }
  void apply(const Gradients& gradients) const;

  const std::vector<Variable>& variables() const { return variables_; }
  // All slots, each with the name of its variable in its own: what a checkpoint has to keep besides the variables.
  std::vector<Variable> slots() const;

 protected:
  // `slots`: the name and the initial value of each slot of a rule. Throws Error{kInvalidArgument} for no variables and
  // for those that are not trainable.
  struct SlotRule {
    std::string name;
    double initial = 0;
    bool scalar = false;  // one number for a variable (or a part of one), such as a count of steps
  };
  Optimizer(std::string name, std::vector<Variable> variables, const std::vector<SlotRule>& slots);
  Optimizer(const Optimizer&) = default;
  Optimizer& operator=(const Optimizer&) = default;

 private:
  // Tensors of one variable or part, where it lives: the value and its slots, to be written in place.
  virtual void update(at::Tensor value, std::vector<at::Tensor> slots, const at::Tensor& gradient) const = 0;
  virtual void update_rows(at::Tensor value, std::vector<at::Tensor> slots, const at::Tensor& ids,
                           const at::Tensor& gradient) const = 0;

  std::vector<Variable> variables_;
  std::vector<std::vector<Variable>> slots_;  // by variable
};

struct SgdOptions {
  double learning_rate = 0.01;
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;
};

// By rows: without momentum and weight decay, which concern all rows.
class Sgd : public Optimizer {
 public:
  explicit Sgd(std::vector<Variable> variables, SgdOptions options = {});

 private:
  void update(at::Tensor value, std::vector<at::Tensor> slots, const at::Tensor& gradient) const override;
  void update_rows(at::Tensor value, std::vector<at::Tensor> slots, const at::Tensor& ids,
                   const at::Tensor& gradient) const override;
  SgdOptions options_;
};

struct AdagradOptions {
  double learning_rate = 0.01;
  double initial_accumulator = 0;
  double epsilon = 1e-10;
};

class Adagrad : public Optimizer {
 public:
  explicit Adagrad(std::vector<Variable> variables, AdagradOptions options = {});

 private:
  void update(at::Tensor value, std::vector<at::Tensor> slots, const at::Tensor& gradient) const override;
  void update_rows(at::Tensor value, std::vector<at::Tensor> slots, const at::Tensor& ids,
                   const at::Tensor& gradient) const override;
  AdagradOptions options_;
};

struct AdamOptions {
  double learning_rate = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;  // added to the gradient; of AdamW: taken off the value, and 0.01 unless given
};

// By rows: only rows with a gradient move, and only their means do, as PyTorch's SparseAdam has it.
class Adam : public Optimizer {
 public:
  explicit Adam(std::vector<Variable> variables, AdamOptions options = {})
      : Adam("adam", std::move(variables), options, false) {}

 protected:
  Adam(const std::string& name, std::vector<Variable> variables, AdamOptions options, bool decoupled);

 private:
  void update(at::Tensor value, std::vector<at::Tensor> slots, const at::Tensor& gradient) const override;
  void update_rows(at::Tensor value, std::vector<at::Tensor> slots, const at::Tensor& ids,
                   const at::Tensor& gradient) const override;
  AdamOptions options_;
  bool decoupled_;  // weight decay does not pass through the means
};

class AdamW : public Adam {
 public:
  explicit AdamW(std::vector<Variable> variables, AdamOptions options = {.weight_decay = 0.01})
      : Adam("adamw", std::move(variables), options, true) {}
};

}  // namespace muster

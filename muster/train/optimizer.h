// Rules that change variables by their gradients, as traced code that runs where the variables live.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "muster/trace/module_variables.h"
#include "muster/trace/rows.h"
#include "muster/trace/variable.h"

namespace muster {

// What an optimizer trains: a list of variables, those of a module that was adopted or made by a strategy (or of its
// parameters()), or all that are trainable of a ModuleVariables.
class Trained {
 public:
  Trained(std::initializer_list<Variable> variables) : variables_(variables) {}
  Trained(std::vector<Variable> variables) : variables_(std::move(variables)) {}                // NOLINT
  Trained(const ModuleVariables& variables) : variables_(variables.trainable()) {}              // NOLINT
  Trained(const std::vector<at::Tensor>& parameters) : variables_(variables_of(parameters)) {}  // NOLINT
  template <TorchModule Module>
  Trained(const Module& module) : variables_(adopted(module).trainable()) {}  // NOLINT

  std::vector<Variable> take() && { return std::move(variables_); }

 private:
  std::vector<Variable> variables_;
};

// Keeps what a rule remembers of each variable (its slots) beside the variable, in the same parts. Made outside of
// traced functions, used inside. The rules are PyTorch's. A table that the loss depends on by rows alone changes in
// those rows alone, by the same rule: the momentum of a row goes on, and its weight decays, when it is looked up again.
// A handle, cheap to copy; thread-safe.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // One step down the gradient of `loss`. Variables that the loss does not depend on stay as they are, and so do their
  // slots; Error{kInvalidArgument} if it depends on none. In one of several replicas (Strategy::run) the step goes down
  // the mean of what all of them have, as if `loss` were that of one batch, and is taken once, when all have ended; the
  // optimizer lives until then.
  void minimize(const at::Tensor& loss) const;
  // The same with gradients of variables(), in their order; those of replicas are averaged, too.
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
  Optimizer(std::string name, Trained variables, const std::vector<SlotRule>& slots);
  Optimizer(const Optimizer&) = default;
  Optimizer& operator=(const Optimizer&) = default;

 private:
  // What the replicas have is added up and divided by that.
  void apply(const Gradients& gradients, int divisor) const;
  // One for all places where the variables are, or one for each.
  std::vector<Gradients> sums_for_places(const std::vector<std::vector<at::Tensor>>& by_replica,
                                         const AcrossWorkers& across, int divisor) const;
  void apply_here(const std::vector<Gradients>& for_places) const;

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

class Sgd : public Optimizer {
 public:
  explicit Sgd(Trained variables, SgdOptions options = {});

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
  explicit Adagrad(Trained variables, AdagradOptions options = {});

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
  double weight_decay = 0;  // added to the gradient
};

// By rows as PyTorch's SparseAdam: the steps that all rows of a table have seen count for each. But for epsilon, which
// is added where Adam adds it: SparseAdam does so before the correction of the variance.
class Adam : public Optimizer {
 public:
  explicit Adam(Trained variables, AdamOptions options = {}) : Adam("adam", std::move(variables), options, false) {}

 protected:
  Adam(const std::string& name, Trained variables, AdamOptions options, bool decoupled);

 private:
  void update(at::Tensor value, std::vector<at::Tensor> slots, const at::Tensor& gradient) const override;
  void update_rows(at::Tensor value, std::vector<at::Tensor> slots, const at::Tensor& ids,
                   const at::Tensor& gradient) const override;
  AdamOptions options_;
  bool decoupled_;  // weight decay does not pass through the means
};

struct AdamWOptions {
  double learning_rate = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;  // taken off the value
};

class AdamW : public Adam {
 public:
  explicit AdamW(Trained variables, AdamWOptions options = {})
      : Adam("adamw", std::move(variables),
             {options.learning_rate, options.beta1, options.beta2, options.epsilon, options.weight_decay}, true) {}
};

}  // namespace muster

// Rules that change variables by their gradients, as traced code that runs where the variables live.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
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

  // Gives it the variables that it trains, and makes its slots, in the scope of a strategy if there is one. Throws
  // Error{kInvalidArgument} for no variables, for those that are not trainable, and if it has some already.
  void bind(Trained variables);
  // Not before this: made without variables, it is a rule, such as Sgd({.learning_rate = 0.1}), until it is bound.
  bool bound() const { return !variables_.empty(); }

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
  // The name and the initial value of each slot of a rule.
  struct SlotRule {
    std::string name;
    double initial = 0;
    bool scalar = false;  // one number for a variable (or a part of one), such as a count of steps
  };
  Optimizer(std::string name, std::vector<SlotRule> slots) : name_(std::move(name)), rules_(std::move(slots)) {}
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

  std::string name_;
  std::vector<SlotRule> rules_;
  std::vector<Variable> variables_;
  std::vector<std::vector<Variable>> slots_;  // by variable
};

// An optimizer that waits for its variables, whichever it is: what compile() takes.
class OptimizerRule {
 public:
  template <std::derived_from<Optimizer> Rule>
  OptimizerRule(Rule rule)  // NOLINT: an optimizer is a rule
      : bind_([rule = std::move(rule)](Trained variables) -> std::shared_ptr<const Optimizer> {
          auto bound = std::make_shared<Rule>(rule);
          if (!bound->bound()) bound->bind(std::move(variables));
          return bound;
        }) {}

  std::shared_ptr<const Optimizer> bound_to(Trained variables) const { return bind_(std::move(variables)); }

 private:
  std::function<std::shared_ptr<const Optimizer>(Trained)> bind_;
};

struct SgdOptions {
  double learning_rate = 0.01;
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;
};

class Sgd : public Optimizer {
 public:
  explicit Sgd(SgdOptions options);
  explicit Sgd(Trained variables, SgdOptions options = {}) : Sgd(options) { bind(std::move(variables)); }

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
  explicit Adagrad(AdagradOptions options);
  explicit Adagrad(Trained variables, AdagradOptions options = {}) : Adagrad(options) { bind(std::move(variables)); }

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
  explicit Adam(AdamOptions options) : Adam("adam", options, false) {}
  explicit Adam(Trained variables, AdamOptions options = {}) : Adam(options) { bind(std::move(variables)); }

 protected:
  Adam(const std::string& name, AdamOptions options, bool decoupled);

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
  explicit AdamW(AdamWOptions options)
      : Adam("adamw", {options.learning_rate, options.beta1, options.beta2, options.epsilon, options.weight_decay},
             true) {}
  explicit AdamW(Trained variables, AdamWOptions options = {}) : AdamW(options) { bind(std::move(variables)); }
};

}  // namespace muster

// Rules that change variables by their gradients, as traced code that runs where the variables live.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/trace/across_workers.h"
#include "muster/trace/module_variables.h"
#include "muster/trace/rows.h"
#include "muster/trace/variable.h"
#include "muster/train/schedule.h"

namespace muster {

// What an optimizer trains: a list of variables, those of a module that was adopted or made by a strategy (or of its
// parameters()), or all that are trainable of a ModuleVariables.
class Trained {
 public:
  // Templates, so that GCC does not take options in braces for one of these.
  template <std::same_as<Variable> T>
  Trained(std::initializer_list<T> variables) : variables_(variables) {}
  template <std::same_as<std::vector<Variable>> T>
  Trained(T variables) : variables_(std::move(variables)) {}  // NOLINT
  template <std::same_as<ModuleVariables> T>
  Trained(const T& variables) : variables_(variables.trainable()) {}  // NOLINT
  template <std::same_as<std::vector<at::Tensor>> T>
  Trained(const T& parameters) : variables_(variables_of(parameters)) {}  // NOLINT
  template <TorchModule Module>
  Trained(const Module& module) : variables_(adopted(module).trainable()) {}  // NOLINT

  std::vector<Variable> take() && { return std::move(variables_); }

 private:
  std::vector<Variable> variables_;
};

// Variables that are trained otherwise than the rest.
struct ParameterGroup {
  std::string names;       // a regular expression, found somewhere in the name: "bias$", "^tower\\."
  double rate_factor = 1;  // of the learning rate; 0: they stay as they are
  std::optional<double> weight_decay{};
  // In the place of the optimizer's; set_learning_rate() changes it by the same factor.
  std::optional<Schedule> learning_rate{};
};

// The most that gradients may be, of all replicas together: elements, then each gradient, then all as one vector.
struct Clipping {
  std::optional<double> value{}, norm{}, global_norm{};
};

// What all rules can do besides their own.
struct UpdateOptions {
  Clipping clipping{};
  bool decay_vectors = true;             // false: weights of less than two dimensions (biases, scales) do not decay
  std::vector<ParameterGroup> groups{};  // the first one that has a variable counts for it
  // Keeps a mean of what each variable was, in which a step counts 1 - average: see swap_averages(). Of what was not
  // trained, such as other rows, it is the value.
  std::optional<double> average{};
};

// Keeps what a rule remembers of each variable (its slots) beside the variable, in the same parts, and a learning rate
// and a count of steps beside all of them. Made outside of traced functions, used inside. The rules are PyTorch's where
// it has them. A table that the loss depends on by rows alone changes in those rows alone, by the same rule: the
// momentum of a row goes on, and its weight decays, when it is looked up again. A handle, cheap to copy; thread-safe.
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
  // The same for the mean of several losses, each of which is made when that before is done with: a batch that memory
  // would not hold, a part at a time.
  void minimize_mean(int64_t count, const std::function<at::Tensor(int64_t)>& loss) const;
  // The same with gradients of variables(), in their order; those of replicas are averaged, too.
  void apply(const Gradients& gradients) const;

  // Of the next step. To set it changes the rate that a schedule begins with; no function is traced anew. Outside of
  // traced functions; in each process of those that train in step.
  double learning_rate() const;
  void set_learning_rate(double rate) const;
  bool has_schedule() const { return !rule_.learning_rate.is_constant(); }
  int64_t iterations() const;  // steps that were taken
  // As set_learning_rate(): schedules go on from there; what Adam counts stays. After 0 a step begins averages anew.
  void set_iterations(int64_t steps) const;
  // In the place of UpdateOptions::clipping, before the first step: a function keeps what it was traced with.
  void set_clipping(const Clipping& clipping);
  // Between steps. Each variable and the mean of what it was change places; once more is the way back, up to rounding.
  // To take them gives up the values. Both throw Error{kFailedPrecondition} without UpdateOptions::average.
  bool keeps_averages() const { return rule_.all.average.has_value(); }
  void swap_averages() const;
  void take_averages() const;
  // What is added to each variable gives its mean, which moves with what is assigned to the variable. None without.
  std::vector<Variable> averages_less_values() const;

  const std::vector<Variable>& variables() const { return variables_; }
  // All slots, each with the name of its variable in its own, the learning rate and the count of steps: what a
  // checkpoint has to keep besides the variables.
  std::vector<Variable> slots() const;

 protected:
  // The name and the initial value of each slot of a rule.
  struct SlotRule {
    std::string name;
    double initial = 0;
    bool scalar = false;  // one number for a variable (or a part of one), such as a count of steps
  };
  // Tensors of one variable or part, where it lives: the value and its slots, to be written in place.
  struct Update {
    at::Tensor value;
    std::vector<at::Tensor> slots;
    at::Tensor gradient;
    at::Tensor rate;  // float64, no dimension
    double weight_decay;

    // The gradient and that of half the sum of squares, as far as weights decay.
    at::Tensor decayed_gradient() const;
    // For rules that take the decay off the value instead.
    void decay_value();
  };
  struct Rule {
    std::string name;
    std::vector<SlotRule> slots;
    Schedule learning_rate;
    double weight_decay = 0;
    UpdateOptions all{};
  };
  // Throws Error{kInvalidArgument} for a negative rate or decay, and options that are no such.
  explicit Optimizer(Rule rule);
  void add_slot(SlotRule slot) { rule_.slots.push_back(std::move(slot)); }  // in constructors
  Optimizer(const Optimizer&) = default;
  Optimizer& operator=(const Optimizer&) = default;

  virtual void update(Update step) const = 0;
  // The same for some rows of a table and of its slots. By default they are taken out, updated and put back.
  virtual void update_rows(Update table, const at::Tensor& ids) const;

 private:
  // Of one variable.
  struct Own {
    std::vector<Variable> slots;
    std::optional<Variable> lag;  // of averages_less_values()
    std::optional<size_t> group;
    double weight_decay;
  };
  // The learning rate at a place, made once for all that is there.
  class Rates;

  Own own_of(const Variable& variable, std::optional<size_t> group) const;
  const ParameterGroup* group_of(const Own& own) const;  // null: none
  Gradients gradients_of(const at::Tensor& loss, double share) const;
  // What the replicas have is added up and divided by that.
  void apply(const Gradients& gradients, int divisor) const;
  // One for all places where the variables are, or one for each.
  std::vector<Gradients> sums_for_places(const std::vector<std::vector<at::Tensor>>& by_replica,
                                         const AcrossWorkers& across, int divisor) const;
  void apply_here(std::vector<Gradients> for_places) const;
  void expect_settable(const char* call) const;
  void put_averages_in(const char* call, bool keep_values) const;

  Rule rule_;
  std::vector<Variable> variables_;
  std::vector<Own> own_;  // by variable
  std::optional<Variable> rate_, iterations_;
};

// An optimizer that waits for its variables, whichever it is: what compile() takes.
class OptimizerRule {
 public:
  template <std::derived_from<Optimizer> Rule>
  OptimizerRule(Rule rule)  // NOLINT: an optimizer is a rule
      : make_([rule = std::move(rule)] { return std::make_shared<Rule>(rule); }) {}

  // Bound only if it was made with variables.
  std::shared_ptr<Optimizer> make() const { return make_(); }

 private:
  std::function<std::shared_ptr<Optimizer>()> make_;
};

}  // namespace muster

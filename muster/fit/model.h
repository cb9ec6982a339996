// compile and fit, as Keras has them, for any torch::nn module and under any strategy.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/distribute/strategy.h"
#include "muster/fit/callbacks/callback.h"
#include "muster/fit/criteria/losses.h"
#include "muster/fit/criteria/metric.h"
#include "muster/fit/criteria/per_output.h"
#include "muster/fit/forward.h"
#include "muster/fit/history.h"
#include "muster/fit/model_input.h"
#include "muster/train/optimizers.h"

namespace muster {

struct CompileOptions {
  OptimizerRule optimizer = Sgd(SgdOptions{});
  // Of all outputs, or of each: {a, b}, or {{"class", a}, {"box", b}}. By name, outputs may be left out.
  PerOutput<Loss> loss{};
  PerOutput<double> loss_weights{};  // the model goes down the sum of the losses, each times this; 1 without
  OutputMetrics metrics{};           // of the same outputs, as probabilities where the loss takes them for logits
  Clipping clipping{};               // of the gradients, in the place of the optimizer's own
  // So many batches make one step of the optimizer, down the mean of their losses, with the memory of one: as one batch
  // that is so many times as large, if they have as many rows each (a last one may have fewer, and counts as much as
  // the others) and neither weights nor masks. A sum (LossReduction::kSum) is one over all of them.
  // Those at the end of the data that make no whole step are left out.
  int64_t accumulate = 1;
  // Matrix products and convolutions of the forward pass are in bfloat16, as torch.autocast has them; variables stay as
  // they are, and the loss is computed in float32. Of evaluate() and predict(), too, but not of an exported model.
  bool mixed_precision = false;
  // So many steps are one program, for steps that are short. Callbacks see them together.
  int64_t steps_per_execution = 1;
  // Where it is trained. None: the strategy that has made the module, that in whose scope this is, or none.
  std::optional<Strategy> strategy{};
};

struct FitOptions {
  int epochs = 1;         // up to this one
  int initial_epoch = 0;  // from 0
  // Without it an epoch is all of the data. With it epochs go on where those before have ended; needed for data that
  // has no end.
  std::optional<int64_t> steps_per_epoch{};
  OptionalInput validation_data{};            // as what it trains on: a dataset, or tensors in braces
  std::optional<int64_t> validation_steps{};  // the first ones; all without
  // Of examples whose target is that number; 1 for others. Of a model that is trained for one output.
  std::map<int64_t, double> class_weight{};
  int64_t batch_size = 32;  // of tensors
  bool shuffle = true;      // tensors
  Callbacks callbacks{};
  // 0: says nothing. 1: a bar on a terminal, else a line for each epoch. 2: a line for each epoch.
  int verbose = 1;
};

struct EvaluateOptions {
  std::optional<int64_t> steps{};  // the first ones; all without
  int64_t batch_size = 32;         // of tensors
};

// What compile() takes of a module, whichever it is.
struct ModelParts {
  ModuleVariables variables;
  Forward forward;
  std::function<bool(bool)> set_training;  // returns what it was
  std::vector<std::string> outputs{};      // their names; none if only a call of forward() says them
  InputsTaken inputs{};
};

// A handle, cheap to copy; for one thread at a time. Holds the module.
class Model {
 public:
  Model(ModelParts parts, CompileOptions options);

  // Trains, and returns the numbers of each epoch. Throws Error for data that does not fit, for what a step or a
  // callback throws, and if the data ends before the first step.
  History fit(const ModelInput& input, const FitOptions& options = {});
  // The loss and the metrics of data, with the module in eval(). Each example counts once: if a worker of parameter
  // servers is lost meanwhile, what was being read is read again, and what was read before counts. Throws
  // Error{kUnavailable} if workers are lost again and again over the same part of it.
  Logs evaluate(const ModelInput& input, const EvaluateOptions& options = {});
  // The output of all examples, in their order and in the CPU's memory. This process computes it, also under a
  // strategy. Throws Error{kFailedPrecondition} if the model has several.
  at::Tensor predict(const ModelInput& inputs, const EvaluateOptions& options = {});
  // The same for all outputs, by name or in their order.
  Features predict_all(const ModelInput& inputs, const EvaluateOptions& options = {});

  // One step, or its numbers alone, as the strategy has it: by its replicas, or by one worker of parameter servers.
  // Tensors are one batch; of a dataset it is the first element, or as many as make one step (`accumulate`), of which
  // nothing is kept from call to call. Processes that train in step are all given the same, and each has its rows of
  // it; the numbers are those of all.
  Logs train_on_batch(const ModelInput& batch);
  Logs test_on_batch(const ModelInput& batch);
  Logs train_on_batch(const at::Tensor& x, const at::Tensor& y) { return train_on_batch({x, y}); }
  Logs test_on_batch(const at::Tensor& x, const at::Tensor& y) { return test_on_batch({x, y}); }

  // All that training needs to go on, in any strategy: the module's variables, the optimizer's, and its count of steps.
  // The directory is a checkpoint's, which the next save() replaces when it is complete. load() changes all or nothing;
  // throws Error{kNotFound} if there is none, or none of such a model. Each process of the strategy calls them.
  void save(const std::string& directory) const;
  void load(const std::string& directory);

  // The variables as a table: shapes, numbers, where they are; of those that are kept in parts, the rows and the place
  // of each part, too. Once a step has been trained, what layers give, as far as that shows (layer_shapes.h). Then, if
  // it is known that there are several, the outputs and their losses.
  std::string summary() const;

  const ModelParts& parts() const;
  const ModuleVariables& variables() const;
  const Strategy& strategy() const;
  const Optimizer& optimizer() const;

 private:
  struct State;
  std::string outputs_in_words() const;
  std::map<std::string, std::string> layers() const;  // shapes_of_layers(); empty before

  std::shared_ptr<State> state_;
};

// `auto model = muster::compile(net, {.optimizer = muster::Adam({.learning_rate = 0.001}),
//                                     .loss = muster::sparse_categorical_cross_entropy,
//                                     .metrics = {muster::Accuracy()}});`
// The module's tensors become variables, if they are not yet; of one that has nothing to train, steps that train are
// Error{kFailedPrecondition}. Its forward() returns a tensor or several, see outputs_of. Throws Error{kInvalidArgument}
// for no module, for no loss, or for options that are not those of its outputs; where only a call of forward() says
// what these are, the first step does.
template <TorchModule Module>
Model compile(Module module, CompileOptions options) {
  forward_internal::expect_module(module);
  auto variables_of_module = [&] { return adopt(module, {.keep = true}); };
  auto in_scope = [&] {
    const VariableScope scope = options.strategy->scope();
    return variables_of_module();
  };
  ModuleVariables variables = options.strategy ? in_scope() : variables_of_module();
  // Parts that are in eval() while the module is in training stay so: their statistics are frozen.
  using Parts = decltype(forward_internal::module_in(module).modules());
  auto set_training = [module, frozen = Parts()](bool training) mutable {
    auto& of = forward_internal::module_in(module);
    const bool before = of.is_training();
    if (before == training) return before;
    if (!training) {
      frozen = of.modules(/*include_self=*/false);
      std::erase_if(frozen, [](const auto& part) { return part->is_training(); });
    }
    of.train(training);
    if (!training) return before;
    for (const auto& part : frozen) part->eval();
    return before;
  };
  std::vector<std::string> outputs = output_names_of(module);
  const InputsTaken inputs = inputs_taken_by(module);
  return Model({std::move(variables), forward_of(module), std::move(set_training), std::move(outputs), inputs},
               std::move(options));
}

}  // namespace muster

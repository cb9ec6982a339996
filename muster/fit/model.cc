#include "muster/fit/model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <absl/cleanup/cleanup.h>
#include <absl/strings/str_join.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/data/auto_shard.h"
#include "muster/distribute/cluster_coordinator.h"
#include "muster/fit/autocast.h"
#include "muster/fit/fit_display.h"
#include "muster/fit/step_loop.h"
#include "muster/fit/totals.h"
#include "muster/graph/elements.h"
#include "muster/runtime/element_source.h"
#include "muster/runtime/local_worker.h"
#include "muster/runtime/tensors.h"

namespace muster {
namespace {

constexpr std::string_view kWeights = "sample_weight";
constexpr int kMostBeginnings = 10;  // of an evaluation under which workers die

struct Batch {
  Features inputs;
  at::Tensor target, weights;  // undefined: it has none
};

// An element of a sequence as what it means to a model. `labelled`: it has a target.
Batch batch_of(const Iterator& it, const std::vector<at::Tensor>& tensors, bool labelled) {
  const size_t count = tensors.size();
  Batch batch{Features({}, {}), {}, {}};
  if (it.names.empty()) {
    if (labelled && (count < 2 || count > 3)) {
      throw invalid_argument(
          "a model is trained with elements (inputs, target) or (inputs, target, weights), but one has ", count,
          " tensors without names; with names, as files and map_native give them, label() says which is the target");
    }
    batch.inputs = Features({""}, {tensors[0]});
    if (count > 1) batch.target = tensors[1];
    if (count > 2) batch.weights = tensors[2];
    return batch;
  }
  const bool has_target = labelled || it.labelled;  // which is the last column, unless label() has named another one
  if (labelled && count < 2) {
    throw invalid_argument("a model is trained with inputs and a target, but the dataset has only the column ",
                           absl::StrJoin(it.names, ", "));
  }
  std::vector<std::string> names;
  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < count; ++i) {
    if (has_target && i + 1 == count) {
      batch.target = tensors[i];
    } else if (it.names[i] == kWeights) {
      batch.weights = tensors[i];
    } else {
      names.push_back(it.names[i]);
      inputs.push_back(tensors[i]);
    }
  }
  batch.inputs = Features(std::move(names), std::move(inputs));
  return batch;
}

// A weight for each class from 0 on.
at::Tensor table_of(const std::map<int64_t, double>& class_weight) {
  if (class_weight.begin()->first < 0) throw invalid_argument("class_weight: of class ", class_weight.begin()->first);
  const int64_t last = class_weight.rbegin()->first;
  if (last > 1'000'000) throw invalid_argument("class_weight: of class ", last, ", expected at most 1,000,000");
  at::Tensor table = at::ones({last + 2});
  for (const auto& [number, weight] : class_weight) table[number] = weight;
  return table;
}

at::Tensor weights_of(const Batch& batch, const at::Tensor& by_class, const at::Tensor& output) {
  const int64_t examples = batch.target.dim() == 0 ? 1 : batch.target.size(0);
  at::Tensor weights = batch.weights.defined() ? batch.weights.reshape({examples}).to(output.scalar_type())
                                               : at::ones({examples}, output.options().requires_grad(false));
  if (!by_class.defined()) return weights;
  at::Tensor classes = batch.target.flatten();
  if (classes.numel() != examples) {
    throw invalid_argument("class_weight: the target is ", spec_of(batch.target).to_string(),
                           ", expected the number of a class for each example");
  }
  classes = classes.to(at::kLong).clamp(0, by_class.size(0) - 1);
  return weights * by_class.to(output.options()).index_select(0, classes);
}

void refuse_endless(const std::variant<Dataset, ModelInput::Make>& data, const char* why) {
  const auto* dataset = std::get_if<Dataset>(&data);
  if (dataset != nullptr && is_endless(*dataset)) throw invalid_argument(why);
}

Logs named(const Logs& logs, const char* prefix) {
  Logs renamed;
  for (const auto& [name, value] : logs) renamed[prefix + name] = value;
  return renamed;
}

}  // namespace

struct Model::State {
  State(ModelParts given, CompileOptions wanted)
      : parts(std::move(given)),
        options(std::move(wanted)),
        strategy(options.strategy ? *options.strategy : Strategy::of(parts.variables)) {
    for (const Metric& metric : options.metrics) length += static_cast<size_t>(metric.length());
  }

  // What a batch of one replica adds up to, and the mean of its losses.
  struct Passed {
    at::Tensor sums, loss;
  };
  Passed pass(Iterator& it, bool trains, const at::Tensor& by_class) const {
    const Batch batch = batch_of(it, it.next_tensors(element_from(it.specs).size()), /*labelled=*/true);
    c10::AutoGradMode gradients(trains);
    const at::Tensor output = forward(batch.inputs);
    const at::Tensor weights = weights_of(batch, by_class, output);
    const auto examples = static_cast<double>(weights.size(0));
    const at::Tensor losses = options.loss(output, batch.target);
    if (losses.dim() > 0 && losses.size(0) != weights.size(0)) {
      throw invalid_argument("loss ", options.loss.name(), ": it is ", spec_of(losses).to_string(),
                             ", expected a number for each of ", weights.size(0), " examples, or one");
    }
    const bool weighted = batch.weights.defined() || by_class.defined();
    const at::Tensor sum = losses.dim() == 0 ? losses * examples : (weighted ? losses * weights : losses).sum();
    const at::Tensor mean = losses.dim() == 0 ? losses : sum / std::max(examples, 1.0);

    c10::AutoGradMode no_gradients(false);
    const auto numbers = weights.options().dtype(at::kDouble);
    std::vector<at::Tensor> sums{at::full({1}, examples, numbers), sum.detach().to(at::kDouble).reshape({1})};
    const at::Tensor said = probabilities_of(output.detach(), options.loss.outputs());
    for (const Metric& metric : options.metrics) sums.push_back(metric.sums(said, batch.target, weights));
    return {at::cat(sums), mean};
  }

  at::Tensor forward(const Features& inputs) const {
    if (!options.mixed_precision) return parts.forward(inputs);
    const Autocast autocast;
    return parts.forward(inputs).to(at::kFloat);
  }

  // One step of one replica: what its examples add up to.
  at::Tensor step(Iterator& it, bool trains, const at::Tensor& by_class) const {
    if (!trains) return pass(it, trains, by_class).sums;
    if (options.accumulate == 1) {
      const Passed passed = pass(it, trains, by_class);
      optimizer->minimize(passed.loss);
      return passed.sums;
    }
    at::Tensor all;
    optimizer->minimize_mean(options.accumulate, [&](int64_t) {
      const Passed passed = pass(it, trains, by_class);
      all = all.defined() ? all + passed.sums : passed.sums;
      return passed.loss;
    });
    return all;
  }

  Steps steps(bool trains, const at::Tensor& by_class = {}) const {
    auto of_replica = function([this, trains, by_class](Iterator& it) { return step(it, trains, by_class); });
    auto made = [&](int64_t count) {
      // What replicas write becomes one write when all of them have ended: each step is a run of its own.
      std::function<at::Tensor(Iterator&)> of_all = [this, of_replica, count](Iterator& it) {
        at::Tensor all;
        for (int64_t i = 0; i < count; ++i) {
          const PerReplica<at::Tensor> sums = strategy.run(of_replica, it);
          const at::Tensor here = replicas_internal::reduce(ReduceOp::kSum, sums, {}, AcrossWorkers{});
          all = all.defined() ? all + here : here;
        }
        return all;
      };
      return function(std::move(of_all), {.name = trains ? "fit" : "evaluate", .many_shapes = true});
    };
    return {made(1), made(options.steps_per_execution), options.steps_per_execution};
  }

  Logs evaluate(const ModelInput& input, const EvaluateOptions& how) {
    if (!test) test = steps(/*trains=*/false);
    const bool was_training = parts.set_training(false);
    const absl::Cleanup as_it_was = [&] { parts.set_training(was_training); };
    Totals totals(length);
    const std::variant<Dataset, ModelInput::Make> data = input.batched(how.batch_size, /*shuffle=*/false);
    if (!how.steps) refuse_endless(data, "evaluate: the dataset has no end, so a number of steps is needed");
    for (int begun = 1;; ++begun) {
      const auto loop = make_step_loop(strategy, data);
      const int64_t lost_before = loop->lost_workers();
      totals = Totals(length);
      loop->run(*test, how.steps, [&](const at::Tensor& sums, int64_t) { totals.add(sums); });
      if (loop->lost_workers() == lost_before) break;
      // What is read twice counts once only if nothing of it counts.
      if (begun == kMostBeginnings) {
        throw unavailable("evaluate: workers were lost each of the ", begun, " times that it began");
      }
      MUSTER_LOG(info) << "evaluate: a worker was lost, so it begins again: each example counts once";
    }
    totals.add_others(strategy.across());
    if (totals.examples() == 0) throw out_of_range("evaluate: there are no examples");
    return totals.logs(options.metrics);
  }

  const ModelParts parts;
  const CompileOptions options;
  const Strategy strategy;
  std::shared_ptr<const Optimizer> optimizer;
  std::shared_ptr<ClusterCoordinator> coordinator;  // of parameter servers: that of all loops, as long as one is there
  size_t length = Totals::kMetrics;
  std::optional<Steps> train, test;  // made when they are needed
};

Model::Model(ModelParts parts, CompileOptions options) {
  if (!options.loss) throw invalid_argument("compile: no loss; such as muster::mean_squared_error");
  for (const auto& [option, value] :
       {std::pair("steps_per_execution", options.steps_per_execution), std::pair("accumulate", options.accumulate)}) {
    if (value < 1) throw invalid_argument("compile: ", option, " ", value, ", expected at least 1");
  }
  state_ = std::make_shared<State>(std::move(parts), std::move(options));
  const VariableScope scope = state_->strategy.scope();  // of its slots
  const std::shared_ptr<Optimizer> optimizer = state_->options.optimizer.bound_to(state_->parts.variables);
  const Clipping& clipping = state_->options.clipping;
  if (clipping.value || clipping.norm || clipping.global_norm) optimizer->set_clipping(clipping);
  state_->optimizer = optimizer;
  if (state_->strategy.servers()) {
    state_->coordinator = std::make_shared<ClusterCoordinator>(ParameterServerStrategy(state_->strategy));
  }
}

History Model::fit(const ModelInput& input, const FitOptions& options) {
  State& state = *state_;
  if (options.epochs < 0 || options.initial_epoch < 0 || (options.steps_per_epoch && *options.steps_per_epoch < 1)) {
    throw invalid_argument("fit: epochs ", options.epochs, " from ", options.initial_epoch, ", steps_per_epoch ",
                           options.steps_per_epoch.value_or(0), ", expected no negative ones, and at least one step");
  }
  std::variant<Dataset, ModelInput::Make> data = input.batched(options.batch_size, options.shuffle);
  if (!options.steps_per_epoch) refuse_endless(data, "fit: the dataset has no end, so steps_per_epoch is needed");
  Callbacks callbacks = options.callbacks;
  bool step_by_step = false;
  for (const Callbacks::Any& callback : callbacks) {
    if (!callback->wants_steps()) continue;
    if (state.strategy.servers()) {
      throw invalid_argument(
          "fit: Batch-level `Callback`s are not supported with ParameterServerStrategy, whose workers do not wait for "
          "each other; expected callbacks of epochs");
    }
    step_by_step = true;
  }
  if (options.verbose > 0 && state.strategy.is_chief()) {
    const FitDisplay display({.steps = options.steps_per_epoch, .bar = options.verbose == 1});
    step_by_step = step_by_step || display.wants_steps();
    callbacks.add(display);
  }

  std::optional<Steps> weighted;
  if (!options.class_weight.empty()) weighted = state.steps(/*trains=*/true, table_of(options.class_weight));
  if (!weighted && !state.train) state.train = state.steps(/*trains=*/true);
  const Steps& steps = weighted ? *weighted : *state.train;
  const auto loop = make_step_loop(state.strategy, std::move(data));

  Training training{.model = *this, .epochs = options.epochs, .epoch = options.initial_epoch};
  training.program = [&steps] {
    std::optional<Program> one = steps.one.last_program();
    return one ? std::move(one) : steps.several.last_program();
  };
  state.parts.set_training(true);
  for (const Callbacks::Any& callback : callbacks) callback->on_train_begin(training);
  History history;
  Logs logs;
  for (; training.epoch < options.epochs && !training.stop; ++training.epoch) {
    loop->begin(options.steps_per_epoch);
    for (const Callbacks::Any& callback : callbacks) callback->on_epoch_begin(training);
    Totals totals(state.length);
    const int64_t examples_before = training.examples;
    const int64_t taken = loop->run(steps, options.steps_per_epoch, [&](const at::Tensor& sums, int64_t count) {
      totals.add(sums);
      training.steps += count;
      training.examples = examples_before + static_cast<int64_t>(totals.examples());
      if (!step_by_step) return;
      const Logs so_far = totals.logs(state.options.metrics);
      for (const Callbacks::Any& callback : callbacks) callback->on_steps(training, so_far);
    });
    if (taken == 0) throw out_of_range("fit: there are no batches in the data");
    if (options.steps_per_epoch && taken < *options.steps_per_epoch) {
      MUSTER_LOG(warning) << "fit: the data has ended after " << taken << " of " << *options.steps_per_epoch
                          << " steps of epoch " << training.epoch + 1 << ", which is the last; repeat() begins again";
      training.stop = true;
    }
    totals.add_others(state.strategy.across());
    training.examples = examples_before + static_cast<int64_t>(totals.examples());
    logs = totals.logs(state.options.metrics);
    if (options.validation_data) {
      const EvaluateOptions how{.steps = options.validation_steps, .batch_size = options.batch_size};
      logs.merge(named(state.evaluate(*options.validation_data, how), "val_"));
    }
    history.add(training.epoch, logs);
    for (const Callbacks::Any& callback : callbacks) callback->on_epoch_end(training, logs);
  }
  for (const Callbacks::Any& callback : callbacks) callback->on_train_end(training, logs);
  return history;
}

Logs Model::evaluate(const ModelInput& input, const EvaluateOptions& options) {
  return state_->evaluate(input, options);
}

at::Tensor Model::predict(const ModelInput& inputs, const EvaluateOptions& options) {
  const std::variant<Dataset, ModelInput::Make> data = inputs.batched(options.batch_size, /*shuffle=*/false);
  if (!options.steps) refuse_endless(data, "predict: the dataset has no end, so a number of steps is needed");
  const auto* given = std::get_if<Dataset>(&data);
  const Dataset dataset = given != nullptr ? *given : std::get<ModelInput::Make>(data)(InputContext());
  const Iterator pattern = dataset.pattern();
  auto forward = function([this, &pattern](const std::vector<at::Tensor>& tensors) {
    c10::AutoGradMode no_gradients(false);
    return state_->forward(batch_of(pattern, tensors, /*labelled=*/false).inputs);
  });
  const bool was_training = state_->parts.set_training(false);
  const absl::Cleanup as_it_was = [&] { state_->parts.set_training(was_training); };
  const std::unique_ptr<ElementSource> source = dataset.open(local_worker());
  std::vector<at::Tensor> outputs;
  for (int64_t i = 0; !options.steps || i < *options.steps; ++i) {
    const std::optional<Element> element = source->next();
    if (!element) break;
    outputs.push_back(state_->strategy.run_here(forward, *element));
  }
  if (outputs.empty()) throw out_of_range("predict: there are no examples");
  return at::cat(outputs);
}

Logs Model::train_on_batch(const at::Tensor& x, const at::Tensor& y) {
  State& state = *state_;
  if (!state.train) state.train = state.steps(/*trains=*/true);
  state.parts.set_training(true);
  Totals totals(state.length);
  make_step_loop(state.strategy, Dataset::from_tensors({x, y}))
      ->run(*state.train, 1, [&](const at::Tensor& sums, int64_t) { totals.add(sums); });
  return totals.logs(state.options.metrics);
}

Logs Model::test_on_batch(const at::Tensor& x, const at::Tensor& y) {
  return state_->evaluate(Dataset::from_tensors({x, y}), {.steps = 1});
}

const ModelParts& Model::parts() const { return state_->parts; }
const ModuleVariables& Model::variables() const { return state_->parts.variables; }
const Strategy& Model::strategy() const { return state_->strategy; }
const Optimizer& Model::optimizer() const { return *state_->optimizer; }

}  // namespace muster

#include "muster/fit/model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <absl/base/thread_annotations.h>
#include <absl/cleanup/cleanup.h>
#include <absl/strings/str_join.h>
#include <absl/synchronization/mutex.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <array>
#include <cmath>
#include <source_location>
#include <utility>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/data/auto_shard.h"
#include "muster/distribute/coordinator/cluster_coordinator.h"
#include "muster/fit/alone_in_cluster.h"
#include "muster/fit/autocast.h"
#include "muster/fit/callbacks/audience.h"
#include "muster/fit/criteria/criteria.h"
#include "muster/fit/criteria/totals.h"
#include "muster/fit/fit_display.h"
#include "muster/fit/layer_shapes.h"
#include "muster/fit/model_batch.h"
#include "muster/fit/step_loop.h"
#include "muster/graph/elements.h"
#include "muster/runtime/executor/profile.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/ops/failed_op.h"
#include "muster/runtime/ops/op_failure.h"
#include "muster/runtime/worker/element_source.h"
#include "muster/runtime/worker/local_worker.h"
#include "muster/trace/caller.h"
#include "muster/trace/tracer/trace.h"
#include "muster/train/expect_option.h"

namespace muster {
namespace {

constexpr std::source_location kNoPlace;  // of functions that are ours: a user knows them by their names

void expect_steps(const char* what, const char* option, std::optional<int64_t> steps) {
  if (steps) expect_option(*steps >= 1, what, option, *steps, "1 or more");
}

// Its steps would be traced, and there is no end to them.
void refuse_in_function(const char* what) {
  if (!tracing()) return;
  throw failed_precondition(what, " in a traced function, which runs later; call it where the function is called");
}

// A single example is taken for a batch of numbers, and gives as many as a row has. What has several dimensions, or
// several outputs, is no such row: a model may give something of the batch. So may what is in a dataset.
void check_rows(const std::string& name, const at::Tensor& output, const at::Tensor& input) {
  if (output.dim() != 1 || input.dim() != 1 || output.size(0) % input.size(0) == 0) return;
  throw invalid_argument("predict: output \"", name, "\" is ", spec_of(output).to_string(), " for a batch of ",
                         input.size(0),
                         " examples of one number each, expected a row for each; one example is a batch "
                         "of one, x.unsqueeze(0), and a batch that gives what it likes is Dataset::from_tensors({x})");
}

// `each_alone`: every worker takes steps of batches of its own.
std::string batches_of_a_step(int64_t accumulate, bool each_alone) {
  return str_cat(accumulate, each_alone ? " of one worker" : "", " that are one step (accumulate)");
}

Error no_batches(int64_t accumulate, bool each_alone) {
  return out_of_range("fit: there are no batches in the data",
                      accumulate > 1 ? str_cat(", or fewer than the ", batches_of_a_step(accumulate, each_alone)) : "");
}

void warn_of_end(const Training& training, int64_t taken, int64_t wanted) {
  MUSTER_LOG(warning) << "fit: the data has ended after " << taken << " of " << wanted << " steps of epoch "
                      << training.epoch + 1 << ", which is the last; repeat() begins again";
}

// A weight for each class from 0 on.
at::Tensor table_of(const std::map<int64_t, double>& class_weight) {
  if (class_weight.begin()->first < 0)
    throw invalid_argument("class_weight: of class ", class_weight.begin()->first,
                           ", expected numbers of classes, from 0 on");
  const int64_t last = class_weight.rbegin()->first;
  if (last > 1'000'000) throw invalid_argument("class_weight: of class ", last, ", expected at most 1,000,000");
  at::Tensor table = at::ones({last + 2});
  for (const auto& [number, weight] : class_weight) {
    if (!std::isfinite(weight) || weight < 0) {
      throw invalid_argument("class_weight: of class ", number, " it is ", weight, ", expected a number of 0 or more");
    }
    table[number] = weight;
  }
  return table;
}

void refuse_endless(const std::variant<Dataset, ModelInput::Make>& data, const char* why) {
  const auto* dataset = std::get_if<Dataset>(&data);
  if (dataset != nullptr && is_endless(*dataset)) throw invalid_argument(why);
}

void say_one_by_one(int64_t steps_per_execution) {
  MUSTER_LOG(info) << "fit: each step is a program of its own, and steps_per_execution " << steps_per_execution
                   << " has no effect: on parameter servers nobody knows where the data of a worker ends; with "
                   << "steps_per_epoch, and a dataset that repeat() makes endless, several steps are one program";
}

Logs named(const Logs& logs, const char* prefix) {
  Logs renamed;
  for (const auto& [name, value] : logs) renamed.set(prefix + name, value);
  return renamed;
}

}  // namespace

struct Model::State {
  State(ModelParts given, CompileOptions wanted)
      : parts(std::move(given)),
        options(std::move(wanted)),
        strategy(options.strategy ? *options.strategy : Strategy::of(parts.variables)) {
    if (!parts.outputs.empty()) criteria_for(parts.outputs);
  }

  // As the options say for these outputs, which are the same in every batch.
  std::shared_ptr<const Criteria> criteria_for(const std::vector<std::string>& outputs) const ABSL_LOCKS_EXCLUDED(mu) {
    absl::MutexLock lock(&mu);
    if (!known) {
      known = std::make_shared<Criteria>(outputs, options.loss, options.loss_weights, options.metrics);
    }
    if (known->outputs() == outputs) return known;
    throw invalid_argument("forward() of the model gives the outputs ", absl::StrJoin(outputs, ", "), ", and before ",
                           absl::StrJoin(known->outputs(), ", "), "; expected the same in every batch");
  }
  // Null if no forward() has said yet which outputs there are.
  std::shared_ptr<const Criteria> criteria() const ABSL_LOCKS_EXCLUDED(mu) {
    absl::MutexLock lock(&mu);
    return known;
  }
  // What `steps` returns. A failure names the loss whose label it was.
  template <class F>
  auto run(bool trains, const F& steps) const {
    try {
      return steps();
    } catch (const Error& error) {
      const auto judges = criteria();
      if (!judges) throw;
      const Status& status = error.status();
      Status explained = judges->explained(status);
      if (explained == status) throw Error(std::move(explained));
      throw Error(Status(status.code(), explained.message() + known_of_target(trains), status.task(), status.detail()));
    }
  }
  size_t length() const {
    const auto all = criteria();
    return all ? all->length() : 0;
  }

  // The names of an epoch's; nothing while no forward() has said yet which outputs there are.
  std::optional<std::vector<std::string>> numbers(bool validated) const {
    const auto all = criteria();
    if (!all) return std::nullopt;
    std::vector<std::string> names = all->numbers();
    for (size_t i = 0, own = names.size(); validated && i < own; ++i) names.push_back("val_" + names[i]);
    return names;
  }

  Criteria::Judged pass(Iterator& it, bool trains, const at::Tensor& by_class) const {
    c10::AutoGradMode gradients(trains);
    const ModelBatch batch(it, it.next_tensors(element_from(it.specs).size()), /*labelled=*/true, parts.inputs);
    try {
      const Features outputs = outputs_of(batch);
      if (trains) note_layers(batch.inputs, outputs);
      return judge(batch, outputs, by_class, trains);
    } catch (const c10::Error& error) {
      const Status why = status_of_op_failure();
      const std::string caller = error.backtrace() ? caller_outside_libraries(error.backtrace()->get()) : "";
      throw Error(
          Status(why.code(), str_cat("a batch of ", batch.described(), ": ", why.message(),
                                     caller.empty() ? "" : str_cat(" (in ", caller, ")"), batch.why_this_target())));
    }
  }

  // Of other inputs than forward() takes: one of them may have been taken as the target.
  Features outputs_of(const ModelBatch& batch) const {
    const std::string why = batch.why_this_target();
    try {
      return forward(batch.inputs);
    } catch (const Error& error) {
      const Status& status = error.status();
      if (why.empty() || status.code() != StatusCode::kInvalidArgument) throw;
      throw Error(Status(status.code(), status.message() + why, status.task(), status.detail()));
    }
  }

  // What does not fit the target may be right, and the target wrong.
  Criteria::Judged judge(const ModelBatch& batch, const Features& outputs, const at::Tensor& by_class,
                         bool trains) const {
    const auto judges = criteria_for(outputs.names());
    const std::string why = batch.why_this_target();
    note_target(trains, why);
    try {
      return judges->judge(outputs, batch.expected(*judges), by_class, trains ? options.accumulate : 1);
    } catch (const Error& error) {
      const Status& status = error.status();
      // Of a label that is no class run() says it, also when the step runs and nobody is here.
      if (why.empty() || status.code() != StatusCode::kInvalidArgument || op_with_unfit_operand(status)) throw;
      throw Error(Status(status.code(), status.message() + why, status.task(), status.detail()));
    }
  }
  void note_target(bool trains, const std::string& why) const ABSL_LOCKS_EXCLUDED(mu) {
    absl::MutexLock lock(&mu);
    about_target[trains ? 1 : 0] = why;
  }
  std::string known_of_target(bool trains) const ABSL_LOCKS_EXCLUDED(mu) {
    absl::MutexLock lock(&mu);
    return about_target[trains ? 1 : 0];
  }

  Features forward(const Features& inputs) const {
    if (!options.mixed_precision) return parts.forward(inputs);
    const Autocast autocast;
    const Features outputs = parts.forward(inputs);
    std::vector<at::Tensor> exact = outputs.tensors();
    for (at::Tensor& output : exact) output = output.to(at::kFloat);
    return {outputs.names(), std::move(exact)};
  }

  void note_layers(const Features& inputs, const Features& outputs) const ABSL_LOCKS_EXCLUDED(mu) {
    absl::MutexLock lock(&mu);
    if (layers.empty()) layers = shapes_of_layers(parts.variables, inputs, outputs);
  }

  // One step of one replica: what its examples add up to.
  at::Tensor step(Iterator& it, bool trains, const at::Tensor& by_class) const {
    if (!trains) return pass(it, trains, by_class).sums;
    if (options.accumulate == 1) {
      const Criteria::Judged passed = pass(it, trains, by_class);
      optimizer->minimize(passed.loss);
      return passed.sums;
    }
    at::Tensor all;
    optimizer->minimize_mean(options.accumulate, [&](int64_t) {
      const Criteria::Judged passed = pass(it, trains, by_class);
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
      return function(std::move(of_all), {.name = trains ? "fit" : "evaluate", .many_shapes = true}, kNoPlace);
    };
    return {.one = made(1),
            .several = made(options.steps_per_execution),
            .count = options.steps_per_execution,
            .batches = trains ? options.accumulate : 1};
  }

  // `data`: of the examples; from their beginning.
  Logs evaluate(StepLoop& data, std::optional<int64_t> count) {
    if (!test) test = steps(/*trains=*/false);
    const bool was_training = parts.set_training(false);
    const absl::Cleanup as_it_was = [&] { parts.set_training(was_training); };
    Totals totals = run(/*trains=*/false, [&] { return data.once(*test, count); });
    totals.add_others(strategy.across(), length());
    if (totals.examples() == 0) throw out_of_range("evaluate: there are no examples");
    return totals.logs(*criteria());
  }
  Logs evaluate(std::variant<Dataset, ModelInput::Make> data, std::optional<int64_t> count,
                std::optional<int64_t> length = {}) {
    if (!count) refuse_endless(data, "evaluate: the dataset has no end, so a number of steps is needed");
    keep_coordinator();
    return evaluate(*make_step_loop(strategy, std::move(data), length), count);
  }

  std::unique_ptr<StepLoop> validation(const FitOptions& of_fit) const {
    if (!of_fit.validation_data) return nullptr;
    auto data = of_fit.validation_data->batched(of_fit.batch_size, /*shuffle=*/false);
    if (!of_fit.validation_steps) {
      refuse_endless(data, "fit: the validation data has no end, so validation_steps is needed");
    }
    return make_step_loop(strategy, std::move(data), of_fit.validation_data->batches(of_fit.batch_size));
  }

  // On parameter servers: what loops share stays from one to the next. A new one if the last has ended, since a server
  // was lost, and the variables have been restored.
  void keep_coordinator() {
    if (strategy.servers()) coordinator = std::make_shared<ClusterCoordinator>(ParameterServerStrategy(strategy));
  }

  void expect_trainable(const char* what) const {
    if (optimizer->bound()) return;
    throw failed_precondition(what, ": the model has no parameter that is trained, so there is nothing to train; ",
                              "expected one with requires_grad_(true), before it is compiled");
  }

  // Who means to train with others and does not sees nothing else of it than models that differ.
  void warn_if_alone() {
    if (std::exchange(looked_for_others, true) || strategy.servers() || !strategy.across().alone()) return;
    if (const auto words = alone_in_cluster()) MUSTER_LOG(warning) << *words;
  }

  const ModelParts parts;
  const CompileOptions options;
  const Strategy strategy;
  std::shared_ptr<const Optimizer> optimizer;
  std::shared_ptr<ClusterCoordinator> coordinator;  // of parameter servers: that of all loops
  std::optional<Steps> train, test;                 // made when they are needed
  bool looked_for_others = false;

  mutable absl::Mutex mu;
  mutable std::shared_ptr<const Criteria> known ABSL_GUARDED_BY(mu);
  // ModelBatch::why_this_target() of the steps that test and of those that train, as traced last.
  mutable std::array<std::string, 2> about_target ABSL_GUARDED_BY(mu);
  mutable std::map<std::string, std::string> layers ABSL_GUARDED_BY(mu);  // shapes_of_layers() of the first batch
};

Model::Model(ModelParts parts, CompileOptions options) {
  if (options.loss.empty()) throw invalid_argument("compile: no loss; such as muster::mean_squared_error");
  for (const auto& [option, value] :
       {std::pair("steps_per_execution", options.steps_per_execution), std::pair("accumulate", options.accumulate)}) {
    if (value < 1) throw invalid_argument("compile: ", option, " ", value, ", expected at least 1");
  }
  state_ = std::make_shared<State>(std::move(parts), std::move(options));
  const VariableScope scope = state_->strategy.scope();  // of its slots
  const std::shared_ptr<Optimizer> optimizer = state_->options.optimizer.make();
  std::vector<Variable> trained = state_->parts.variables.trainable();
  // Without any it stays a rule: what is frozen can be evaluated, and predicts.
  if (!optimizer->bound() && !trained.empty()) optimizer->bind(std::move(trained));
  const Clipping& clipping = state_->options.clipping;
  if (clipping.value || clipping.norm || clipping.global_norm) optimizer->set_clipping(clipping);
  state_->optimizer = optimizer;
  state_->keep_coordinator();
}

History Model::fit(const ModelInput& input, const FitOptions& options) {
  refuse_in_function("fit");
  State& state = *state_;
  state.expect_trainable("fit");
  expect_option(options.epochs >= 0, "fit", "epochs", options.epochs, "0 or more");
  expect_option(options.initial_epoch >= 0, "fit", "initial_epoch", options.initial_epoch, "0 or more");
  expect_steps("fit", "steps_per_epoch", options.steps_per_epoch);
  expect_steps("fit", "validation_steps", options.validation_steps);
  std::variant<Dataset, ModelInput::Make> data = input.batched(options.batch_size, options.shuffle);
  if (options.steps_per_epoch && input.is_tensors()) data = std::get<Dataset>(data).repeat();
  if (!options.steps_per_epoch) refuse_endless(data, "fit: the dataset has no end, so steps_per_epoch is needed");
  // Of several processes each sees steps of its own: one alone must not end there.
  const bool alone = !state.strategy.servers() && state.strategy.across().alone();
  state.warn_if_alone();
  Training training{.model = *this, .epochs = options.epochs, .epoch = options.initial_epoch};
  Audience audience(options.callbacks, state.strategy, training);
  // Steps of an epoch, as far as they are known before.
  std::optional<int64_t> length = options.steps_per_epoch;
  if (!length) length = input.batches(options.batch_size);
  if (length && !options.steps_per_epoch) length = *length / state.options.accumulate;
  std::optional<FitDisplay> display;
  if (options.verbose > 0 && state.strategy.is_chief()) {
    display.emplace(FitDisplayOptions{.steps = length, .bar = options.verbose == 1});
  }
  const bool step_by_step = audience.wants_steps() || (display && display->wants_steps());

  std::optional<Steps> weighted;
  if (!options.class_weight.empty()) weighted = state.steps(/*trains=*/true, table_of(options.class_weight));
  if (!weighted && !state.train) state.train = state.steps(/*trains=*/true);
  const Steps& steps = weighted ? *weighted : *state.train;
  // Of its own: watchers, and callbacks that keep a Training, may ask when fit() is left.
  training.program = [steps] {
    std::optional<Program> one = steps.one.last_program();
    return one ? std::move(one) : steps.several.last_program();
  };
  const std::shared_ptr<StepLoop> loop = make_step_loop(state.strategy, std::move(data), length);
  training.place_in_data = [counted = options.steps_per_epoch.has_value(), of = std::weak_ptr<StepLoop>(loop)] {
    const std::shared_ptr<StepLoop> here = counted ? of.lock() : nullptr;
    return here ? here->position() : std::string();
  };
  std::optional<Profile> profile;  // of the steps that have just been taken
  Steps seen = steps;
  seen.profile = [&](int64_t count) { return audience.wants_profile(count) ? &profile.emplace() : nullptr; };
  const std::unique_ptr<StepLoop> validation = state.validation(options);  // one for all epochs: what it keeps stays

  const auto numbers = state.numbers(options.validation_data.has_value());
  if (numbers) training.numbers = audience.numbers(*numbers);
  state.parts.set_training(true);
  audience.train_begin();
  state.keep_coordinator();  // now: a callback may have restored what a parameter server had lost
  if (options.steps_per_epoch && !training.begin_at.empty()) loop->go_on_from(training.begin_at);
  History history;
  Logs logs;
  for (; training.epoch < options.epochs && !training.stop; ++training.epoch) {
    audience.check();
    loop->begin(options.steps_per_epoch);
    if (training.steps == 0 && steps.count > 1 && loop->always_one_by_one(options.steps_per_epoch)) {
      say_one_by_one(steps.count);
    }
    audience.epoch_begin();
    if (display) display->begin_epoch(training);
    Totals totals;
    const int64_t examples_before = training.examples;
    const auto each = [&](const at::Tensor& sums, int64_t count) {
      totals.add(sums);
      training.steps += count;
      training.examples = examples_before + static_cast<int64_t>(totals.examples());
      if (profile) audience.profile(*profile, count);
      profile.reset();
      if (!step_by_step) return true;
      const Logs so_far = totals.logs(*state.criteria());
      audience.steps(so_far);
      if (display) display->steps(training, so_far);
      return !(alone && training.stop);
    };
    const int64_t taken = state.run(/*trains=*/true, [&] { return loop->run(seen, options.steps_per_epoch, each); });
    if (taken == 0 && (training.steps == 0 || !options.steps_per_epoch)) {
      const int64_t accumulate = state.options.accumulate;
      const bool by_chance = state.strategy.servers() && accumulate > 1 && training.steps > 0;
      if (!by_chance) throw no_batches(accumulate, state.strategy.servers() != nullptr);
      if (display) display->erase_bar();
      MUSTER_LOG(warning) << "fit: epoch " << training.epoch + 1 << " has no step and no numbers: no worker got the "
                          << batches_of_a_step(accumulate, /*each_alone=*/true) << ", which the data hardly has";
      continue;
    }
    if (options.steps_per_epoch && taken < *options.steps_per_epoch && !training.stop) {
      if (display) display->erase_bar();
      if (state.strategy.is_chief()) warn_of_end(training, taken, *options.steps_per_epoch);
      training.stop = true;
      if (taken == 0) break;  // it has ended with the epoch before
    }
    totals.add_others(state.strategy.across(), state.length());
    if (totals.examples() == 0) throw out_of_range("fit: there are no examples in the data, whose batches are empty");
    training.examples = examples_before + static_cast<int64_t>(totals.examples());
    logs = totals.logs(*state.criteria());
    if (validation) {
      audience.validation([&] { logs.merge(named(state.evaluate(*validation, options.validation_steps), "val_")); });
    }
    if (audience.wants_learning_rate()) training.learning_rate = state.optimizer->learning_rate();
    if (display) display->erase_bar();
    audience.add_logs(logs);
    history.add(training.epoch, logs);
    if (display) display->end_epoch(training, logs);
    audience.epoch_end(logs);
  }
  audience.train_end(logs);
  if (training.preempted) history.set_preempted();
  return history;
}

Logs Model::evaluate(const ModelInput& input, const EvaluateOptions& options) {
  refuse_in_function("evaluate");
  expect_steps("evaluate", "steps", options.steps);
  return state_->evaluate(input.batched(options.batch_size, /*shuffle=*/false), options.steps,
                          input.batches(options.batch_size));
}

at::Tensor Model::predict(const ModelInput& inputs, const EvaluateOptions& options) {
  const Features outputs = predict_all(inputs, options);
  if (outputs.tensors().size() == 1) return outputs.tensors()[0];
  throw failed_precondition("predict: the model has ", outputs.tensors().size(), " outputs, ",
                            absl::StrJoin(outputs.names(), ", "), "; predict_all() gives all of them");
}

Features Model::predict_all(const ModelInput& inputs, const EvaluateOptions& options) {
  refuse_in_function("predict");
  expect_steps("predict", "steps", options.steps);
  const std::variant<Dataset, ModelInput::Make> data = inputs.batched(options.batch_size, /*shuffle=*/false);
  if (!options.steps) refuse_endless(data, "predict: the dataset has no end, so a number of steps is needed");
  const auto* given = std::get_if<Dataset>(&data);
  const Dataset dataset = given != nullptr ? *given : std::get<ModelInput::Make>(data)(InputContext());
  const Iterator pattern = dataset.pattern();
  std::vector<std::string> names;
  const bool inputs_alone = inputs.is_tensors();  // whoever has put them together knows what they are
  auto outputs_of = [this, &pattern, &names, inputs_alone](const std::vector<at::Tensor>& tensors) {
    c10::AutoGradMode no_gradients(false);
    const Features outputs =
        state_->forward(ModelBatch(pattern, tensors, /*labelled=*/false, state_->parts.inputs, inputs_alone).inputs);
    names = outputs.names();
    return outputs.tensors();
  };
  auto forward = function(outputs_of, {.name = "predict"}, kNoPlace);
  const bool was_training = state_->parts.set_training(false);
  const absl::Cleanup as_it_was = [&] { state_->parts.set_training(was_training); };
  const std::unique_ptr<ElementSource> source = dataset.open(local_worker());
  std::vector<std::vector<at::Tensor>> batches;  // of each output
  for (int64_t i = 0; !options.steps || i < *options.steps; ++i) {
    const std::optional<Element> element = source->next();
    if (!element) break;
    const std::vector<at::Tensor> outputs = state_->strategy.run_here(forward, *element);
    batches.resize(outputs.size());
    for (size_t output = 0; output < outputs.size(); ++output) {
      if (outputs[output].dim() == 0) {
        throw invalid_argument("predict: output \"", names[output], "\" is ", spec_of(outputs[output]).to_string(),
                               " for a batch, expected a row for each example");
      }
      if (inputs.is_tensors() && outputs.size() == 1) check_rows(names[output], outputs[output], element->at(0));
      batches[output].push_back(outputs[output].cpu());
    }
  }
  if (batches.empty()) throw out_of_range("predict: there are no examples");
  std::vector<at::Tensor> whole;
  for (const std::vector<at::Tensor>& of_output : batches) whole.push_back(at::cat(of_output));
  return {std::move(names), std::move(whole)};
}

Logs Model::train_on_batch(const ModelInput& batch) {
  refuse_in_function("train_on_batch");
  State& state = *state_;
  state.expect_trainable("train_on_batch");
  const int64_t batches = state.options.accumulate;
  if (batches > 1 && batch.is_tensors()) {
    throw failed_precondition("train_on_batch: a step of this model takes ", batches,
                              " batches (accumulate), and nothing is kept from call to call; expected a dataset with "
                              "as many");
  }
  std::variant<Dataset, ModelInput::Make> data = batch.as_one_batch();  // first: it says which tensors are none
  // A step of no examples would still move what decays. Tensors are the same in all processes, so all of them see it.
  if (batch.is_tensors() && batch.batches(/*batch_size=*/1) == 0) {
    throw out_of_range("train_on_batch: there are no examples");
  }
  if (!state.train) state.train = state.steps(/*trains=*/true);
  state.parts.set_training(true);
  state.keep_coordinator();
  Totals totals;
  const auto loop = make_step_loop(state.strategy, std::move(data));
  const auto add = [&](const at::Tensor& sums, int64_t) {
    totals.add(sums);
    return true;
  };
  if (state.run(/*trains=*/true, [&] { return loop->run(*state.train, 1, add); }) == 0) {
    if (batches > 1) throw out_of_range("train_on_batch: there are fewer than the ", batches, " batches of a step");
    throw out_of_range("train_on_batch: there is no batch in the data");
  }
  totals.add_others(state.strategy.across(), state.length());
  return totals.logs(*state.criteria());
}

Logs Model::test_on_batch(const ModelInput& batch) {
  refuse_in_function("test_on_batch");
  return state_->evaluate(batch.as_one_batch(), 1);
}

std::string Model::outputs_in_words() const {
  const auto criteria = state_->criteria();
  return criteria ? criteria->to_string() : "";
}

std::map<std::string, std::string> Model::layers() const {
  absl::MutexLock lock(&state_->mu);
  return state_->layers;
}

const ModelParts& Model::parts() const { return state_->parts; }
const ModuleVariables& Model::variables() const { return state_->parts.variables; }
const Strategy& Model::strategy() const { return state_->strategy; }
const Optimizer& Model::optimizer() const { return *state_->optimizer; }

}  // namespace muster

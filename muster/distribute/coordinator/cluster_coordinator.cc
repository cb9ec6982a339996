#include "muster/distribute/coordinator/cluster_coordinator.h"

#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include "muster/base/log.h"
#include "muster/distribute/coordinator/coordinator_core.h"
#include "muster/distribute/servers/ps_variables.h"
#include "muster/graph/device_spec.h"
#include "muster/runtime/memory/memory_pool.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/worker/restart.h"
#include "muster/trace/variable_programs.h"

namespace muster {
namespace {

// Whether all parameter servers answer and have their variables.
bool servers_are_there(const ParameterServerTasks& tasks) {
  try {
    for (const std::string& task : tasks.ps) tasks.variables->check_alive(task);
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::shared_ptr<CoordinatorCore> core_of(const ParameterServerStrategy& strategy, const CoordinatorOptions& options) {
  ParameterServerTasks& tasks = *strategy.servers();
  std::shared_ptr<CoordinatorCore> core;  // if nobody else has it any more, it ends without the lock
  absl::MutexLock lock(&tasks.mu);
  core = tasks.coordinator.lock();
  // One that has ended knows best why, as long as a new one could not go on either.
  if (core && !(core->has_ended() && servers_are_there(tasks))) return core;
  auto made = std::make_shared<CoordinatorCore>(strategy, options);
  tasks.coordinator = made;
  return made;
}

// Runs a small program at one worker. Whatever comes of it, it does not stay there.
std::vector<at::Tensor> run_at(ProgramRunner& runner, const std::string& container, const Owner& owner,
                               VariableProgram made) {
  for (VariableRef& variable : made.program.variables) {
    variable.name = name_in_container(container, variable.name);
  }
  const ProgramHandle handle = runner.register_program(made.program, owner);
  std::vector<at::Tensor> outputs;
  try {
    outputs = runner.run(handle, std::move(made.arguments));
  } catch (...) {
    try {
      runner.deregister_program(handle);
    } catch (const Error&) {
      // The first error is the one that counts.
    }
    throw;
  }
  runner.deregister_program(handle);
  return outputs;
}

class VariableResource : public PerWorkerResource {
 public:
  VariableResource(Variable variable, InitialValue initial, ParameterServerStrategy strategy)
      : variable_(std::move(variable)),
        initial_(std::move(initial)),
        strategy_(std::move(strategy)),
        name_(str_cat("the per-worker variable \"", variable_.name(), "\"")) {}

  void create(const std::shared_ptr<Worker>& worker, size_t, const Owner& owner) override {
    run_at(*worker, strategy_.variables()->container(), owner, initializing(*variable_.state(), initial_));
  }
  void drop(Worker&) override {}  // ends with the container
  const std::string& name() const override { return name_; }

 private:
  const Variable variable_;
  const InitialValue initial_;
  const ParameterServerStrategy strategy_;
  const std::string name_;  // in messages
};

class NoVariables : public VariableCreator {
 public:
  Authority authority() const override { return Authority::kAlways; }
  std::shared_ptr<Variable::State> create(const InitialValue&, VariableOptions options, bool) override {
    throw invalid_argument("variable \"", options.name,
                           "\" is made by a function that makes a dataset; make it before, outside of the function");
  }
};

// The worker's own variable can be used in functions only.
class EachWorker : public VariableHome {
 public:
  at::Tensor read(const Variable::State& variable) override { throw refusal(variable); }
  void write(const Variable::State& variable, Write, const at::Tensor&) override { throw refusal(variable); }
  std::shared_ptr<Variable::State> create_beside(const Variable::State& other, const InitialValue&,
                                                 VariableOptions) override {
    throw refusal(other);
  }
  void fill(const std::vector<std::shared_ptr<Variable::State>>&) override {}  // every worker fills its own

 private:
  static Error refusal(const Variable::State& variable) {
    return failed_precondition("variable \"", variable.options.name,
                               "\" is another one at each worker; use it in a function that is scheduled, or ask the "
                               "coordinator for its values()");
  }
};

}  // namespace

ClusterCoordinator::ClusterCoordinator(const ParameterServerStrategy& strategy, CoordinatorOptions options)
    : strategy_(strategy), core_(core_of(strategy, options)) {}

ClusterCoordinator::~ClusterCoordinator() = default;

std::shared_ptr<RemoteResult> ClusterCoordinator::put(std::shared_ptr<TracedFunction::Entry> entry,
                                                      TracedFunction::TraceForElements trace,
                                                      std::vector<at::Tensor> tensors,
                                                      std::vector<std::shared_ptr<PerWorkerResource>> resources,
                                                      std::vector<std::shared_ptr<void>> holds,
                                                      std::optional<int> worker) {
  if (worker && (*worker < 0 || static_cast<size_t>(*worker) >= core_->workers().size())) {
    throw invalid_argument("schedule_on: worker ", *worker, "; the cluster has ", core_->workers().size());
  }
  auto closure = std::make_shared<ScheduledClosure>();
  closure->tag = worker;
  const std::shared_ptr<PsVariables>& own = strategy_.variables();
  for (const auto& variable : entry->traced.variables) {
    if (variable->home == own) continue;
    auto resource = core_->resource_of(variable.get());
    if (!resource) refuse_variable(*variable, entry->traced.program.name);
    resources.push_back(std::move(resource));
  }
  check_workers_of(entry->traced.program, worker);
  closure->entry = std::move(entry);
  closure->expected = closure->takes();
  closure->trace = std::move(trace);
  closure->arguments = std::move(tensors);
  closure->resources = std::move(resources);
  closure->holds = std::move(holds);
  std::shared_ptr<RemoteResult> result = closure->result;
  core_->put(std::move(closure));
  return result;
}

// Workers would look for it in vain, among their own.
void ClusterCoordinator::refuse_variable(const Variable::State& variable, const std::string& function) {
  throw failed_precondition(
      "schedule: function \"", function, "\" uses variable \"", variable.options.name, "\", which ",
      variable.home ? "belongs to another strategy or coordinator" : "was made outside of the strategy's scope",
      ", so the workers do not have it; make it while `auto scope = strategy.scope()` lives, or by "
      "strategy.make<Variable>()");
}

// Whoever is free runs a closure, and has no other worker's devices: without this it would depend on who that is.
void ClusterCoordinator::check_workers_of(const Program& program, std::optional<int> worker) {
  for (const std::string& device : program.devices) {
    if (!device.starts_with("/job:worker")) continue;
    const DeviceSpec spec = DeviceSpec::parse(device);
    if (spec.job != "worker" || !spec.task || spec.task == worker) continue;
    throw invalid_argument(
        "schedule: function \"", program.name, "\" wants ", device, ", a device of worker ", *spec.task,
        worker ? str_cat(", and was to run on worker ", *worker) : ", and any worker may run it", "; use schedule_on(",
        *spec.task, ", ...), or a device that every worker has, such as \"/device:CPU:0\"");
  }
}

void ClusterCoordinator::take_now(std::vector<at::Tensor>& tensors) {
  PlainTensors plain;
  for (at::Tensor& tensor : tensors) {
    // The thread keeps the memory of small ones for the next.
    const MemoryPool::Use pool(tensor.nbytes() <= SpentClosures::kSmallArgument);
    const bool lies_in_order = tensor.is_contiguous() && tensor.layout() == at::kStrided && tensor.is_cpu();
    tensor = lies_in_order ? copy_of(tensor) : tensor.clone(at::MemoryFormat::Contiguous);
  }
}

void ClusterCoordinator::traced(std::chrono::nanoseconds took) { core_->metrics().function_tracing.record(took); }

void ClusterCoordinator::join() { core_->wait(std::nullopt); }
bool ClusterCoordinator::join(std::chrono::milliseconds timeout) { return core_->wait(timeout); }
bool ClusterCoordinator::done() { return core_->done(); }
Metrics& ClusterCoordinator::metrics() { return core_->metrics(); }

size_t ClusterCoordinator::workers_up() const {
  size_t up = 0;
  for (const auto& slot : core_->workers()) up += slot->up() ? 1 : 0;
  return up;
}

CoordinatorReport ClusterCoordinator::report() { return core_->report(); }

VariableScope ClusterCoordinator::without_variables() { return VariableScope(std::make_shared<NoVariables>()); }

std::vector<InputContext> ClusterCoordinator::input_contexts() const {
  const int workers = static_cast<int>(core_->workers().size());
  std::vector<InputContext> contexts;
  for (int i = 0; i < workers; ++i) {
    contexts.push_back({.num_input_pipelines = workers,
                        .input_pipeline_id = i,
                        .num_replicas_in_sync = strategy_.num_replicas_in_sync()});
  }
  return contexts;
}

PerWorkerDataset ClusterCoordinator::per_worker_dataset(const std::vector<Dataset>& datasets,
                                                        const std::string& position, SharedBy shared_by) {
  const bool handed_out = datasets.at(0).handed_out();
  for (const Dataset& dataset : datasets) {
    if (dataset.handed_out() == handed_out) continue;
    throw invalid_argument(
        "create_per_worker_dataset: the dataset of one worker is handed out (ShardPolicy::kDynamic) and that of "
        "another "
        "is not; expected the same for all");
  }
  std::vector<std::string> descriptions;
  if (position.empty() || handed_out) {
    for (const Dataset& dataset : datasets) descriptions.push_back(dataset.serialize());
  } else {
    const std::vector<std::string> places = absl::StrSplit(position, '\n');
    if (places.size() != core_->workers().size()) {
      throw invalid_argument("a position of ", places.size(), " workers, but there are ", core_->workers().size(),
                             ": who has read what is known for as many only; ShardPolicy::kDynamic goes on with any");
    }
    for (size_t i = 0; i < places.size(); ++i) {
      const Dataset& dataset = datasets[datasets.size() == 1 ? 0 : i];
      descriptions.push_back((places[i].empty() ? dataset : dataset.from(places[i])).serialize());
    }
  }
  Iterator pattern = datasets.at(0).pattern();
  pattern.shared_by = shared_by;
  return {std::move(descriptions), handed_out, position, std::move(pattern), core_->keeper()};
}

void ClusterCoordinator::open(const PerWorkerDataset& dataset) { core_->make(dataset.resource(), dataset.hold()); }

std::string ClusterCoordinator::position(const PerWorkerDataset& dataset) {
  const PerWorkerResource& resource = *dataset.resource();
  if (auto all = resource.position()) return *all;
  std::vector<std::string> places;
  for (const auto& slot : core_->workers()) {
    try {
      slot->prepare_resource(dataset.resource());
      places.push_back(resource.position_at(*slot->worker()));
      if (places.back().empty()) {
        throw failed_precondition(
            "position: a dataset whose elements come in no order ({.deterministic = false}) has none");
      }
    } catch (const Error& error) {
      if (error.code() != StatusCode::kUnavailable && !is_restart(error.status())) throw;
      MUSTER_LOG(warning) << slot->task() << " is lost, and its place in a dataset with it: from this position on it "
                          << "begins anew; ShardPolicy::kDynamic loses nothing";
      places.emplace_back();
    }
  }
  return absl::StrJoin(places, "\n");
}

PerWorkerDataset ClusterCoordinator::per_worker_dataset(const std::vector<DistributedDataset>& datasets,
                                                        const std::string& position) {
  std::vector<Dataset> plain;
  for (const DistributedDataset& each : datasets) plain.push_back(each.dataset);
  return per_worker_dataset(plain, position, datasets.at(0).shared_by);
}

PerWorkerVariable ClusterCoordinator::create_per_worker_variable(const InitialValue& initial, const std::string& name) {
  // Without a device it is on the one of whoever runs the function.
  VariableOptions options{.name = str_cat("each_worker/", name, "_", random_id())};
  Variable variable(
      std::make_shared<Variable::State>(initial.spec(), std::move(options), std::make_shared<EachWorker>()));
  auto resource = std::make_shared<VariableResource>(variable, initial, strategy_);
  core_->add_resource(variable.state(), resource);
  return {std::move(variable), std::move(resource)};
}

std::vector<at::Tensor> ClusterCoordinator::values(const PerWorkerVariable& variable) {
  std::vector<at::Tensor> values;
  for (const auto& slot : core_->workers()) {
    auto read = [&] {
      slot->prepare_resource(variable.resource());
      PsVariables& home = *strategy_.variables();
      return run_at(*slot->worker(), home.container(), home.leases().owner(), reading(*variable.variable().state()))
          .at(0);
    };
    try {
      values.push_back(read());
    } catch (const Error& error) {
      if (!is_restart(error.status())) throw Error(error.status().from(slot->task()));
      slot->revive();
      values.push_back(read());
    }
  }
  return values;
}

std::vector<Status> ClusterCoordinator::task_states() {
  std::vector<std::string> tasks = strategy_.workers();
  tasks.insert(tasks.end(), strategy_.parameter_servers().begin(), strategy_.parameter_servers().end());
  std::vector<Status> states;
  for (const std::string& task : tasks) {
    try {
      strategy_.peers()->worker(task)->status();
      states.emplace_back();
    } catch (const Error& error) {
      states.push_back(error.status().from(task));
    }
  }
  return states;
}

}  // namespace muster

#include "muster/distribute/ps_variables.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <future>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/graph/device_spec.h"
#include "muster/graph/split.h"
#include "muster/rpc/repeatable.h"
#include "muster/runtime/restart.h"
#include "muster/runtime/tensors.h"

namespace muster {
namespace {

constexpr const char* kHere = "/job:chief/replica:0/task:0";

LocalWorkerOptions worker_options(const PsVariablesOptions& options) {
  LocalWorkerOptions worker;
  worker.devices.task = kHere;
  worker.peers = options.peers.get();
  return worker;
}

std::vector<std::string> all_tasks(const PsVariablesOptions& options) {
  std::vector<std::string> tasks = options.ps_tasks;
  tasks.insert(tasks.end(), options.other_tasks.begin(), options.other_tasks.end());
  return tasks;
}

// Asks all tasks at once, and waits for all of them.
template <class Ask>
auto ask_all(Peers& peers, const std::map<std::string, std::vector<StoredVariable>>& by_task, const Ask& ask) {
  using Answer = std::invoke_result_t<Ask, VariableKeeper&, const std::vector<StoredVariable>&>;
  std::vector<std::future<Answer>> answers;
  for (const auto& [task, variables] : by_task) {
    answers.push_back(std::async(std::launch::async,
                                 [&ask, &variables, worker = peers.worker(task)] { return ask(*worker, variables); }));
  }
  for (auto& answer : answers) answer.wait();
  return answers;
}

std::map<std::string, uint64_t> incarnations_of(const PsVariablesOptions& options) {
  std::map<std::string, uint64_t> incarnations;
  for (const std::string& task : options.ps_tasks) {
    incarnations[task] = options.peers->worker(task)->status(/*wait=*/true).incarnation;
  }
  return incarnations;
}

}  // namespace

PsVariables::PsVariables(PsVariablesOptions options)
    : options_(std::move(options)),
      container_(absl::StrCat("strategy-", absl::Hex(random_id()))),
      leases_({{random_id(), container_}, {container_}}, *options_.peers),
      worker_(worker_options(options_)),
      master_(worker_, {.tasks = all_tasks(options_), .peers = options_.peers.get()}),
      session_(master_.create_session({.container = container_})) {
  std::map<std::string, uint64_t> incarnations = incarnations_of(options_);
  for (const std::string& task : options_.ps_tasks) leases_.hold_at(task);
  absl::MutexLock lock(&mu_);
  incarnations_ = std::move(incarnations);
  bytes_.resize(options_.ps_tasks.size());
}

PsVariables::~PsVariables() { leases_.release(); }

void PsVariables::check_alive(const std::string& task) const {
  uint64_t incarnation = 0;
  try {
    incarnation = options_.peers->worker(task)->status().incarnation;
  } catch (const Error& error) {
    if (is_restart(error.status())) throw Error(error.status().from(task));
    throw Error(Status(StatusCode::kUnavailable, error.status().message(), task));
  }
  {
    absl::MutexLock lock(&mu_);
    if (incarnation == incarnations_.at(task)) return;
  }
  throw Error(restarted(task, str_cat(task, " was restarted and has lost its variables")));
}

void PsVariables::check_alive(const Program& program) const {
  std::set<std::string> tasks;
  for (const VariableRef& variable : program.variables) {
    const std::string task = task_of_device(program.devices[variable.device]);
    const auto& ps = options_.ps_tasks;
    if (std::find(ps.begin(), ps.end(), task) != ps.end()) tasks.insert(task);
  }
  for (const std::string& task : tasks) check_alive(task);
}

void PsVariables::check_held() const {
  std::set<std::string> tasks;
  for (const auto& state : all()) tasks.insert(task_of_device(state->options.device));
  for (const std::string& task : tasks) {
    try {
      check_alive(task);
    } catch (const Error& error) {
      throw failed_precondition("nobody has the variables of ", task, " any more: ", error.status().message());
    }
  }
}

std::string PsVariables::next_device(int64_t bytes) {
  absl::MutexLock lock(&mu_);
  size_t chosen = next_++ % options_.ps_tasks.size();
  if (options_.placement == PsPlacement::kBalancedByBytes) {
    chosen = static_cast<size_t>(std::min_element(bytes_.begin(), bytes_.end()) - bytes_.begin());
  }
  bytes_[chosen] += bytes;
  return options_.ps_tasks[chosen] + "/device:CPU:0";
}

// The parameter server keeps a variable to the end, so a name is never used again.
std::string PsVariables::take_name(const std::string& wish) {
  std::string name = wish;
  for (int suffix = 1; !names_.insert(name).second; ++suffix) name = str_cat(wish, "_", suffix);
  return name;
}

std::shared_ptr<Variable::State> PsVariables::create_on(const std::string& device, const InitialValue& initial,
                                                        VariableOptions options) {
  options.device = device;
  std::shared_ptr<Variable::State> state;
  {
    absl::MutexLock lock(&mu_);
    options.name = take_name(options.name);
    state = std::make_shared<Variable::State>(initial.spec(), std::move(options), shared_from_this());
    state->on_demand = initial.rows_on_demand();
    std::erase_if(made_, [](const auto& other) { return other.expired(); });
    made_.push_back(state);
  }
  run(initializing(*state, initial));
  return state;
}

std::shared_ptr<Variable::State> PsVariables::create(const InitialValue& initial, VariableOptions options,
                                                     bool may_split) {
  const TensorSpec& spec = initial.spec();
  const int64_t shards =
      may_split && options_.partitioner ? checked_shards(options_.partitioner, options.name, spec) : 1;
  if (shards == 1) {
    auto state = create_on(next_device(spec.bytes()), initial, std::move(options));
    fill({state});
    return state;
  }
  {
    absl::MutexLock lock(&mu_);
    options.name = take_name(options.name);  // checkpoints know the whole by its name
  }
  std::vector<Variable> parts;
  std::vector<std::shared_ptr<Variable::State>> states;
  for (const auto& [first, count] : shard_rows(spec.sizes[0], shards)) {
    InitialValue rows = initial.rows(first, count);
    VariableOptions part = options;
    part.name = str_cat(options.name, "/part_", parts.size());
    states.push_back(create_on(next_device(rows.spec().bytes()), rows, std::move(part)));
    parts.emplace_back(states.back());
  }
  auto whole = std::make_shared<Variable::State>(std::move(parts), std::move(options));
  fill(states);
  return whole;
}

std::shared_ptr<Variable::State> PsVariables::create_beside(const Variable::State& other, const InitialValue& initial,
                                                            VariableOptions options) {
  return create_on(other.options.device, initial, std::move(options));
}

StoredVariable PsVariables::stored(const Variable::State& state) const {
  // Of parts that are alike a checkpoint has one, for all.
  const auto part_of = state.part_of && state.part_of->alike
                           ? Variable::State::PartOf{state.part_of->name, state.spec.sizes, 0}
                           : state.part_of;
  return {.name = name_in_container(container_, state.options.name),
          .spec = state.spec,
          .device = state.options.device,
          .whole = part_of ? part_of->name : state.options.name,
          .whole_sizes = part_of ? part_of->sizes : state.spec.sizes,
          .first_row = part_of ? part_of->first_row : 0};
}

std::vector<ShardEntry> PsVariables::save(const std::string& directory, const Request& request) const {
  ChosenVariables chosen(request.only);
  StoredByTask by_task;
  for (const auto& state : all()) {
    const auto& part = state->part_of;
    if (part && part->alike && part->first_row > 0) continue;  // the first one is stored, for all
    StoredVariable one = stored(*state);
    if (chosen.take(one)) by_task[task_of_device(state->options.device)].push_back(std::move(one));
  }
  chosen.check_all_taken();
  std::vector<ShardEntry> entries;
  for (auto& answer :
       ask_all(*options_.peers, by_task, [&](VariableKeeper& keeper, const std::vector<StoredVariable>& variables) {
         return keeper.save(directory, variables, {.pace = request.pace, .since = request.since});
       })) {
    for (ShardEntry& entry : answer.get()) entries.push_back(std::move(entry));
  }
  return entries;
}

void PsVariables::restore(const std::string& checkpoint, const StoredByTask& by_task, RestoreStage stage) const {
  for (auto& answer :
       ask_all(*options_.peers, by_task, [&](VariableKeeper& keeper, const std::vector<StoredVariable>& variables) {
         keeper.restore(checkpoint, variables, stage);
       })) {
    answer.get();
  }
}

void PsVariables::restore(Source source) {
  ChosenVariables chosen(source.only);
  std::set<std::string> names;
  StoredByTask by_task;
  size_t count = 0;
  for (const auto& state : all()) {
    StoredVariable one = stored(*state);
    if (!chosen.take(one)) continue;
    names.insert(one.whole);
    if (!source.variables.contains(one.whole)) continue;
    by_task[task_of_device(state->options.device)].push_back(std::move(one));
    ++count;
  }
  chosen.check_all_taken();
  std::set<std::string> unused = unused_after_match(source, names);
  std::map<std::string, uint64_t> incarnations = incarnations_of(options_);
  restore(source.checkpoint, by_task, RestoreStage::kCheck);
  {
    absl::MutexLock lock(&mu_);
    incarnations_ = std::move(incarnations);
  }
  restore(source.checkpoint, by_task, RestoreStage::kApply);
  MUSTER_LOG(info) << "restored " << count << " variables from " << source.checkpoint;
  if (!source.only) later_.begin(std::move(source), std::move(unused));
}

void PsVariables::fill(const std::vector<std::shared_ptr<Variable::State>>& parts) {
  const std::string name = stored(*parts.at(0)).whole;
  const std::optional<std::string> checkpoint = later_.checkpoint_for(name);
  if (!checkpoint) return;
  StoredByTask by_task;
  for (const auto& part : parts) by_task[task_of_device(part->options.device)].push_back(stored(*part));
  restore(*checkpoint, by_task, RestoreStage::kCheck);
  restore(*checkpoint, by_task, RestoreStage::kApply);
  later_.filled(name);
}

at::Tensor PsVariables::read(const Variable::State& variable) { return run(reading(variable)).at(0); }

void PsVariables::write(const Variable::State& variable, Write how, const at::Tensor& value) {
  run(writing(variable, how, value));
}

std::vector<std::shared_ptr<Variable::State>> PsVariables::all() const {
  std::vector<std::shared_ptr<Variable::State>> alive;
  absl::MutexLock lock(&mu_);
  for (const auto& weak : made_) {
    if (auto state = weak.lock()) alive.push_back(std::move(state));
  }
  return alive;
}

std::vector<at::Tensor> PsVariables::run(VariableProgram made) { return run(made.program, std::move(made.arguments)); }

std::vector<at::Tensor> PsVariables::run(const Program& program, std::vector<at::Tensor> arguments) {
  begin_at_their_memory(arguments);
  const ProgramHandle handle = master_.extend(session_, program);
  std::vector<at::Tensor> outputs;
  try {
    // A write would give a restarted parameter server a value, and then it looked like the one that it was.
    if (!repeatable(program)) check_alive(program);
    outputs = master_.run(session_, handle, std::move(arguments));
  } catch (const Error& error) {
    try {
      master_.release(session_, handle);
    } catch (const Error&) {
      // The first error is the one that counts.
    }
    // A restarted parameter server has no value to read.
    if (error.code() == StatusCode::kFailedPrecondition) check_alive(program);
    throw;
  }
  master_.release(session_, handle);
  return outputs;
}

}  // namespace muster

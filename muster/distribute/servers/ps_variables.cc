#include "muster/distribute/servers/ps_variables.h"

#include <absl/strings/str_cat.h>

#include "muster/base/status.h"

namespace muster {
namespace {

std::vector<std::string> all_tasks(const PsVariablesOptions& options) {
  std::vector<std::string> tasks = options.ps_tasks;
  tasks.insert(tasks.end(), options.other_tasks.begin(), options.other_tasks.end());
  return tasks;
}

}  // namespace

PsVariables::PsVariables(PsVariablesOptions options)
    : options_(std::move(options)),
      container_(absl::StrCat("strategy-", absl::Hex(random_id()))),
      leases_({{random_id(), container_}, {container_}}, *options_.peers),
      incarnations_(options_.ps_tasks, options_.peers),
      runner_({.tasks = all_tasks(options_), .container = container_, .peers = options_.peers}, incarnations_),
      saved_({.container = container_, .peers = options_.peers, .all = [this] { return all(); }}, incarnations_),
      places_(options_.ps_tasks, options_.placement) {
  for (const std::string& task : options_.ps_tasks) leases_.hold_at(task);
}

PsVariables::~PsVariables() { leases_.release(); }

std::shared_ptr<Variable::State> PsVariables::create_on(const std::string& device, const InitialValue& initial,
                                                        VariableOptions options) {
  options.device = device;
  options.name = places_.take_name(options.name);
  auto state = std::make_shared<Variable::State>(initial.spec(), std::move(options), shared_from_this());
  state->on_demand = initial.rows_on_demand();
  {
    absl::MutexLock lock(&mu_);
    std::erase_if(made_, [](const auto& other) { return other.expired(); });
    made_.push_back(state);
  }
  run(initializing(*state, initial));
  return state;
}

std::shared_ptr<Variable::State> PsVariables::create(const InitialValue& initial, VariableOptions options,
                                                     bool may_split) {
  const TensorSpec& spec = initial.spec();
  if (options_.wire && options.wire == WireForm{}) options.wire = options_.wire(options.name, spec);
  const int64_t shards =
      may_split && options_.partitioner ? checked_shards(options_.partitioner, options.name, spec) : 1;
  if (shards == 1) {
    auto state = create_on(places_.device_for(spec.bytes()), initial, std::move(options));
    fill({state});
    return state;
  }
  options.name = places_.take_name(options.name);  // checkpoints know the whole by its name
  std::vector<Variable> parts;
  std::vector<std::shared_ptr<Variable::State>> states;
  for (const auto& [first, count] : shard_rows(spec.sizes[0], shards)) {
    InitialValue rows = initial.rows(first, count);
    VariableOptions part = options;
    part.name = str_cat(options.name, "/part_", parts.size());
    states.push_back(create_on(places_.device_for(rows.spec().bytes()), rows, std::move(part)));
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

}  // namespace muster

#include "muster/distribute/servers/parameter_server_strategy.h"

#include <atomic>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/cluster/cluster_peers.h"
#include "muster/distribute/servers/ps_variables.h"
#include "muster/graph/device_spec.h"

namespace muster {
namespace {

void check_cluster(const ClusterSpec& cluster) {
  size_t workers = 0, ps = 0, chiefs = 0, evaluators = 0;
  for (const TaskId& task : cluster.all_tasks()) {
    if (task.job == "worker") {
      ++workers;
    } else if (task.job == "ps") {
      ++ps;
    } else if (task.job == "chief") {
      ++chiefs;
    } else if (task.job == "evaluator") {
      ++evaluators;
    } else {
      throw invalid_argument("Disallowed task type found in the cluster: \"", task.job,
                             "\"; expected chief, worker, ps and evaluator");
    }
  }
  if (chiefs > 1)
    throw invalid_argument("There must be at most one 'chief' job; the cluster has ", chiefs, " tasks in it");
  if (evaluators > 1) {
    throw invalid_argument("There must be at most one 'evaluator' job; the cluster has ", evaluators, " tasks in it");
  }
  if (cluster.empty()) {
    throw invalid_argument(
        "There must be at least one worker. The cluster is empty; where it comes from flags, --cluster or TF_CONFIG "
        "names it");
  }
  if (workers == 0) throw invalid_argument("There must be at least one worker.");
  if (ps == 0) throw invalid_argument("There must be at least one ps.");
}

// The devices of each worker's replicas: those that were asked for, else the GPUs that the resolver knows of.
std::vector<std::string> checked_replica_devices(const ClusterResolver& resolver, const ClusterSpec& cluster,
                                                 std::vector<std::string> devices) {
  for (const std::string& device : devices) {
    const DeviceSpec spec = DeviceSpec::parse(device);
    if (!spec.type || spec.job || spec.task) {
      throw invalid_argument("replica device \"", device,
                             "\": expected a device of every worker, such as \"/device:GPU:0\"");
    }
  }
  if (!devices.empty()) return devices;
  std::optional<int> gpus;
  for (const TaskId& task : cluster.all_tasks()) {
    if (task.job != "worker") continue;
    const std::map<std::string, int> known = resolver.num_accelerators(task.job, task.index);
    const auto found = known.find("GPU");
    const int own = found == known.end() ? 0 : found->second;
    if (gpus && *gpus != own) {
      throw invalid_argument("Mismatched number of GPUs per worker: ", task.to_string(), " has ", own,
                             ", those before it have ", *gpus);
    }
    gpus = own;
  }
  for (int i = 0; i < gpus.value_or(0); ++i) devices.push_back(str_cat("/device:GPU:", i));
  if (devices.empty()) devices.emplace_back();
  return devices;
}

// Puts variables beside another one.
class BesideCreator : public VariableCreator {
 public:
  BesideCreator(std::shared_ptr<PsVariables> variables, Variable other)
      : variables_(std::move(variables)), other_(std::move(other)) {}

  Authority authority() const override { return Authority::kStrategy; }
  std::shared_ptr<Variable::State> create(const InitialValue& initial, VariableOptions options, bool) override {
    auto state = variables_->create_beside(*other_.state(), initial, std::move(options));
    variables_->fill({state});
    return state;
  }

 private:
  const std::shared_ptr<PsVariables> variables_;
  const Variable other_;
};

// Runs the replicas of a step in this process, on variables that are where they are.
class FromHere : public StepRunner {
 public:
  explicit FromHere(std::shared_ptr<PsVariables> variables) : variables_(std::move(variables)) {}

  std::vector<at::Tensor> run(TracedFunction::Entry& entry, std::vector<at::Tensor> tensors) override {
    return variables_->run(entry.traced.program, std::move(tensors));
  }
  void called_outside(const char* method) override {
    if (warned_.exchange(true)) return;
    MUSTER_LOG(warning)
        << "ParameterServerStrategy::" << method
        << " is invoked without ClusterCoordinator::schedule, so this process does the work, which can be "
           "slow; call it in a function that is scheduled";
  }

 private:
  const std::shared_ptr<PsVariables> variables_;
  std::atomic<bool> warned_{false};
};

}  // namespace

std::shared_ptr<ParameterServerTasks> ParameterServerStrategy::tasks_of(const ClusterResolver& resolver,
                                                                        std::shared_ptr<Peers> peers,
                                                                        ParameterServerOptions options) {
  const ClusterSpec cluster = resolver.cluster_spec();
  check_cluster(cluster);
  if (const auto& type = resolver.task_type();
      type && *type != "chief" && *type != "worker" && *type != "ps" && *type != "evaluator") {
    throw invalid_argument("Unrecognized task_type: ", *type, "; expected chief, worker, ps or evaluator");
  }
  auto made = std::make_shared<Tasks>();
  Tasks& tasks = *made;
  for (const TaskId& task : cluster.all_tasks()) {
    if (task.job == "worker") {
      tasks.workers.push_back(task.to_string());
      tasks.worker_addresses.push_back(cluster.task_address(task));
    }
    if (task.job == "ps") tasks.ps.push_back(task.to_string());
  }
  tasks.replica_devices = checked_replica_devices(resolver, cluster, std::move(options.replica_devices));
  tasks.peers = peers
                    ? std::move(peers)
                    : std::make_shared<ClusterPeers>(cluster, ChannelOptions{.credentials = options.credentials,
                                                                             .connect_timeout = options.connect_timeout,
                                                                             .attempts = options.attempts});
  if (!options.partitioner) options.partitioner = spread_over(tasks.ps.size());
  tasks.variables = std::make_shared<PsVariables>(PsVariablesOptions{.ps_tasks = tasks.ps,
                                                                     .other_tasks = tasks.workers,
                                                                     .peers = tasks.peers,
                                                                     .partitioner = std::move(options.partitioner),
                                                                     .placement = options.placement,
                                                                     .wire = std::move(options.wire)});
  const char* const placement = tasks.ps.size() == 1 ? ""  // there is no choice
                                : options.placement == PsPlacement::kRoundRobin
                                    ? ", variables go round robin (PsPlacement::kBalancedByBytes evens out their sizes)"
                                    : ", variables go where the fewest bytes are";
  MUSTER_LOG(debug) << "parameter servers: " << tasks.ps.size() << ", workers: " << tasks.workers.size() << placement;
  return made;
}

ParameterServerStrategy::ParameterServerStrategy(const ClusterResolver& resolver, ParameterServerOptions options)
    : ParameterServerStrategy(resolver, nullptr, std::move(options)) {}

ParameterServerStrategy::ParameterServerStrategy(const ClusterResolver& resolver, std::shared_ptr<Peers> peers,
                                                 ParameterServerOptions options)
    : ParameterServerStrategy(tasks_of(resolver, std::move(peers), std::move(options))) {}

ParameterServerStrategy::ParameterServerStrategy(std::shared_ptr<Tasks> tasks)
    : Strategy(StrategyParts{.variables = tasks->variables,
                             .replica_devices = tasks->replica_devices,
                             .runner = std::make_shared<FromHere>(tasks->variables),
                             .saved = tasks->variables->saved(),
                             .servers = tasks}),
      tasks_(std::move(tasks)) {}

VariableScope ParameterServerStrategy::colocate_with(const Variable& other) const {
  if (!other.state()->home || !other.shards().empty()) {
    throw invalid_argument("colocate_with: variable \"", other.name(),
                           "\" is not one on a parameter server; give one part of a variable that is kept in parts");
  }
  return VariableScope(std::make_shared<BesideCreator>(tasks_->variables, other));
}

}  // namespace muster

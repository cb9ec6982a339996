#include "muster/cluster/resolvers/slurm_cluster_resolver.h"

#include <absl/strings/numbers.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <map>

#include "muster/base/status.h"
#include "muster/cluster/resolvers/environment_variable.h"
#include "muster/cluster/resolvers/slurm_hostlist.h"

namespace muster {
namespace {

using Names = std::initializer_list<const char*>;

struct Setting {
  std::string name, value;
};

// The first of these variables that is set.
std::optional<Setting> find(Names names) {
  for (const char* name : names) {
    if (auto value = environment_variable(name)) return Setting{name, *value};
  }
  return std::nullopt;
}

Setting required(Names names) {
  if (auto setting = find(names)) return *setting;
  throw failed_precondition(*names.begin(), " is not set: this process was not started by Slurm's srun");
}

int number_of(const Setting& setting) {
  int number = 0;
  if (absl::SimpleAtoi(setting.value, &number) && number >= 0) return number;
  throw invalid_argument(setting.name, ": expected a number, got \"", setting.value, "\"");
}

// Adds the variable's name to what is wrong with its value.
template <class Expand>
auto expanded(const Setting& setting, Expand expand) {
  try {
    return expand(setting.value);
  } catch (const Error& error) {
    throw invalid_argument(setting.name, ": ", error.status().message());
  }
}

std::vector<int> tasks_by_node(const SlurmClusterResolverOptions& options, size_t nodes) {
  if (options.tasks_per_node) return std::vector<int>(nodes, *options.tasks_per_node);
  if (auto setting = find({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"})) {
    std::vector<int> counts = expanded(*setting, expand_tasks_per_node);
    if (counts.size() == nodes) return counts;
    throw invalid_argument(setting->name, ": \"", setting->value, "\" is for ", counts.size(),
                           " nodes, the node list has ", nodes);
  }
  return std::vector<int>(nodes, number_of(required({"SLURM_NTASKS_PER_NODE"})));
}

void check_distribution(const std::vector<int>& tasks) {
  const std::string distribution = environment_variable("SLURM_DISTRIBUTION").value_or("block");
  const bool one_each = std::all_of(tasks.begin(), tasks.end(), [](int count) { return count <= 1; });
  if (one_each || distribution.starts_with("block")) return;
  throw failed_precondition("SLURM_DISTRIBUTION: expected \"block\", got \"", distribution, "\"");
}

// Both "2" and "a100:2" are written.
int gpus_per_task_of(const SlurmClusterResolverOptions& options, int tasks_on_node) {
  if (options.gpus_per_task) return *options.gpus_per_task;
  if (auto setting = find({"SLURM_GPUS_PER_TASK"})) {
    setting->value.erase(0, setting->value.rfind(':') + 1);
    return number_of(*setting);
  }
  if (auto setting = find({"SLURM_GPUS_ON_NODE"})) return number_of(*setting) / std::max(tasks_on_node, 1);
  return 0;
}

}  // namespace

struct SlurmClusterResolver::Parsed {
  explicit Parsed(SlurmClusterResolverOptions options) {
    const int rank = number_of(required({"SLURM_PROCID"}));
    const std::vector<std::string> nodes =
        expanded(required({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}), expand_hostlist);
    const std::vector<int> tasks = tasks_by_node(options, nodes.size());
    check_distribution(tasks);
    place(options, nodes, tasks);
    if (options.jobs.empty()) options.jobs = {{"worker", count_tasks()}};
    own.rpc_layer = options.rpc_layer;
    assign(options.jobs, rank);
    gpus_per_task = gpus_per_task_of(options, tasks[node_of_rank[rank]]);
  }

  void place(const SlurmClusterResolverOptions& options, const std::vector<std::string>& nodes,
             const std::vector<int>& tasks) {
    for (size_t node = 0; node < nodes.size(); ++node) {
      for (int i = 0; i < tasks[node]; ++i) {
        if (addresses.size() == ClusterSpec::kMaxTasks) throw invalid_argument("the step has too many tasks");
        addresses.push_back(str_cat(nodes[node], ":", int64_t{options.port_base} + i));
        node_of_rank.push_back(node);
      }
    }
  }

  int count_tasks() const {
    const int placed = static_cast<int>(addresses.size());
    auto setting = find({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"});
    const int count = setting ? number_of(*setting) : placed;
    if (count <= placed) return count;
    throw invalid_argument(setting->name, ": ", count, " tasks, but there is room for ", placed, " on the nodes");
  }

  // Gives the ranks to the jobs, one after the other.
  void assign(const std::vector<std::pair<std::string, int>>& jobs, int rank) {
    int64_t asked = 0;
    for (const auto& [job, count] : jobs) {
      if (count < 0) throw invalid_argument("job \"", job, "\": ", count, " tasks are asked for");
      asked += count;
    }
    if (asked != count_tasks()) {
      throw invalid_argument("the jobs have ", asked, " tasks, but Slurm started ", count_tasks());
    }
    if (rank >= asked) throw invalid_argument("SLURM_PROCID: ", rank, ", but there are ", asked, " tasks");
    std::map<std::string, std::vector<std::string>> by_job;
    int begin = 0;
    for (const auto& [job, count] : jobs) {
      if (by_job.contains(job)) throw invalid_argument("job \"", job, "\" is asked for twice");
      by_job[job].assign(addresses.begin() + begin, addresses.begin() + begin + count);
      if (begin <= rank && rank < begin + count) {
        own.task_type = job;
        own.task_index = rank - begin;
      }
      begin += count;
    }
    cluster = ClusterSpec(by_job);
  }

  ResolverTask own;
  ClusterSpec cluster;
  int gpus_per_task = 0;
  std::vector<std::string> addresses;  // by rank
  std::vector<size_t> node_of_rank;
};

SlurmClusterResolver::SlurmClusterResolver(SlurmClusterResolverOptions options)
    : SlurmClusterResolver(std::make_unique<Parsed>(std::move(options))) {}

SlurmClusterResolver::SlurmClusterResolver(std::unique_ptr<Parsed> parsed)
    : ClusterResolver(std::move(parsed->own)),
      cluster_(std::move(parsed->cluster)),
      gpus_per_task_(parsed->gpus_per_task) {}

std::map<std::string, int> SlurmClusterResolver::count_accelerators(const std::optional<std::string>&,
                                                                    std::optional<int>) const {
  if (gpus_per_task_ == 0) return {};
  return {{"GPU", gpus_per_task_}};
}

}  // namespace muster

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/cluster/resolvers/cluster_resolver.h"

namespace muster {

struct SlurmClusterResolverOptions {
  // Who gets how many of the step's tasks, in the order of their ranks: {{"ps", 1}, {"worker", 4}}. Empty: all are
  // workers.
  std::vector<std::pair<std::string, int>> jobs{};

  int port_base = 8888;                 // of the first task on a node; its other tasks have the ports after it
  std::optional<int> tasks_per_node{};  // the same on all nodes, instead of what Slurm says
  std::optional<int> gpus_per_task{};   // instead of what Slurm says
  std::string rpc_layer = "grpc";
};

// The tasks of a Slurm step (srun), from the variables that Slurm sets: SLURM_PROCID, SLURM_STEP_NODELIST,
// SLURM_STEP_NUM_TASKS, SLURM_STEP_TASKS_PER_NODE, SLURM_GPUS_PER_TASK, SLURM_GPUS_ON_NODE; where a variable of the
// step is missing, that of the job (SLURM_JOB_NODELIST and so on). It reads once, when it is made. A value. Limit:
// ranks must go from node to node, as with srun --distribution=block.
class SlurmClusterResolver : public ClusterResolver {
 public:
  // Throws Error{kFailedPrecondition} outside of Slurm and Error{kInvalidArgument} when its variables, or the jobs that
  // are asked for, do not fit together.
  explicit SlurmClusterResolver(SlurmClusterResolverOptions options = {});

  ClusterSpec cluster_spec() const override { return cluster_; }

 private:
  struct Parsed;
  // By pointer: g++ 13 dies of a call with {.field = …} that might mean an incomplete type.
  explicit SlurmClusterResolver(std::unique_ptr<Parsed> parsed);

  std::map<std::string, int> count_accelerators(const std::optional<std::string>& task_type,
                                                std::optional<int> task_index) const override;

  ClusterSpec cluster_;
  int gpus_per_task_;
};

}  // namespace muster

// What strategies are made of.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "muster/distribute/saved_variables.h"
#include "muster/trace/across_workers.h"
#include "muster/trace/function.h"
#include "muster/trace/variable_scope.h"

namespace muster {

// Runs the programs that a strategy is given outside of traced functions. Thread-safe.
class StepRunner {
 public:
  virtual ~StepRunner() = default;
  virtual std::vector<at::Tensor> run(TracedFunction::Entry& entry, std::vector<at::Tensor> tensors) = 0;
  // A method of the strategy was called outside of a traced function.
  virtual void called_outside([[maybe_unused]] const char* method) {}
};

struct ParameterServerTasks;

// What a strategy chooses; the rest is the same for all.
struct StrategyParts {
  std::shared_ptr<VariableCreator> variables{};  // null: they are made as without a strategy
  std::vector<std::string> replica_devices{""};  // of this process, that take a step together; "": the default device
  AcrossWorkers across{};                        // the processes that do so
  std::shared_ptr<StepRunner> runner{};          // null: this process
  std::shared_ptr<SavedVariables> saved{};       // for checkpoints; null: the variables of this process
  std::shared_ptr<const void> membership{};      // of `across`, as long as the strategy is there
  // Not null: steps are taken by workers that a ClusterCoordinator schedules them on.
  std::shared_ptr<ParameterServerTasks> servers{};
};

}  // namespace muster

// Whoever has variables, and writes them to files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "muster/graph/program.h"
#include "muster/runtime/variables/variable_files.h"

namespace muster {

struct VariableInfo {
  std::string name{};
  TensorSpec spec{};
  std::string device{};
  uint64_t version = 0;
  bool initialized = false;
  uint64_t whole_reads = 0;  // by runs that took all of it rather than rows
};

// Thread-safe. Every method throws Error.
class VariableKeeper {
 public:
  virtual ~VariableKeeper() = default;

  virtual std::vector<VariableInfo> variables() = 0;
  // Writes variables into a file of this task's own, and reads them from a whole checkpoint (variable_files.h). However
  // long that takes: it ends when it is done or the task is gone.
  virtual std::vector<ShardEntry> save(const std::string& directory, const std::vector<StoredVariable>& variables,
                                       const SaveOptions& options) = 0;
  virtual void restore(const std::string& checkpoint, const std::vector<StoredVariable>& variables,
                       RestoreStage stage) = 0;
  // Drops the variables of these containers ("": those without one), and the programs that use them.
  virtual void reset(const std::vector<std::string>& containers) = 0;
};

}  // namespace muster

// Saves and restores the variables of a strategy.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "muster/distribute/parameter_server_strategy.h"
#include "muster/io/checkpoint_directory.h"

namespace muster {

struct CheckpointsOptions {
  std::string directory;  // which all parameter servers see under this name
  int keep = 3;           // the newest ones; older ones are removed
};

// The checkpoints of a training job: all variables that were made in the strategy's scope and still are, with what
// optimizers keep beside them. Every parameter server writes its own, in parallel, and nothing is visible until all of
// it is on the disk. They load into any number of parts and servers. Thread-safe. Limit: while closures run, each
// variable is saved as it is at one moment, but not all at the same one; join() first for a state that belongs
// together.
class Checkpoints {
 public:
  Checkpoints(const ParameterServerStrategy& strategy, CheckpointsOptions options);

  // Returns the path. Throws Error{kAlreadyExists} if the step has one; if a server fails, nothing is left behind.
  std::string save(int64_t step, const std::map<std::string, std::string>& metadata = {});

  // Gives the variables the values of the newest complete checkpoint and returns its step; nothing if there is none.
  // Waits for parameter servers that are being restarted, as long as the strategy's connect_timeout. One that is
  // damaged is logged, and the one before it is taken. Variables that are made later, until the next save(), begin with
  // the values that this checkpoint has for their names.
  std::optional<int64_t> restore();

 private:
  void restore_from(const std::string& path);

  const ParameterServerStrategy strategy_;
  const CheckpointsOptions options_;
  CheckpointDirectory directory_;
};

}  // namespace muster

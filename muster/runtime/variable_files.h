// Variables of a task in the files of a checkpoint.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "muster/io/checkpoint_index.h"
#include "muster/runtime/devices.h"
#include "muster/runtime/variable_store.h"

namespace muster {

// A variable of a worker, or the part of one that it has, and where that belongs in a checkpoint.
struct StoredVariable {
  std::string name{};  // at the worker
  TensorSpec spec{};
  std::string device{};  // full name
  std::string whole{};   // the name in the checkpoint
  std::vector<int64_t> whole_sizes{};
  int64_t first_row = 0;
};

// What is asked for and what is in the files may come from a stranger: all of it is checked before it is used.

// Writes the variables into a file of the task's own in `directory`. Each is as it is at one moment; writers do not
// wait. Throws Error{kNotFound} or {kFailedPrecondition} for a variable that is not there or has no value,
// Error{kInvalidArgument} for one that is not as `variables` says, and what write_shard() throws. Of rows on demand
// (row_table.h): those that were written, and the rule for the others.
std::vector<ShardEntry> save_variables(const VariableStore& store, const std::string& task,
                                       const std::string& directory, const std::vector<StoredVariable>& variables);

// A restore over several tasks has two stages: all of them check, and if all can, all apply.
enum class RestoreStage {
  kCheck,  // reads everything, its sums included, and changes nothing: throws what kApply would throw
  kApply,  // reads it again, one variable after the other, so that memory is needed for one more, not for all
};

// Gives the variables the values that they have in the checkpoint, in however many parts they are there; makes those
// that are missing. Throws Error{kNotFound} for one that the checkpoint has not, Error{kInvalidArgument} for another
// shape or type, and what CheckpointReader throws. A variable has its old value or its new one, never half of it.
// Limit: kApply after a kCheck that went well can still fail for a disk that is away for long, a file that was changed
// in between, or lack of memory. Some variables then have their new values and some their old ones, and the error says
// so: whoever gets it restores again.
void restore_variables(VariableStore& store, const LocalDevices& devices, const std::string& checkpoint,
                       const std::vector<StoredVariable>& variables, RestoreStage stage);

// The names of the variables in a checkpoint, as in StoredVariable::whole.
std::set<std::string> variables_in(const CheckpointIndex& index);

// The path without symbolic links. Throws Error{kPermissionDenied} if it is not below one of `roots`, or has "..".
struct PathUse {
  const char* things = "checkpoints";
  const char* allowed_by = "muster server --storage, LocalWorkerOptions::storage";
};
std::string path_below(const std::vector<std::string>& roots, const std::string& path, const PathUse& use = {});

}  // namespace muster

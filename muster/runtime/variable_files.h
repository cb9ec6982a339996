// Variables of a task in the files of a checkpoint.
#pragma once

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

// Writes the variables into a file of the task's own in `directory`. Each is as it is at one moment; writers do not
// wait. Throws Error{kNotFound} or {kFailedPrecondition} for a variable that is not there or has no value, and what
// write_shard() throws. Of rows on demand (row_table.h): those that were written, and the rule for the others.
std::vector<ShardEntry> save_variables(const VariableStore& store, const std::string& task,
                                       const std::string& directory, const std::vector<StoredVariable>& variables);

// Gives the variables the values that they have in the checkpoint, in however many parts they are there; makes those
// that are missing. Nothing is changed unless all of them can be read. Throws Error{kNotFound} for one that the
// checkpoint has not, Error{kInvalidArgument} for another shape or type, and what CheckpointReader throws.
void restore_variables(VariableStore& store, const LocalDevices& devices, const std::string& checkpoint,
                       const std::vector<StoredVariable>& variables);

// Throws Error{kPermissionDenied} if `path` is not below one of `roots`.
void check_below(const std::vector<std::string>& roots, const std::string& path);

}  // namespace muster

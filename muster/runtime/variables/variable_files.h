// Variables of a task in the files of a checkpoint.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "muster/io/checkpoint_index.h"
#include "muster/runtime/devices.h"
#include "muster/runtime/memory/memory_pool.h"
#include "muster/runtime/variables/variable_store.h"

namespace muster {

class CheckpointReader;

// A variable of a worker, or the part of one that it has, and where that belongs in a checkpoint.
struct StoredVariable {
  std::string name{};  // at the worker
  TensorSpec spec{};
  std::string device{};  // full name
  std::string whole{};   // the name in the checkpoint
  std::vector<int64_t> whole_sizes{};
  int64_t first_row = 0;
};

// How much of the machine a save takes.
enum class SavePace {
  kFull,    // somebody waits for it. It goes through the system's cache, where a restore finds it
  kBeside,  // what others do not want: a small share of the cores, and past the cache
};

// A save that is one of several, where later ones store only what has changed of large tables. All are of one `owner`,
// each has a `mark` of its own, and `base` is the mark of the one that this one is made on top of (0: of none). A part
// of a table is stored as a difference, the rows that have changed with their numbers (io/row_names.h), if
// - nothing but rows of it was written since the base, and the task remembers which (rows/changed_rows.h),
// - there are fewer than `most_differences` since it was stored as a whole,
// - together with this one they are at most half as large as that.
struct SaveSince {
  uint64_t owner = 0;  // 0: everything is stored as a whole
  uint64_t base = 0;
  uint64_t mark = 0;
  int64_t most_differences = 0;
  int64_t least_bytes = 0;  // of a table; smaller ones are stored as a whole
};

struct SaveOptions {
  SavePace pace = SavePace::kFull;
  SaveSince since{};
};

// What is asked for and what is in the files may come from a stranger: all of it is checked before it is used.

// Writes the variables into a file of the task's own in `directory`. Each is as it is at one moment, of a large one
// each piece; memory is needed for a few pieces, however large the variables are (variable_pieces.h). Throws
// Error{kNotFound} or {kFailedPrecondition} for a variable that is not there or has no value, Error{kInvalidArgument}
// for one that is not as `variables` says, and what write_shard() throws. Of rows on demand (row_table.h): those that
// were written, and the rule for the others.
std::vector<ShardEntry> save_variables(const VariableStore& store, const std::string& task,
                                       const std::string& directory, const std::vector<StoredVariable>& variables,
                                       const SaveOptions& options = {});

// The same of variables that the store need not have any more. `cells`: theirs.
using Cells = std::vector<std::shared_ptr<VariableCell>>;
std::vector<ShardEntry> save_variables(const Cells& cells, const std::string& task, const std::string& directory,
                                       const std::vector<StoredVariable>& variables, const SaveOptions& options);

// A restore over several tasks has two stages: all of them check, and if all can, all apply.
enum class RestoreStage {
  kCheck,  // reads everything, its sums included, and changes nothing: throws what kApply would throw
  kApply,  // reads again what was not staged, one variable after the other: memory is needed for one more, not for all
};

// What the first stage has read and checked, for the second one: as much as there is room for.
struct StagedValues {
  // In bytes: an eighth of what is free, since several tasks of a machine may restore at once.
  int64_t room = (usual_memory() - resident_memory()) / 8;
  std::string checkpoint{};
  std::map<std::string, at::Tensor> values{};
};

// Gives the variables the values that they have in the checkpoint, in however many parts they are there; makes those
// that are missing. Throws Error{kNotFound} for one that the checkpoint has not, Error{kInvalidArgument} for another
// shape or type, and what CheckpointReader throws. A variable has its old value or its new one, never half of it.
// Limit: kApply after a kCheck that went well can still fail for a disk that is away for long, a file that was changed
// in between, or lack of memory. Some variables then have their new values and some their old ones, and the error says
// so: whoever gets it restores again.
void restore_variables(VariableStore& store, const LocalDevices& devices, const std::string& checkpoint,
                       const std::vector<StoredVariable>& variables, RestoreStage stage,
                       StagedValues* staged = nullptr);

// Whether a checkpoint has a variable, as a tensor or by rows on demand, and the value that it has for it, with all
// rows. Throws as restore_variables().
bool has_variable(const CheckpointReader& reader, const std::string& variable);
at::Tensor value_in(const CheckpointReader& reader, const std::string& checkpoint, const StoredVariable& variable);

// The names of the variables in a checkpoint, as in StoredVariable::whole.
std::set<std::string> variables_in(const CheckpointIndex& index);

// The path without symbolic links. Throws Error{kPermissionDenied} if it is not below one of `roots`, or has "..".
struct PathUse {
  const char* things = "checkpoints";
  const char* allowed_by = "--storage of muster server and of muster run, LocalWorkerOptions::storage";
};
std::string path_below(const std::vector<std::string>& roots, const std::string& path, const PathUse& use = {});

}  // namespace muster

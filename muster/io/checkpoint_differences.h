// Checkpoints that store of large tables only the rows that have changed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "muster/io/checkpoint_index.h"

namespace muster {

// A checkpoint that is made on top of another one, its base, has links (hard ones) to the files of the base that it
// needs, beside those that its tasks have written: "shard-<task>.of-<step>.safetensors" is the file that <task> wrote
// at <step>. So it is whole by itself, whatever becomes of its base, and the files of a base are there as long as some
// checkpoint needs them. Rows that have changed are called as row_names.h says.

// Links all files of the checkpoint at `path` into `temporary`. False if that cannot be, since the base is gone or the
// file system has no such links: then nothing is left there, and a whole checkpoint has to do.
bool link_base(const std::string& path, const CheckpointIndex& base, const std::string& temporary);

// All entries of the checkpoint for which the tasks have stored these into `temporary`, where link_base() has been.
// Removes the links that nobody needs. Throws Error{kFailedPrecondition} if the base has not what a difference needs.
std::vector<ShardEntry> on_top_of(const CheckpointIndex& base, std::vector<ShardEntry> stored,
                                  const std::string& temporary);

bool has_differences(const std::vector<ShardEntry>& entries);

// What is wrong, if something is: each difference needs those before it, and a part that was stored as a whole.
std::optional<std::string> complaint_about_differences(const std::vector<ShardEntry>& entries);

}  // namespace muster

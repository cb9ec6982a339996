#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "muster/graph/program.h"

namespace muster {

inline constexpr int kCheckpointVersion = 2;
inline constexpr int kVersionWithoutDifferences = 1;  // which those have that need no more (checkpoint_differences.h)

// Variables are cut along the first dimension. A scalar counts as one row.
int64_t rows_of(const std::vector<int64_t>& sizes);

// Some rows of one variable, and where in a checkpoint they are.
struct ShardEntry {
  std::string variable;
  TensorSpec spec;  // of the slice
  std::vector<int64_t> full_sizes;
  int64_t row_offset;
  std::string file;
  uint32_t crc;  // CRC-32C of the bytes

  // In the file: "w" when it is the whole variable, which is what Python should see, else "w[4:8]".
  std::string tensor_name() const;

  bool operator==(const ShardEntry&) const = default;
};

// What a checkpoint holds: the file index.json.
struct CheckpointIndex {
  int64_t step;
  std::map<std::string, std::string> metadata{};  // of the user
  std::vector<ShardEntry> entries{};
  std::map<std::string, int64_t> files{};  // how many bytes each has; CheckpointDirectory::commit() fills it in

  bool operator==(const CheckpointIndex&) const = default;
};

// What is wrong, if something is: a slice must lie inside its variable, and the slices of a variable must hold every
// row exactly once, and differences must have all that they are based on. Nothing else can be read back.
std::optional<std::string> complaint_about(const ShardEntry& entry);
std::optional<std::string> complaint_about(const CheckpointIndex& index);

// Ends with a checksum of all the rest.
std::string to_json(const CheckpointIndex& index);

// The text may come from a stranger. `name` says in errors what it is. Throws Error{kDataLoss} for a text that is
// damaged or about which there is a complaint, Error{kFailedPrecondition} for a version that is not ours.
CheckpointIndex checkpoint_index_from_json(std::string_view text, std::string_view name);

}  // namespace muster

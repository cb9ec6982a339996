#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "muster/graph/program.h"
#include "muster/io/checkpoint_index.h"
#include "muster/io/safetensors.h"

namespace muster {

// Reads the variables of one checkpoint, whole or any rows of them, whatever the shards were in which they were stored.
// Opens a file when something of it is first wanted, and checks the sum of a slice when it is first used.
// Invariant: bytes that are given out are of slices that had the right sum. Everything wrong with what is on the disk
// is an Error{kDataLoss} that names file and variable; a disk that cannot be read is not (file_error.h). Thread-safe.
class CheckpointReader {
 public:
  // `path` is that of one checkpoint, as in Checkpoint::path. Throws Error{kNotFound} when there is none.
  explicit CheckpointReader(std::string path);

  const CheckpointIndex& index() const { return index_; }
  std::vector<std::string> names() const;
  bool has(const std::string& variable) const { return shards_.contains(variable); }
  TensorSpec spec(const std::string& variable) const;  // of all of it; throws Error{kNotFound}

  // With the differences that there are of it (row_names.h): as it was when the checkpoint was made.
  // Fills `out`, which must be as large as these rows. A scalar is one row. Throws Error{kOutOfRange} for rows that the
  // variable does not have.
  void read(const std::string& variable, int64_t first_row, int64_t rows, std::span<std::byte> out) const;

  // Throws what read() of these rows would, without memory for them.
  void check(const std::string& variable, int64_t first_row, int64_t rows) const;

 private:
  using Shards = std::map<std::string, std::vector<const ShardEntry*>>;
  struct Difference {
    int64_t number;
    const ShardEntry* ids;
    const ShardEntry* rows;
    int64_t end;  // of the rows that the variable has
  };

  const std::vector<const ShardEntry*>& shards_of(const std::string& variable) const;
  // Calls `use(entry, begin, end)` for each slice that has some of these rows.
  template <class Use>
  void for_slices(const std::string& variable, int64_t first_row, int64_t rows, const Use& use) const;
  // Puts the rows that have changed in place; only looks at them if `out` is empty.
  void apply(const Difference& difference, int64_t first_row, int64_t rows, std::span<std::byte> out) const;
  // Bytes of a slice; the sum of all of it is checked if it was not before.
  void read_slice(const ShardEntry& entry, int64_t begin, std::span<std::byte> out) const;
  std::shared_ptr<const SafetensorsFile> file(const std::string& name) const;

  const std::string path_;
  const CheckpointIndex index_;
  Shards shards_;                                               // by variable, then by row
  std::map<std::string, std::vector<Difference>> differences_;  // by variable, then by number
  mutable absl::Mutex mu_;
  mutable std::map<std::string, std::shared_ptr<const SafetensorsFile>> files_ ABSL_GUARDED_BY(mu_);
  mutable std::set<const ShardEntry*> intact_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster

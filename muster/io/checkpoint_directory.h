#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "muster/graph/program.h"
#include "muster/io/checkpoint_index.h"
#include "muster/io/output_file.h"
#include "muster/io/remains.h"
#include "muster/io/tensor_pieces.h"

namespace muster {

inline constexpr const char* kIndexFile = "index.json";

// Some rows of a variable that a task is to store: contiguous, little-endian. The bytes are borrowed, or given piece by
// piece.
struct Slice {
  std::string variable;
  TensorSpec spec;  // of the slice
  std::vector<int64_t> full_sizes;
  int64_t row_offset;
  std::span<const std::byte> bytes{};
  TensorPieces pieces{};  // instead
};

// Stores the slices of one task in a file of its own in `temporary`, and gives what commit() wants to know of them. The
// file is on the disk when this returns; when it throws there is none. A disk that was away for a moment gets the whole
// file again. No slices: no file. A task stores once: the second time is Error{kAlreadyExists}.
std::vector<ShardEntry> write_shard(const std::string& temporary, std::string_view task,
                                    const std::vector<Slice>& slices,
                                    OutputFile::Cache cache = OutputFile::Cache::kPast);

struct Checkpoint {
  int64_t step;
  std::string path;

  bool operator==(const Checkpoint&) const = default;
};

// A directory of checkpoints, one per step. ckpt-<step>/ holds index.json and a file from each task that stored.
// Invariant: a ckpt-<step>/ appears all at once, by one rename of a temporary directory in which every file is already
// on the disk. Who is killed at any point leaves the checkpoints before as they were.
// Thread-safe, and so are several processes on one directory, if its file system has locks (flock).
// Limit: on a file system without locks, temporaries of the dead are never removed.
class CheckpointDirectory {
 public:
  explicit CheckpointDirectory(std::string path);
  ~CheckpointDirectory();
  CheckpointDirectory(const CheckpointDirectory&) = delete;
  CheckpointDirectory& operator=(const CheckpointDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string path_of(int64_t step) const;  // that its checkpoint has, if there is one

  // The directory itself, if it is not there: it and those above it stay after a power cut.
  void make() const;

  // A new temporary directory, into which every task stores with write_shard(). It ends with commit() or abandon(), or
  // is left to somebody's keep() when this is destroyed. Calls make().
  std::string begin(int64_t step);

  // Makes a temporary directory of begin() the checkpoint of its step, and gives its path. index.entries is all that
  // the tasks gave, in any order; index.files is filled in here. A checkpoint of the same step that is damaged, which
  // is found out by reading all of it, gives way: it is kept beside, as ckpt-<step>.damaged-<number>. Throws
  // Error{kInvalidArgument} when rows are missing or twice, Error{kDataLoss} when a file is not as its entries say,
  // Error{kAlreadyExists} when the step has a checkpoint, and what says that the disk fails. The temporary directory is
  // then as it was, unless only the last sync has failed: the checkpoint is there, but a power cut may take it.
  std::string commit(const std::string& temporary, CheckpointIndex index);

  // Removes a temporary directory of begin(). Nothing happens when it was committed.
  void abandon(const std::string& temporary);

  // Complete are those with an index in order and files of the right sizes. What is in the files is checked when it is
  // read, for that takes time. The damaged are left out, with a line in the log that says what is wrong with them.
  // Throws what says that one cannot be read now, or not by us: that says nothing about what is in it.
  std::optional<Checkpoint> latest() const;
  std::optional<CheckpointIndex> latest_index() const;  // of that one
  std::vector<Checkpoint> all() const;                  // by step
  std::vector<Checkpoint> present() const;              // by step, complete or not

  // Throws Error{kNotFound} when there is none, Error{kDataLoss} when it is damaged.
  CheckpointIndex index(int64_t step) const;

  // Removes what is older than the newest `count` complete checkpoints, at least one, and what killed writers left. One
  // that cannot be read now does not count, and `always` stays: whoever has gone back has just written an old one.
  void keep(int count, std::optional<int64_t> always = std::nullopt);
  // The same, but when it returns they only have other names, which nobody takes for checkpoints: their files are
  // removed meanwhile, and who destroys this waits for that. Who is killed leaves them to the next keep().
  // `seen` is given the steps that were there before, complete or not, of the same look at the directory.
  using Seen = std::function<void(const std::vector<int64_t>&)>;
  void keep_and_remove_later(int count, std::optional<int64_t> always = std::nullopt, const Seen& seen = {});
  void wait_until_removed() { removal_.wait(); }

  // Does nothing when there is none.
  void remove(int64_t step);
  // What killed writers left, as keep() does, and nothing else.
  void remove_remains();

 private:
  struct Begun {
    int64_t step;
    int lock;  // a descriptor; held as long as somebody may write into the directory
  };

  std::vector<int64_t> steps() const;  // rising, complete or not
  // Gives those that are not kept other names; returns the directories that can be removed.
  std::vector<std::string> retire(int count, std::optional<int64_t> always, const Seen& seen);
  // Of killed writers, among the names in the directory; under names from which nobody takes them for anything else.
  std::vector<std::string> remains_among(const std::vector<std::string>& names) const;
  // First the name, so that a kill does not leave half a checkpoint under it. Gives the new one; nothing when there was
  // no such checkpoint.
  std::optional<std::string> put_away(int64_t step);
  std::optional<CheckpointIndex> index_unless_damaged(int64_t step) const;  // with a line in the log if it is
  Begun begun(const std::string& temporary) const;
  void end(const std::string& temporary);

  const std::string path_;
  mutable absl::Mutex mu_;
  std::map<std::string, Begun> begun_ ABSL_GUARDED_BY(mu_);  // by path
  BackgroundRemoval removal_;
};

// The index of the checkpoint at `path`. Throws as CheckpointDirectory::index() does.
CheckpointIndex read_checkpoint_index(const std::string& path);

}  // namespace muster

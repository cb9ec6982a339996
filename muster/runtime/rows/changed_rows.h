// Which rows of a table have changed, for whoever saves only those.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <cstdint>
#include <list>
#include <memory>
#include <optional>

#include "muster/runtime/rows/row_set.h"

namespace muster {

// Remembers the rows that were written since each of the last saves that may be a base for another one. Row ops
// (row_ops.h) note the rows that they write; whoever writes in another way notes all. It hangs at the memory of the
// table while that is written. Thread-safe. A bit for each row and save, of which there are at most kMost.
class ChangedRows {
 public:
  static constexpr size_t kMost = 4;

  // What has become of a table since a save.
  struct Since {
    RowSet rows;
    bool all = false;              // never mind the rows
    int64_t differences = 0;       // that were saved since it was saved as a whole,
    int64_t difference_bytes = 0;  // how large they are together
    int64_t whole_bytes = 0;       // and the whole
  };

  explicit ChangedRows(int64_t rows) : rows_(rows) {}

  void add(const int64_t* rows, int64_t count) ABSL_LOCKS_EXCLUDED(mu_);
  void add_all() ABSL_LOCKS_EXCLUDED(mu_);

  // `owner` saves now, and calls that `mark`. Gives what has changed since its save `base`; nothing if that is not
  // known. Those of its saves that are neither are forgotten. REQUIRES: nobody writes to the table.
  std::optional<Since> begin_save(uint64_t owner, uint64_t base, uint64_t mark) ABSL_LOCKS_EXCLUDED(mu_);
  // What was then saved, as in Since.
  void note_save(uint64_t owner, uint64_t mark, int64_t differences, int64_t difference_bytes, int64_t whole_bytes)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Those of the table that has this memory; null if there are none.
  static ChangedRows* of(const at::Tensor& table);
  // From now on `changed` are those of this table. REQUIRES: it is on the CPU, and nobody else has its memory.
  static void attach(const at::Tensor& table, std::shared_ptr<ChangedRows> changed);

 private:
  struct Save {
    uint64_t owner, mark;
    Since since;
  };

  const int64_t rows_;
  absl::Mutex mu_;
  std::list<Save> saves_ ABSL_GUARDED_BY(mu_);  // the oldest first
};

}  // namespace muster

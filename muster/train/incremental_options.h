#pragma once

#include <cstdint>

namespace muster {

// Checkpoints that store of large tables only the rows that have changed since the one before. Each is whole all the
// same, since it has links to the files of those before that it needs: they may be removed, and any of them restored.
// Where the file system has no hard links, all are stored as a whole, and so is what was written in another way than by
// rows, and everything in the first one after a start or a restore.
struct IncrementalOptions {
  // A table is stored as a whole again after so many differences, and sooner if they would be more than half of it.
  int most_differences = 10;
  int64_t least_bytes = 16 << 20;  // smaller tables are always stored as a whole; of the part that a server has
};

}  // namespace muster

// The memory of other processes of this machine.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace muster {

// False where MUSTER_NEAR_MEMORY=off says that tensors are to be sent.
bool near_memory_wanted();

struct NearPiece {
  void* here;
  uint64_t there;
  size_t bytes;
};

// Copies the pieces, one after the other, out of process `from`. False: it has gone, this process may not read it, or
// it has no such memory. Whose number `from` is, its caller must know: see NearProcess.
bool read_memory(pid_t from, const std::vector<NearPiece>& pieces);

}  // namespace muster

// The memory of other processes of this machine.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace muster {

// The same for processes that can name each other by their process ids: a boot of a machine and a name space in it.
// Empty where that cannot be found out, and where MUSTER_NEAR_MEMORY=off says that tensors are to be sent.
const std::string& machine_name();

struct NearPiece {
  void* here;
  uint64_t there;
  size_t bytes;
};

// Copies the pieces, one after the other, out of process `from`. False: it has gone, this process may not read it, or
// it has no such memory.
bool read_memory(pid_t from, const std::vector<NearPiece>& pieces);

bool write_word(pid_t to, uint64_t there, uint64_t word);

}  // namespace muster

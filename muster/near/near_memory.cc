#include "muster/near/near_memory.h"

#include <sys/uio.h>

#include <algorithm>

#include "muster/base/blocking.h"
#include "muster/runtime/switched_on.h"

namespace muster {
namespace {

constexpr size_t kMostPieces = 512;        // of one system call; the kernel takes 1024
constexpr size_t kVeryLongCopy = 8 << 20;  // bytes: milliseconds, for which somebody has to read the network

}  // namespace

bool near_memory_wanted() {
  static const bool wanted = switched_on("MUSTER_NEAR_MEMORY");
  return wanted;
}

bool read_memory(pid_t from, const std::vector<NearPiece>& pieces) {
  size_t all = 0;
  for (const NearPiece& piece : pieces) all += piece.bytes;
  if (all > kVeryLongCopy) {
    about_to_block();
  } else if (all > kLongCopy) {
    about_to_take_long();
  }
  std::vector<iovec> here, there;
  for (size_t next = 0; next < pieces.size();) {
    here.clear();
    there.clear();
    size_t expected = 0;
    for (; next < pieces.size() && here.size() < kMostPieces; ++next) {
      const NearPiece& piece = pieces[next];
      here.push_back({piece.here, piece.bytes});
      there.push_back({reinterpret_cast<void*>(piece.there), piece.bytes});
      expected += piece.bytes;
    }
    // One call copies 2 GiB at most.
    for (size_t first = 0; expected > 0;) {
      const ssize_t got = ::process_vm_readv(from, here.data() + first, here.size() - first, there.data() + first,
                                             there.size() - first, 0);
      if (got <= 0) return false;
      expected -= got;
      for (size_t left = got; left > 0;) {
        const size_t part = std::min(left, here[first].iov_len);
        for (iovec* end : {&here[first], &there[first]}) {
          end->iov_base = static_cast<char*>(end->iov_base) + part;
          end->iov_len -= part;
        }
        left -= part;
        if (here[first].iov_len == 0) ++first;
      }
    }
  }
  return true;
}

}  // namespace muster

// The different ones among many ids.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace muster::rows {

// A table from ids to numbers; as large as needed, and kept by its thread for the next one, which does not clear it: an
// entry is of the use that has written it. For one thread, and one at a time there.
class IdNumbers {
 public:
  explicit IdNumbers(int64_t ids) {
    const size_t wanted = std::bit_ceil(static_cast<size_t>(std::max<int64_t>(2 * ids, 16)));
    Kept& mine = kept();
    if (mine.entries.size() < wanted || ++mine.use == 0) {
      mine.entries.assign(std::max(wanted, mine.entries.size()), Entry{});
      mine.use = 1;
    }
    entries_ = mine.entries.data();
    use_ = mine.use;
    mask_ = wanted - 1;
  }
  IdNumbers(const IdNumbers&) = delete;
  IdNumbers& operator=(const IdNumbers&) = delete;

  // The number of `id`; `next` if it is new.
  int32_t number(int64_t id, int32_t next) {
    size_t slot = (static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15ULL >> 20) & mask_;
    while (true) {
      Entry& entry = entries_[slot];
      if (entry.use != use_) {
        entry = {id, use_, next};
        return next;
      }
      if (entry.id == id) return entry.number;
      slot = (slot + 1) & mask_;
    }
  }

 private:
  struct Entry {
    int64_t id = 0;
    uint32_t use = 0;
    int32_t number = 0;
  };
  struct Kept {
    std::vector<Entry> entries;
    uint32_t use = 0;
  };
  static Kept& kept() {
    thread_local Kept kept;
    return kept;
  }

  Entry* entries_;
  uint32_t use_;
  size_t mask_;
};

}  // namespace muster::rows

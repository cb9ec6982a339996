// The different ones among many ids.
#pragma once

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace muster::rows {

// A table from ids to numbers, as large as needed. One of usual size is kept by its thread for the next one, which does
// not clear it: an entry is of the use that has written it. A larger one is memory of the run, as that of a tensor is,
// and goes when it is done. For one thread, and one at a time there.
class IdNumbers {
 public:
  static constexpr size_t kMostKept = 1 << 20;  // entries

  explicit IdNumbers(int64_t ids) {
    const size_t wanted = std::bit_ceil(static_cast<size_t>(std::max<int64_t>(2 * ids, 16)));
    shift_ = 64 - std::countr_zero(wanted);
    mask_ = wanted - 1;
    if (wanted > kMostKept) {
      own_ = c10::GetCPUAllocator()->allocate(wanted * sizeof(Entry));
      std::memset(own_.get(), 0, wanted * sizeof(Entry));
      entries_ = static_cast<Entry*>(own_.get());
      use_ = 1;
      return;
    }
    Kept& mine = kept();
    make_room(mine, wanted);
    entries_ = mine.entries.data();
    use_ = mine.use;
  }
  IdNumbers(const IdNumbers&) = delete;
  IdNumbers& operator=(const IdNumbers&) = delete;

  // The number of `id`; `next` if it is new.
  int32_t number(int64_t id, int32_t next) {
    size_t slot = slot_of(id, shift_);
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

  // Where an id has its place in a table of 2^(64 - shift) entries, if nobody else has it. The upper bits of a product
  // depend on all bits below them; the second one is for ids of which only the upper bits differ.
  static size_t slot_of(int64_t id, int shift) {
    constexpr uint64_t kOdd = 0x9E3779B97F4A7C15ULL;
    uint64_t bits = static_cast<uint64_t>(id) * kOdd;
    bits = (bits ^ bits >> 32) * kOdd;
    return static_cast<size_t>(bits >> shift);
  }

  static size_t kept_here() { return kept().entries.size(); }  // entries, by this thread

 private:
  struct Entry {
    int64_t id = 0;
    uint32_t use = 0;
    int32_t number = 0;
  };
  struct Kept {
    std::vector<Entry> entries;
    uint32_t use = 0;
    int too_large = 0;  // for so many uses, one after the other
  };
  static Kept& kept() {
    thread_local Kept kept;
    return kept;
  }

  // What was needed once is not held for ever.
  static void make_room(Kept& mine, size_t wanted) {
    constexpr size_t kFar = 8;
    constexpr int kPatience = 64;
    mine.too_large = mine.entries.size() / kFar > wanted ? mine.too_large + 1 : 0;
    if (mine.entries.size() < wanted || mine.too_large > kPatience) {
      mine = {.entries = std::vector<Entry>(wanted), .use = 1};
    } else if (++mine.use == 0) {
      std::fill(mine.entries.begin(), mine.entries.end(), Entry{});
      mine.use = 1;
    }
  }

  c10::DataPtr own_;
  Entry* entries_;
  uint32_t use_;
  int shift_;
  size_t mask_;
};

}  // namespace muster::rows

#include "muster/runtime/memory/small_memory.h"

#include <c10/core/impl/alloc_cpu.h>

#include <array>
#include <cstdint>

namespace muster {
namespace {

struct Kept {
  std::array<void*, SmallMemory::kMostOfASize> blocks;
  size_t count;
};
enum class Phase : uint8_t { kUnused, kInUse, kOver };
// Without destructors: tensors with static lifetime are freed when what a thread had of its own has gone.
thread_local std::array<Kept, SmallMemory::kLargest / SmallMemory::kUnit> kept_here;
thread_local Phase phase_here = Phase::kUnused;

struct AtThreadEnd {
  ~AtThreadEnd() {
    phase_here = Phase::kOver;
    for (Kept& kept : kept_here) {
      while (kept.count > 0) c10::free_cpu(kept.blocks[--kept.count]);
    }
  }
};

Kept* kept_of(size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
  return nullptr;  // it sees who uses memory that was freed
#endif
  if (bytes == 0 || bytes > SmallMemory::kLargest || bytes % SmallMemory::kUnit != 0) return nullptr;
  return &kept_here[bytes / SmallMemory::kUnit - 1];
}

}  // namespace

void* SmallMemory::take(size_t bytes) {
  Kept* const kept = kept_of(bytes);
  return kept == nullptr || kept->count == 0 ? nullptr : kept->blocks[--kept->count];
}

bool SmallMemory::keep(void* memory, size_t bytes) {
  Kept* const kept = kept_of(bytes);
  if (kept == nullptr || kept->count == kMostOfASize || phase_here == Phase::kOver) return false;
  if (phase_here == Phase::kUnused) {
    thread_local const AtThreadEnd at_end;
    (void)at_end;
    phase_here = Phase::kInUse;
  }
  kept->blocks[kept->count++] = memory;
  return true;
}

}  // namespace muster

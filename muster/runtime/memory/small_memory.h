// Memory for tensors of a few numbers.
#pragma once

#include <cstddef>

namespace muster {

// Whoever asks malloc for aligned memory has it search, cut and join its blocks each time, which takes longer than the
// arithmetic on a few numbers. So a thread keeps what it has freed for its next tensor of that size: at most
// kMostOfASize of each, and nothing for longer than it lives.
class SmallMemory {
 public:
  static constexpr size_t kUnit = 64;       // sizes are multiples of it
  static constexpr size_t kLargest = 1024;  // bytes
  static constexpr size_t kMostOfASize = 16;

  // Null: this thread has none of that size.
  static void* take(size_t bytes);
  // Memory of c10::alloc_cpu(). False: it is still the caller's.
  static bool keep(void* memory, size_t bytes);
};

}  // namespace muster

// Memory that one process writes and another one reads.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "muster/near/near_process.h"

namespace muster {

// A part of memory that two processes have in common, with how far its owner has read what the other one has sent.
class SharedMemory {
 public:
  static constexpr size_t kHead = 4096;  // bytes, before what is sent
  static constexpr size_t kRoom = size_t{16} << 20;

  // Memory of this process, which nobody else can write to, or make smaller. Empty where there can be none.
  static std::optional<SharedMemory> make();
  // What another process has made so, to be read. Empty: it is something else.
  static std::optional<SharedMemory> open(Descriptor of);
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept
      : descriptor_(std::move(other.descriptor_)), begin_(std::exchange(other.begin_, nullptr)) {}
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    std::swap(begin_, other.begin_);
    return *this;
  }

  const Descriptor& descriptor() const { return descriptor_; }
  char* room() const { return begin_ + kHead; }
  std::atomic<uint64_t>& read_so_far() const { return *reinterpret_cast<std::atomic<uint64_t>*>(begin_); }

 private:
  SharedMemory(Descriptor descriptor, char* begin) : descriptor_(std::move(descriptor)), begin_(begin) {}

  Descriptor descriptor_;
  char* begin_;
};

// What two processes send each other in memory, used in the order in which it was put there and around again. Each
// writes to its own and says there how far it has read the other one's. Thread-safe.
class NearTrays {
 public:
  NearTrays(SharedMemory ours, SharedMemory theirs) : ours_(std::move(ours)), theirs_(std::move(theirs)) {}

  // Copies it. Where it is now; nothing if there is no room until the other one has read more. The other one is told of
  // places in the order in which they were given.
  std::optional<uint64_t> put(std::span<const char> bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // What the other one has put there; null if there is no such place. REQUIRES: `done_with` is called once for it.
  const char* find(uint64_t place, size_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  void done_with(uint64_t place) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const SharedMemory ours_, theirs_;

  absl::Mutex mu_;
  uint64_t put_ ABSL_GUARDED_BY(mu_) = 0;  // bytes so far, with those left out at the end of the room
  struct Piece {
    uint64_t end;
    bool in_use;
  };
  std::map<uint64_t, Piece> pieces_ ABSL_GUARDED_BY(mu_);  // of theirs that were found, by place
};

}  // namespace muster

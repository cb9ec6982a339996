#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

namespace muster {

// How many bytes the calls of a server hold at the same time, by what they say before anything of that is taken. Who
// would be one too many waits its turn, first come, first served; a call that is larger than all that may be held waits
// until it is alone. Those that are inside may wait for one that is not: when nothing has ended for long, the first of
// these is let in. Thread-safe; nothing waits.
class ByteGate : public std::enable_shared_from_this<ByteGate> {
 public:
  explicit ByteGate(int64_t most, std::chrono::milliseconds patience = std::chrono::seconds(10))
      : most_(most), patience_(patience) {}

  // Ends what it has taken. Movable; empty: it has taken nothing.
  class Hold {
   public:
    Hold() = default;
    Hold(std::shared_ptr<ByteGate> gate, int64_t bytes) : gate_(std::move(gate)), bytes_(bytes) {}
    Hold(Hold&& other) noexcept : gate_(std::move(other.gate_)), bytes_(std::exchange(other.bytes_, 0)) {}
    Hold& operator=(Hold&& other) noexcept {
      std::swap(gate_, other.gate_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Hold() {
      if (gate_) gate_->end(bytes_);
    }

    int64_t bytes() const { return bytes_; }

   private:
    std::shared_ptr<ByteGate> gate_{};
    int64_t bytes_ = 0;
  };
  using Enter = std::function<void(Hold)>;

  // What was taken, if there is room; else `enter` is called with it, on a thread that makes some, which it must not
  // keep. Callers may say anything: it counts as a byte at least, and as a PiB at most. REQUIRES: this is held by a
  // shared_ptr.
  std::optional<Hold> take(int64_t said, Enter enter) ABSL_LOCKS_EXCLUDED(mu_);
  // To be called now and then: lets in whoever has waited for too long.
  void look() ABSL_LOCKS_EXCLUDED(mu_);

  int64_t held() const ABSL_LOCKS_EXCLUDED(mu_);
  size_t waiting() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Waiting {
    int64_t bytes;
    Enter enter;
  };

  void end(int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // The next one that may enter, if there is one, counted as inside. `late`: whatever is inside.
  bool next(bool late, Waiting& found) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int64_t most_;
  const std::chrono::milliseconds patience_;
  mutable absl::Mutex mu_;
  int64_t held_ ABSL_GUARDED_BY(mu_) = 0;
  std::chrono::steady_clock::time_point moved_ ABSL_GUARDED_BY(mu_) = std::chrono::steady_clock::now();
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster

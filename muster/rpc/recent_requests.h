#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_map.h>
#include <absl/synchronization/mutex.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "muster/rpc/frame.h"

namespace muster {

// Remembers the answers to requests that must be applied once, so that who asks again, because the answer was lost,
// gets the same answer. Invariant: of the requests that are remembered, none runs twice. Thread-safe; waiters are
// called with no lock held.
class RecentRequests {
 public:
  // `most` requests, with answers of `most_bytes` together; the oldest are forgotten first.
  RecentRequests(size_t most, int64_t most_bytes) : most_(most), most_bytes_(most_bytes) {}

  using Waiter = std::function<void(const Status&, const Frame&)>;

  // True: the caller runs the request and calls `finish`. False: it was begun before, and `waiter` is or will be called
  // with its answer; kAborted if that was too large to keep. 0 is always new and never remembered.
  bool begin(uint64_t id, Waiter waiter) ABSL_LOCKS_EXCLUDED(mu_);
  void finish(uint64_t id, const Status& status, const Frame& answer) ABSL_LOCKS_EXCLUDED(mu_);

  size_t size() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Request {
    bool done = false;
    bool kept = true;
    Status status{};
    Frame answer{};
    int64_t bytes = 0;
    std::vector<Waiter> waiters{};
  };

  void forget_old() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const size_t most_;
  const int64_t most_bytes_;

  mutable absl::Mutex mu_;
  absl::flat_hash_map<uint64_t, Request> requests_ ABSL_GUARDED_BY(mu_);
  std::deque<uint64_t> order_ ABSL_GUARDED_BY(mu_);  // of those that are done
  int64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace muster

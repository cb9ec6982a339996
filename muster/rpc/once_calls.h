#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_map.h>
#include <absl/synchronization/mutex.h>

#include <chrono>
#include <deque>
#include <memory>

#include "muster/base/deadline_timer.h"
#include "muster/rpc/recent_requests.h"

namespace muster {

class RpcCall;

struct OnceCallsOptions {
  size_t remembered_requests;
  int64_t remembered_bytes;
  std::chrono::milliseconds grace;  // that a request runs on when nobody waits for it any more
};

// The calls that must be applied once. Who is cut off from one asks again and gets its answer, so a lost connection
// does not end the run; only a grace period without any caller does, or the callers' deadline, or that they cancel it.
// Thread-safe. Outlives its runs until they have answered.
class OnceCalls {
 public:
  explicit OnceCalls(OnceCallsOptions options);
  ~OnceCalls();

  // What to run in place of `call`; nothing if its request was begun before, and `call` gets the answer of that.
  std::shared_ptr<RpcCall> begin(uint64_t id, std::shared_ptr<RpcCall> call) ABSL_LOCKS_EXCLUDED(mu_);
  // Now, or when it comes: a caller's words may overtake each other. REQUIRES: `why` is not ok.
  void cancel(uint64_t id, const Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Also those that still come.
  void cancel_all(const Status& why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Run;

  std::shared_ptr<Run> find(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  void forget(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);

  const OnceCallsOptions options_;
  RecentRequests recent_;

  absl::Mutex mu_;
  absl::flat_hash_map<uint64_t, std::weak_ptr<Run>> runs_ ABSL_GUARDED_BY(mu_);
  // Lately, before they had begun.
  absl::flat_hash_map<uint64_t, Status> cancelled_ ABSL_GUARDED_BY(mu_);
  std::deque<uint64_t> cancelled_order_ ABSL_GUARDED_BY(mu_);
  Status all_cancelled_ ABSL_GUARDED_BY(mu_);  // not ok: they are
  DeadlineTimer timer_;
};

}  // namespace muster

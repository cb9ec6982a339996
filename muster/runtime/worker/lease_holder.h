// The owner's side of its leases.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "muster/base/deadline_timer.h"
#include "muster/runtime/worker/owner.h"

namespace muster {

class Peers;

// Calls its users again and again, each after as long as it wishes for: one thread for all owners of this process.
// Thread-safe.
class LeaseKeeper {
 public:
  // The one of this process, which ends with its last user.
  static std::shared_ptr<LeaseKeeper> shared();
  LeaseKeeper();
  ~LeaseKeeper();

  // Returns when it wants to be called next. Must be short. Runs on the keeper's thread, with no lock held.
  using Renew = std::function<std::chrono::milliseconds()>;
  // Calls it at once for the first time.
  uint64_t add(Renew renew) ABSL_LOCKS_EXCLUDED(mu_);
  void call_now(uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);
  // It is not running and will not run. REQUIRES: not called by a `renew`.
  void remove(uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Clock = std::chrono::steady_clock;
  struct User {
    Clock::time_point due;
    std::shared_ptr<const Renew> renew;
  };

  void work() ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  SteadyCondVar changed_;
  std::map<uint64_t, User> users_ ABSL_GUARDED_BY(mu_);
  uint64_t next_ ABSL_GUARDED_BY(mu_) = 1;
  uint64_t running_ ABSL_GUARDED_BY(mu_) = 0;  // 0: none
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::jthread thread_;  // last: it uses all of the above
};

// Until it knows how long a task waits.
inline constexpr std::chrono::milliseconds kUsualLease{60'000};
// How long after a renewal the next one follows: two may be lost.
inline std::chrono::milliseconds renewal_after(std::chrono::milliseconds lease) { return lease / 3; }

// Renews the leases of one owner at the tasks where it has something. Thread-safe.
class LeaseHolder {
 public:
  // `peers` outlives this.
  LeaseHolder(Lease lease, Peers& peers);
  // Stops renewing.
  ~LeaseHolder();
  LeaseHolder(const LeaseHolder&) = delete;
  LeaseHolder& operator=(const LeaseHolder&) = delete;

  const Owner& owner() const;
  // Before the first thing is left at the task: waits for its answer, if it is there. Later calls do nothing.
  void hold_at(const std::string& task);
  // Drops all that is left anywhere, and waits for that; what cannot be reached drops it in time.
  void release();

 private:
  struct State;
  const std::shared_ptr<State> state_;
  absl::Mutex mu_;
  // From the first task on.
  std::shared_ptr<LeaseKeeper> keeper_ ABSL_GUARDED_BY(mu_);
  uint64_t number_ ABSL_GUARDED_BY(mu_) = 0;  // at the keeper
};

}  // namespace muster

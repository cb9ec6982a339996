// Replicas that wait for each other while they are traced.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <exception>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "muster/trace/thread_state.h"

namespace muster {

// Calls one function several times, so that the calls can meet on their way: of all of them one runs at a time, the
// first on the thread of the caller, and one after the other as long as nobody asks to meet. From then on the others
// have threads of their own, which begin in the scopes that the caller is in.
class ReplicaTurns {
 public:
  // `leave` and `arrive` are called on the thread of a call, when its turn ends and when it goes on.
  using Change = std::function<void(int call)>;
  ReplicaTurns(int count, Change leave, Change arrive)
      : count_(count), leave_(std::move(leave)), arrive_(std::move(arrive)) {}
  ReplicaTurns(const ReplicaTurns&) = delete;
  ReplicaTurns& operator=(const ReplicaTurns&) = delete;

  // Returns when all calls have ended. Throws what the first that failed has thrown; the others end, too.
  void run(const std::function<void(int call)>& function) ABSL_LOCKS_EXCLUDED(mu_);

  // Asked by call number `call` itself: returns when the calls after it have come to meet() or to their end, and then
  // those before it.
  void meet(int call) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Abandoned : std::exception {};  // unwinds a call that nobody waits for any more

  void begin_others() ABSL_LOCKS_EXCLUDED(mu_);
  void call_in_turn(int call) ABSL_LOCKS_EXCLUDED(mu_);
  void call_now(int call) ABSL_LOCKS_EXCLUDED(mu_);
  void pass_on(int call) ABSL_LOCKS_EXCLUDED(mu_);
  void await(int call) ABSL_LOCKS_EXCLUDED(mu_);
  bool failed() const ABSL_LOCKS_EXCLUDED(mu_);

  const int count_;
  const Change leave_, arrive_;
  const std::function<void(int)>* function_ = nullptr;
  std::optional<std::pair<ThreadState, at::ThreadLocalState>> scopes_;  // of the caller
  std::vector<std::thread> others_;  // of the calls after the first, if they have met

  mutable absl::Mutex mu_;
  int turn_ ABSL_GUARDED_BY(mu_) = 0;
  int ended_ ABSL_GUARDED_BY(mu_) = 0;
  std::exception_ptr failure_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster

// How a process gets to know another one of its machine.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "muster/base/status.h"
#include "muster/near/near_connection.h"

namespace muster {

// The visitor's end of a NearDoor, for one channel to a task. Thread-safe; nothing waits.
class NearVisit : public std::enable_shared_from_this<NearVisit> {
 public:
  // Whom it visits: who says at the door that it is another task is not known from then on. Empty: whoever is there.
  explicit NearVisit(std::string task) : task_(std::move(task)) {}

  using Answered = std::function<void(const Status&, const std::string& door)>;
  // Asks the task for the name of its door, or, `knocked`, to look who is there.
  using Ask = std::function<void(bool knocked, Answered)>;

  bool unmet() const { return state_.load(std::memory_order_acquire) == State::kUnmet; }
  // Meets the task, in the background, unless that was done; `ask` makes the calls and owns what it needs for that.
  void meet(const Ask& ask) ABSL_LOCKS_EXCLUDED(mu_);
  // Null: not met, or not of this machine.
  std::shared_ptr<NearConnection> connection() const ABSL_LOCKS_EXCLUDED(mu_);
  // Met, and not of this machine, or nothing can be read.
  bool apart() const { return state_.load(std::memory_order_acquire) == State::kMet && !connection(); }
  // The task was restarted and knows nothing of the key: to be met anew.
  void forget(uint64_t key) ABSL_LOCKS_EXCLUDED(mu_);
  // What was lent could not be read, for a reason that may come again: to be met anew, a few times.
  void distrust(uint64_t key) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  enum class State { kUnmet, kMeeting, kMet };

  void knock(const Ask& ask, const std::string& door);
  void enter(NearConnection::Parts parts);
  void met(std::shared_ptr<NearConnection> connection) ABSL_LOCKS_EXCLUDED(mu_);
  void failed() ABSL_LOCKS_EXCLUDED(mu_);
  void count_failure() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string task_;
  mutable absl::Mutex mu_;
  std::atomic<State> state_ = State::kUnmet;  // changes under mu_
  std::shared_ptr<NearConnection> connection_ ABSL_GUARDED_BY(mu_);
  int failures_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace muster

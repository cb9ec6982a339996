// How two processes of one machine get to lend each other tensors.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_map.h>
#include <absl/synchronization/mutex.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "muster/base/status.h"
#include "muster/rpc/rpc.pb.h"

namespace muster {

// What one end of a connection knows of the process at the other end.
struct NearPeer {
  uint64_t id = 0;  // of the acquaintance; 0: none
  pid_t process = 0;
  bool we_read = false;  // this process can read the other's memory
  bool they_read = false;
};

// A process proves that it is the one it says to be by showing, in its memory, a number that the other one has just
// thought of: nobody can make a server read the memory of a third process. Two round trips, once per connection.

// The server's end. Thread-safe.
class Acquaintances {
 public:
  proto::MeetAnswer meet(const proto::MeetRequest& request) ABSL_LOCKS_EXCLUDED(mu_);
  NearPeer find(uint64_t id) const ABSL_LOCKS_EXCLUDED(mu_);  // with id 0 if it is not known

 private:
  struct Meeting {
    uint64_t id = 0;
    uint64_t question = 0;
  };

  mutable absl::Mutex mu_;
  std::deque<Meeting> meetings_ ABSL_GUARDED_BY(mu_);  // of which the second message has not come
  absl::flat_hash_map<uint64_t, NearPeer> known_ ABSL_GUARDED_BY(mu_);
  std::deque<uint64_t> order_ ABSL_GUARDED_BY(mu_);  // of `known_`; the oldest are forgotten first
};

// The client's end, of one channel. Thread-safe.
class Acquaintance : public std::enable_shared_from_this<Acquaintance> {
 public:
  using Answered = std::function<void(const Status&, const proto::MeetAnswer&)>;
  using Ask = std::function<void(const proto::MeetRequest&, Answered)>;

  bool unmet() const { return state_.load(std::memory_order_acquire) == State::kUnmet; }
  // Meets the server, in the background, unless that was done; `ask` makes the calls and owns what it needs for that.
  void meet(const Ask& ask) ABSL_LOCKS_EXCLUDED(mu_);
  NearPeer peer() const ABSL_LOCKS_EXCLUDED(mu_);
  // The server was restarted and knows nothing of `id`: to be met anew.
  void forget(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  // What was lent could not be read, for a reason that may come again: to be met anew, a few times.
  void distrust(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  enum class State { kUnmet, kMeeting, kMet };

  void answered(const Ask& ask, uint64_t question, const proto::MeetAnswer& answer);
  void met(const NearPeer& peer) ABSL_LOCKS_EXCLUDED(mu_);
  void failed() ABSL_LOCKS_EXCLUDED(mu_);
  void count_failure() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  std::atomic<State> state_ = State::kUnmet;  // changes under mu_
  NearPeer peer_ ABSL_GUARDED_BY(mu_);
  int failures_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace muster

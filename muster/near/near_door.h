// Where other processes of this machine come to be known.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_map.h>
#include <absl/synchronization/mutex.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "muster/near/near_connection.h"

namespace muster {

// A Unix socket that listens, and the processes that have come. It has no thread: whoever has knocked says so in a call
// of another kind, and is let in by that. Thread-safe; nothing waits.
class NearDoor {
 public:
  explicit NearDoor(std::string task);
  ~NearDoor();  // a moment after all that is lent has come back: somebody may be copying it
  NearDoor(const NearDoor&) = delete;
  NearDoor& operator=(const NearDoor&) = delete;

  // Of the socket, which is opened by the first who asks. Empty where there can be none.
  std::string name() ABSL_LOCKS_EXCLUDED(mu_);
  // Lets in who has knocked.
  void look() ABSL_LOCKS_EXCLUDED(mu_);
  // The one that was given the key; null if there is none.
  std::shared_ptr<NearConnection> find(uint64_t key) ABSL_LOCKS_EXCLUDED(mu_);
  // Lets go of what was given back, and of what nobody has given back for long. Costs nothing when nothing is lent.
  void collect() ABSL_LOCKS_EXCLUDED(mu_);

  int64_t lent() const { return lent_->load(std::memory_order_acquire); }

 private:
  using Clock = std::chrono::steady_clock;
  // Somebody of whom not all is known yet.
  struct Visitor {
    NearConnection::Parts parts;
    bool greeted = false;
  };
  enum class Step { kWaits, kGoes, kEnters };

  void open() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void let_in() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Step advance(Visitor& visitor) const;
  void receive_returns() ABSL_LOCKS_EXCLUDED(mu_);

  const std::string task_;
  const std::shared_ptr<LoanLedger::Count> lent_ = std::make_shared<LoanLedger::Count>(0);
  const Descriptor watched_;  // an epoll of the sockets of those who are known

  absl::Mutex mu_;
  bool opened_ ABSL_GUARDED_BY(mu_) = false;
  Descriptor listener_ ABSL_GUARDED_BY(mu_);
  std::string name_ ABSL_GUARDED_BY(mu_);
  std::vector<Visitor> visitors_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<NearConnection>> known_ ABSL_GUARDED_BY(mu_);
  Clock::time_point swept_ ABSL_GUARDED_BY(mu_) = Clock::now();
};

}  // namespace muster

#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "muster/runtime/worker/worker.h"

namespace muster {

// Hands out the parts of a sequence to the workers that read it together, each once a round.
// Invariant: a part of a round that was begun is with somebody, left, or used. Thread-safe.
class PartDealer {
 public:
  PartsGiven answer(size_t worker, const PartsWanted& wanted) ABSL_LOCKS_EXCLUDED(mu_);
  // What it had and had not used is left for others.
  void lost(size_t worker) ABSL_LOCKS_EXCLUDED(mu_);

  // Which parts were used: as text, for set_position of another one. What was being read is read again.
  std::string position() const ABSL_LOCKS_EXCLUDED(mu_);
  // Throws Error{kInvalidArgument} for a text that is none. REQUIRES: nothing was handed out.
  void set_position(const std::string& position) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Round {
    std::deque<int64_t> left;  // to hand out, in order
    int64_t unused = 0;        // with those that somebody has
  };

  Round& round(int64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  PartsGiven give(size_t worker, const PartsWanted& wanted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  int64_t parts_ ABSL_GUARDED_BY(mu_) = -1;  // of a round; not known yet
  uint64_t which_ ABSL_GUARDED_BY(mu_) = 0;
  std::chrono::steady_clock::time_point last_change_ ABSL_GUARDED_BY(mu_) = std::chrono::steady_clock::now();
  std::map<int64_t, Round> rounds_ ABSL_GUARDED_BY(mu_);
  int64_t begun_ ABSL_GUARDED_BY(mu_) = 0;                            // rounds
  std::map<size_t, std::set<SourcePart>> held_ ABSL_GUARDED_BY(mu_);  // by worker
  std::map<size_t, int64_t> idle_ ABSL_GUARDED_BY(mu_);               // elements of those who work with none of theirs
  // Of a position: rounds that are over, and what was used of the next one.
  int64_t rounds_before_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t parts_before_ ABSL_GUARDED_BY(mu_) = -1;
  uint64_t which_before_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<int64_t> used_before_ ABSL_GUARDED_BY(mu_);
};

// Of what position() gave: how many parts a round has; nothing if nobody has opened the sequence yet.
std::optional<int64_t> parts_in(const std::string& position);
// Of the same sequence, the position at which the parts from `first` to before `end` are left, and no others.
std::string position_before_parts(const std::string& position, int64_t first, int64_t end);

// Hands out to one worker until that is stopped, or fails. No thread waits meanwhile.
class HandingOut : public std::enable_shared_from_this<HandingOut> {
 public:
  HandingOut(std::shared_ptr<PartDealer> dealer, std::shared_ptr<Worker> worker, uint64_t sequence, size_t index)
      : dealer_(std::move(dealer)), worker_(std::move(worker)), sequence_(sequence), index_(index) {}

  void begin() { answer({}); }
  void stop() { stopped_.cancel(); }

 private:
  void answer(const PartsGiven& given);

  const std::shared_ptr<PartDealer> dealer_;
  const std::shared_ptr<Worker> worker_;
  const uint64_t sequence_;
  const size_t index_;
  Cancellation stopped_;
};

}  // namespace muster

#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "muster/base/deadline_timer.h"
#include "muster/runtime/executor/parts.h"
#include "muster/runtime/worker/element_source.h"

namespace muster {

// One reader of a sequence whose parts are handed out: between the steps, which need the next part, and whoever hands
// them out, in another process. A part counts as used once all its elements have left the last step and the runs that
// took them have ended. Thread-safe.
class PartQueue {
 public:
  using CheckOpen = std::function<void()>;  // throws if nobody wants an answer any more

  // ---- For the source
  // `which`: as in PartsWanted.
  void set_parts(int64_t count, uint64_t which) ABSL_LOCKS_EXCLUDED(mu_);
  // The number of the next part, when it was handed out; nothing if this round is over. Throws what `check` throws, and
  // Error{kUnavailable} if nobody hands out.
  std::optional<int64_t> take(const CheckOpen& check) ABSL_LOCKS_EXCLUDED(mu_);
  void begin_round() ABSL_LOCKS_EXCLUDED(mu_);
  bool any_this_round() const ABSL_LOCKS_EXCLUDED(mu_);
  int64_t taken() const ABSL_LOCKS_EXCLUDED(mu_);  // parts, in all rounds

  // ---- For who takes elements
  // One has left, and with it all elements of the first `drained` parts that were taken.
  void returned(int64_t drained) ABSL_LOCKS_EXCLUDED(mu_);
  void used(int64_t elements) ABSL_LOCKS_EXCLUDED(mu_);
  // A run has one that another has given back: what was said of those that nobody works with is over.
  void taken_again() ABSL_LOCKS_EXCLUDED(mu_);
  // After the last element: whether there is more, since somebody was lost who had it. Throws others_still_read() as
  // long as that may be, if who asks may come back; else it waits.
  bool more_after_end(const Taking& how, const CheckOpen& check) ABSL_LOCKS_EXCLUDED(mu_);

  // ---- For who hands out
  // Answers the last request and calls `wanted` when there is another one, once. Returns a number for give_up, or 0 if
  // it was called already.
  uint64_t hand_out(const PartsGiven& given, PartsDone wanted) ABSL_LOCKS_EXCLUDED(mu_);
  void give_up(uint64_t waiter, const Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  void close() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  PartsGiven ask(const std::optional<Taking>& at_end, const CheckOpen& check) ABSL_LOCKS_EXCLUDED(mu_);
  PartsWanted request() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void forget_said() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  PartsWanted report() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  SteadyCondVar changed_;
  int64_t parts_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t which_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t round_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t before_round_ ABSL_GUARDED_BY(mu_) = 0;       // parts taken
  bool late_ ABSL_GUARDED_BY(mu_) = false;              // it has ended before, and reads what others have left
  std::vector<SourcePart> taken_ ABSL_GUARDED_BY(mu_);  // in the order in which they came
  size_t forgotten_ ABSL_GUARDED_BY(mu_) = 0;           // of those, from the front: they are used, and that is known
  // Elements that runs have, and what is used once they have ended.
  int64_t in_use_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t drained_ ABSL_GUARDED_BY(mu_) = 0, used_ ABSL_GUARDED_BY(mu_) = 0;

  int64_t asked_ ABSL_GUARDED_BY(mu_) = 0;  // requests
  int64_t said_ ABSL_GUARDED_BY(mu_) = 0;   // used parts, in the last request
  bool asks_ ABSL_GUARDED_BY(mu_) = false;  // it has no answer yet
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  int64_t idle_ ABSL_GUARDED_BY(mu_) = 0, needs_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<PartsGiven> answer_ ABSL_GUARDED_BY(mu_);  // not yet taken
  PartsDone waiter_ ABSL_GUARDED_BY(mu_);
  uint64_t waiters_ ABSL_GUARDED_BY(mu_) = 0;  // so far
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace muster

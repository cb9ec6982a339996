#include "muster/distribute/coordinator/closure_queue.h"

#include <absl/time/time.h>

#include <utility>

#include "muster/base/check.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

constexpr const char* kCancelledMessage =
    "The corresponding function is cancelled. Please reschedule the function.";  // TensorFlow's words

// What is left of a time to wait, by a clock that does not jump.
class TimeLeft {
 public:
  explicit TimeLeft(std::optional<std::chrono::milliseconds> timeout) : timeout_(timeout) {}
  absl::Duration operator()() const {
    return timeout_ ? absl::FromChrono(*timeout_ - (std::chrono::steady_clock::now() - begin_))
                    : absl::InfiniteDuration();
  }

 private:
  const std::optional<std::chrono::milliseconds> timeout_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace

ClosureQueue::ClosureQueue(ClosureQueueOptions options)
    : capacity_(options.capacity), on_put_(std::move(options.on_put)), cancellation_(std::make_shared<Cancellation>()) {
  if (capacity_ == 0) {
    MUSTER_LOG(warning) << "the closure queue has no capacity limit: a program that schedules faster than the workers "
                           "run will use up the memory";
  }
}

ClosureQueue::~ClosureQueue() { stop(Status(StatusCode::kCancelled, "the closure queue was destroyed")); }

void ClosureQueue::put(std::shared_ptr<Closure> closure) {
  const std::optional<int> tag = closure->tag;
  std::optional<Ending> ending;  // Optional, because an empty deque already owns memory.
  {
    absl::MutexLock lock(&mu_);
    if (closure->tag && stopped_.ok()) {
      put_tagged(std::move(closure), /*front=*/false);
    } else {
      while (draining() || (healthy() && full())) (draining() ? settled_changed_ : slot_free_).wait(mu_);
      if (healthy()) {
        put_global(std::move(closure), /*front=*/false);
      } else {
        ending = take_ending();
      }
    }
  }
  if (ending) {
    closure->cancelled(ending->why);
    raise(*ending);
  }
  if (on_put_) on_put_(tag);
}

std::shared_ptr<Closure> ClosureQueue::get(std::optional<int> tag, std::optional<std::chrono::milliseconds> timeout) {
  const TimeLeft left(timeout);
  absl::MutexLock lock(&mu_);
  while (stopped_.ok()) {
    if (std::shared_ptr<Closure> closure = take_one(tag)) return closure;
    // Looks once more after the deadline: the signal for a closure may have gone to this thread.
    if (!queued_changed_.wait_for(mu_, left())) return stopped_.ok() ? take_one(tag) : nullptr;
  }
  return nullptr;
}

size_t ClosureQueue::take(size_t share, std::optional<int> tag, std::vector<std::shared_ptr<Closure>>& into,
                          size_t most, std::chrono::nanoseconds worth) {
  std::chrono::nanoseconds expected{};
  absl::MutexLock lock(&mu_);
  size_t taken = 0;
  for (; taken < share || (taken < most && !global_.empty() && expected + global_.front()->expected <= worth);
       ++taken) {
    std::shared_ptr<Closure> closure = take_one(tag);
    if (!closure) break;
    expected += closure->expected;
    into.push_back(std::move(closure));
  }
  return taken;
}

void ClosureQueue::put_back(std::shared_ptr<Closure> closure) {
  const std::optional<int> tag = closure->tag;
  Status why;
  {
    absl::MutexLock lock(&mu_);
    leave_flight(*closure);
    if (!stopped_.ok()) {
      why = stopped_;
    } else if (closure->tag) {
      put_tagged(std::move(closure), /*front=*/true);
    } else if (!error_.ok()) {
      why = Status(StatusCode::kCancelled, kCancelledMessage);
    } else {
      put_global(std::move(closure), /*front=*/true);
    }
    if (settled()) settled_changed_.signal_all();
  }
  if (!why.ok()) {
    closure->cancelled(why);
  } else if (on_put_) {
    on_put_(tag);
  }
}

void ClosureQueue::mark_finished(const Closure& closure) {
  absl::MutexLock lock(&mu_);
  leave_flight(closure);
  if (settled()) settled_changed_.signal_all();
}

void ClosureQueue::mark_finished(size_t closures, bool tagged) {
  absl::MutexLock lock(&mu_);
  size_t& inflight = tagged ? inflight_tagged_ : inflight_;
  MUSTER_CHECK(inflight >= closures) << "a closure ends that is not in flight";
  inflight -= closures;
  if (settled()) settled_changed_.signal_all();
}

void ClosureQueue::mark_failed(const Closure& closure, Status why) {
  MUSTER_CHECK(!why.ok());
  std::shared_ptr<Cancellation> of_others;
  Closures dropped;
  Status cancelled;
  {
    absl::MutexLock lock(&mu_);
    check_inflight(closure);
    if (error_.ok()) {
      dropped.swap(global_);
      expected_ = 0;
      cancelled = Status(StatusCode::kCancelled, str_cat("another function failed: ", why.message()), why.task());
      error_ = std::move(why);
      note_available();
      of_others = cancellation_;
      slot_free_.signal_all();
    }
  }
  // Still in flight meanwhile, so that the error is not thrown before the others were told to end.
  if (of_others) of_others->cancel(std::move(cancelled));
  // At once: who waits for one of them would never come to ask for the error.
  for (const auto& queued : dropped) queued->cancelled(Status(StatusCode::kCancelled, kCancelledMessage));
  absl::MutexLock lock(&mu_);
  leave_flight(closure);
  if (settled()) settled_changed_.signal_all();
}

bool ClosureQueue::wait(std::optional<std::chrono::milliseconds> timeout) {
  const TimeLeft left(timeout);
  std::optional<Ending> ending;
  {
    absl::MutexLock lock(&mu_);
    while (!settled()) {
      if (!settled_changed_.wait_for(mu_, left()) && !settled()) return false;
    }
    if (!healthy()) ending = take_ending();
  }
  if (ending) raise(*ending);
  return true;
}

bool ClosureQueue::done() {
  std::optional<Ending> ending;
  {
    absl::MutexLock lock(&mu_);
    while (draining()) settled_changed_.wait(mu_);
    if (healthy()) return settled();
    ending = take_ending();
  }
  raise(*ending);
}

void ClosureQueue::drop_tagged(int tag, const Status& why) {
  Closures dropped;
  {
    absl::MutexLock lock(&mu_);
    if (auto found = tagged_.extract(tag)) dropped = std::move(found.mapped());
    queued_tagged_ -= dropped.size();
  }
  for (const std::shared_ptr<Closure>& closure : dropped) closure->cancelled(why);
}

void ClosureQueue::stop(Status why) {
  MUSTER_CHECK(!why.ok());
  Closures global;
  std::unordered_map<int, Closures> tagged;
  std::shared_ptr<Cancellation> cancellation;
  {
    absl::MutexLock lock(&mu_);
    if (!stopped_.ok()) return;
    stopped_ = why;
    global.swap(global_);
    tagged.swap(tagged_);
    queued_tagged_ = 0;
    expected_ = 0;
    note_available();
    cancellation = cancellation_;
    queued_changed_.signal_all();
    slot_free_.signal_all();
    settled_changed_.signal_all();
  }
  cancellation->cancel(why);
  for (const auto& closure : global) closure->cancelled(why);
  for (const auto& [tag, closures] : tagged) {
    for (const auto& closure : closures) closure->cancelled(why);
  }
}

bool ClosureQueue::stopped() const {
  absl::MutexLock lock(&mu_);
  return !stopped_.ok();
}

std::shared_ptr<Cancellation> ClosureQueue::cancellation() const {
  absl::MutexLock lock(&mu_);
  return cancellation_;
}

size_t ClosureQueue::queued() const {
  absl::MutexLock lock(&mu_);
  return global_.size();
}

size_t ClosureQueue::inflight() const {
  absl::MutexLock lock(&mu_);
  return inflight_;
}

void ClosureQueue::put_global(std::shared_ptr<Closure> closure, bool front) {
  expected_ += closure->expected.count();
  front ? global_.push_front(std::move(closure)) : global_.push_back(std::move(closure));
  note_available();
  queued_changed_.signal();
}

void ClosureQueue::note_available() { available_.store(healthy() ? global_.size() : 0, std::memory_order_relaxed); }

void ClosureQueue::put_tagged(std::shared_ptr<Closure> closure, bool front) {
  Closures& queue = tagged_[*closure->tag];
  ++queued_tagged_;
  front ? queue.push_front(std::move(closure)) : queue.push_back(std::move(closure));
  queued_changed_.signal_all();  // Only one thread may want this tag, and nobody knows which.
}

std::shared_ptr<Closure> ClosureQueue::take_tagged(int tag) {
  const auto found = tagged_.find(tag);
  if (found == tagged_.end()) return nullptr;
  std::shared_ptr<Closure> closure = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) tagged_.erase(found);
  --queued_tagged_;
  ++inflight_tagged_;
  return closure;
}

std::shared_ptr<Closure> ClosureQueue::take_one(std::optional<int> tag) {
  if (tag && !tagged_.empty()) {
    if (std::shared_ptr<Closure> closure = take_tagged(*tag)) return closure;
  }
  if (global_.empty() || !healthy()) return nullptr;
  std::shared_ptr<Closure> closure = std::move(global_.front());
  global_.pop_front();
  expected_ -= closure->expected.count();
  note_available();
  ++inflight_;
  slot_free_.signal();
  return closure;
}

void ClosureQueue::check_inflight(const Closure& closure) const {
  MUSTER_CHECK((closure.tag ? inflight_tagged_ : inflight_) > 0) << "a closure ends that is not in flight";
}

void ClosureQueue::leave_flight(const Closure& closure) {
  check_inflight(closure);
  --(closure.tag ? inflight_tagged_ : inflight_);
}

ClosureQueue::Ending ClosureQueue::take_ending() {
  if (!stopped_.ok()) return {.error = stopped_, .why = stopped_, .dropped = {}};
  MUSTER_CHECK(!error_.ok() && inflight_ == 0);
  Ending ending{.error = std::exchange(error_, {}),
                .why = Status(StatusCode::kCancelled, kCancelledMessage),
                .dropped = std::exchange(global_, {})};
  expected_ = 0;
  note_available();
  cancellation_ = std::make_shared<Cancellation>();
  slot_free_.signal_all();
  settled_changed_.signal_all();
  return ending;
}

void ClosureQueue::raise(const Ending& ending) {
  for (const std::shared_ptr<Closure>& closure : ending.dropped) closure->cancelled(ending.why);
  throw Error(ending.error);
}

}  // namespace muster

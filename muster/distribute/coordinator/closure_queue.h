#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "muster/base/cancellation.h"
#include "muster/base/deadline_timer.h"
#include "muster/base/status.h"

namespace muster {

// One execution that was asked for. The queue knows nothing else of it.
class Closure {
 public:
  virtual ~Closure() = default;

  // It will not be executed: tells whoever waits for its result. Called at most once, with no lock held; must not
  // throw.
  virtual void cancelled(const Status& why) = 0;

  std::optional<int> tag;                        // Only this worker may run it. Not changed once it was put.
  std::chrono::nanoseconds expected = kUnknown;  // that it will take. Not changed while it is queued.

  static constexpr std::chrono::nanoseconds kUnknown = std::chrono::seconds(1);
};

struct ClosureQueueOptions {
  size_t capacity = 256 * 1024;  // 0: unlimited. Tagged closures do not count.

  // There is something to take, for this tag or for all: called after each put() and put_back() that queued a closure,
  // by the thread that did it and with no lock held. Must not throw.
  std::function<void(std::optional<int> tag)> on_put{};
};

// The executions that wait for a worker, and the count of those that are in flight.
//
// A closure is queued by put(), in flight from get() or take() on, and ends by mark_finished(), mark_failed() or
// cancelled(); put_back() queues it again. The first failure is the pending error: what is queued is cancelled, no
// closure is handed out, cancellation() is cancelled so that those in flight end early, and the next put(), wait() or
// done() waits until none is in flight, throws the error, and leaves the queue as new.
//
// Tagged closures prepare a worker and are nobody's step: wait() and done() do not wait for them, an error neither
// holds them up nor cancels them, put() of one neither blocks nor throws the pending error.
//
// Thread-safe. In-flight closures are counted, not remembered: the caller ends each exactly once.
class ClosureQueue {
 public:
  explicit ClosureQueue(ClosureQueueOptions options = {});
  ~ClosureQueue();  // stops; REQUIRES: no other thread is in a call
  ClosureQueue(const ClosureQueue&) = delete;
  ClosureQueue& operator=(const ClosureQueue&) = delete;

  // Blocks while the queue is full. Throws the pending error, or why the queue was stopped; the closure is then
  // cancelled like those that were queued.
  void put(std::shared_ptr<Closure> closure);

  // From the queue of this tag first, then from the one of all workers. Null after the timeout and after stop().
  std::shared_ptr<Closure> get(std::optional<int> tag = std::nullopt,
                               std::optional<std::chrono::milliseconds> timeout = std::nullopt);

  // The same for up to `share` closures, appended to `into`, without waiting, and for more of them, up to `most`, as
  // long as all together are expected to take no longer than `worth`. Returns how many.
  size_t take(size_t share, std::optional<int> tag, std::vector<std::shared_ptr<Closure>>& into, size_t most = 0,
              std::chrono::nanoseconds worth = {});

  // To the front, because it has waited longest; never blocks, so the queue may hold more than its capacity. Cancels it
  // instead if an error is pending and it has no tag, or if the queue was stopped.
  void put_back(std::shared_ptr<Closure> closure);

  void mark_finished(const Closure& closure);
  void mark_finished(size_t closures, bool tagged);  // so many of one kind

  // Only the first error is kept, so that the others, which mostly say that they were cancelled because of it, do not
  // hide it. REQUIRES: `why` is not ok.
  void mark_failed(const Closure& closure, Status why);

  // Blocks until nothing is queued or in flight; false if that took longer than the timeout. Throws as put() does.
  bool wait(std::optional<std::chrono::milliseconds> timeout = std::nullopt);

  // Whether nothing is queued or in flight. Throws as put() does, so it blocks while an error is pending and closures
  // are in flight.
  bool done();

  // Cancels what is queued for this tag: nobody will come for it.
  void drop_tagged(int tag, const Status& why);

  // For good: cancels what is queued, tagged or not, and what runs; from now on get() returns null, and put(), wait()
  // and done() throw `why`, which takes the place of a pending error. Later calls do nothing. REQUIRES: `why` is not
  // ok.
  void stop(Status why);
  bool stopped() const;

  // For the closures that run. It is replaced after an error, but never while an untagged closure is in flight.
  std::shared_ptr<Cancellation> cancellation() const;

  size_t queued() const;    // untagged ones
  size_t inflight() const;  // untagged ones

  // What take() would find, if nobody else were there; no lock is taken for it. None while an error is pending.
  size_t available() const { return available_.load(std::memory_order_relaxed); }
  std::chrono::nanoseconds expected() const {  // that all of them will take
    return std::chrono::nanoseconds(expected_.load(std::memory_order_relaxed));
  }
  bool any_tagged() const { return queued_tagged_.load(std::memory_order_relaxed) > 0; }

 private:
  using Closures = std::deque<std::shared_ptr<Closure>>;

  // Why a call throws, and whom it tells; carried out once the lock is released.
  struct Ending {
    Status error;  // what is thrown
    Status why;    // what the dropped closures are told
    Closures dropped;
  };

  bool healthy() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return error_.ok() && stopped_.ok(); }
  bool full() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return capacity_ != 0 && global_.size() >= capacity_; }
  bool draining() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !error_.ok() && inflight_ > 0 && stopped_.ok(); }
  bool settled() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !stopped_.ok() || (inflight_ == 0 && (!error_.ok() || global_.empty()));
  }

  void put_global(std::shared_ptr<Closure> closure, bool front) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void note_available() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void put_tagged(std::shared_ptr<Closure> closure, bool front) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<Closure> take_tagged(int tag) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<Closure> take_one(std::optional<int> tag) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void check_inflight(const Closure& closure) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void leave_flight(const Closure& closure) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Makes the queue as new after an error. REQUIRES: not healthy and not draining.
  Ending take_ending() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  [[noreturn]] static void raise(const Ending& ending);

  const size_t capacity_;
  const std::function<void(std::optional<int> tag)> on_put_;
  std::atomic<size_t> available_ = 0, queued_tagged_ = 0;  // all change under mu_
  std::atomic<int64_t> expected_ = 0;                      // nanoseconds

  mutable absl::Mutex mu_;
  SteadyCondVar queued_changed_;   // for get()
  SteadyCondVar slot_free_;        // for put(); also signalled on an error
  SteadyCondVar settled_changed_;  // for all that wait until settled() or no longer draining()

  Closures global_ ABSL_GUARDED_BY(mu_);
  std::unordered_map<int, Closures> tagged_ ABSL_GUARDED_BY(mu_);  // an entry per tag with something queued
  size_t inflight_ ABSL_GUARDED_BY(mu_) = 0;
  size_t inflight_tagged_ ABSL_GUARDED_BY(mu_) = 0;
  Status error_ ABSL_GUARDED_BY(mu_);    // ok: none is pending
  Status stopped_ ABSL_GUARDED_BY(mu_);  // ok: not stopped
  std::shared_ptr<Cancellation> cancellation_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster

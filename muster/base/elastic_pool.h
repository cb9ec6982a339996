#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <deque>
#include <functional>
#include <list>
#include <string>
#include <thread>

#include "muster/base/deadline_timer.h"

namespace muster {

// As many threads as there is work for, up to a limit, so that a task may wait for another one that was
// submitted after it. A thread stays for the next task, and ends when none came for a while. Thread-safe; a task may
// submit. The destructor runs all that was submitted and joins: it must not be called by a task.
class ElasticPool {
 public:
  // Over `most` tasks at a time, the next ones wait in a queue. REQUIRES: most > 0.
  explicit ElasticPool(std::string name, int most = 256, absl::Duration threads_stay = absl::Seconds(10));
  ~ElasticPool();
  ElasticPool(const ElasticPool&) = delete;
  ElasticPool& operator=(const ElasticPool&) = delete;

  // REQUIRES: `task` does not throw.
  void submit(std::function<void()> task) ABSL_LOCKS_EXCLUDED(mu_);
  // The same if there is a thread for it now; else false, and nothing happens: who must not wait for other tasks does
  // it on the thread that it is on.
  bool try_submit(std::function<void()> task) ABSL_LOCKS_EXCLUDED(mu_);

  size_t threads() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Threads = std::list<std::jthread>;

  void start_thread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void work(Threads::iterator self) ABSL_LOCKS_EXCLUDED(mu_);

  const std::string name_;
  const size_t most_;
  const absl::Duration threads_stay_;

  mutable absl::Mutex mu_;
  SteadyCondVar changed_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mu_);
  size_t idle_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  size_t started_ ABSL_GUARDED_BY(mu_) = 0;
  Threads threads_ ABSL_GUARDED_BY(mu_);
  std::jthread ended_ ABSL_GUARDED_BY(mu_);  // the last that did for want of work; it has joined the one before it
};

}  // namespace muster

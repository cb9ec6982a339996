#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace muster {

// As many threads as there is work for, up to a limit, so that a task may wait for another one that was
// submitted after it. Threads stay for the next task. Thread-safe; a task may submit. The destructor runs all that was
// submitted and joins: it must not be called by a task.
class ElasticPool {
 public:
  // Over `most` tasks at a time, the next ones wait in a queue. REQUIRES: most > 0.
  explicit ElasticPool(std::string name, int most = 256);
  ~ElasticPool();
  ElasticPool(const ElasticPool&) = delete;
  ElasticPool& operator=(const ElasticPool&) = delete;

  // REQUIRES: `task` does not throw.
  void submit(std::function<void()> task);

 private:
  void work();
  bool has_news() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || !queue_.empty(); }

  const std::string name_;
  const size_t most_;

  absl::Mutex mu_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mu_);
  size_t idle_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::jthread> threads_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster

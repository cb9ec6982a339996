#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace muster {

// A fixed number of threads that run what is submitted, started in the order of submission.
// Thread-safe; a task may submit. The destructor runs all that was submitted, by its tasks too, and joins: it must not
// be called by a task.
class ThreadPool {
 public:
  // Threads show up in a debugger as `name`-0, `name`-1, … cut to 15 characters. REQUIRES: threads > 0.
  ThreadPool(const std::string& name, int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // REQUIRES: `task` does not throw: there is nobody to tell, so the process ends.
  void submit(std::function<void()> task);

  int size() const { return static_cast<int>(threads_.size()); }

 private:
  void work();
  bool has_news() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Mutex mu_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mu_);
  int running_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::jthread> threads_;
};

}  // namespace muster

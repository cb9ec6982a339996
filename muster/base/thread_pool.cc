#include "muster/base/thread_pool.h"

#include <absl/strings/str_cat.h>
#include <pthread.h>

#include <utility>

#include "muster/base/check.h"

namespace muster {

ThreadPool::ThreadPool(const std::string& name, int threads) {
  MUSTER_CHECK(threads > 0) << "thread pool \"" << name << "\"";
  threads_.reserve(threads);
  for (int i = 0; i < threads; ++i) {
    // The number matters more than the rest of the name, and the kernel keeps 15 characters.
    const std::string suffix = absl::StrCat("-", i);
    threads_.emplace_back([this, label = name.substr(0, 15 - suffix.size()) + suffix] {
      pthread_setname_np(pthread_self(), label.c_str());
      work();
    });
  }
}

ThreadPool::~ThreadPool() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  threads_.clear();
}

void ThreadPool::submit(std::function<void()> task) {
  absl::MutexLock lock(&mu_);
  queue_.push_back(std::move(task));
}

// A running task may still submit, so a thread goes home only when the pool stops and nothing runs.
bool ThreadPool::has_news() const { return !queue_.empty() || (stopping_ && running_ == 0); }

void ThreadPool::work() {
  while (true) {
    std::function<void()> task;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &ThreadPool::has_news));
      if (queue_.empty()) return;
      task = std::move(queue_.front());
      queue_.pop_front();
      ++running_;
    }
    task();
    task = nullptr;  // What it owns ends before the pool may.
    absl::MutexLock lock(&mu_);
    --running_;
  }
}

}  // namespace muster

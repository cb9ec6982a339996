#include "muster/base/elastic_pool.h"

#include <absl/strings/str_cat.h>
#include <pthread.h>

#include <utility>

#include "muster/base/check.h"

namespace muster {

ElasticPool::ElasticPool(std::string name, int most, absl::Duration threads_stay)
    : name_(std::move(name)), most_(most), threads_stay_(threads_stay) {
  MUSTER_CHECK(most > 0) << "pool \"" << name_ << "\"";
}

ElasticPool::~ElasticPool() {
  // A running task may still submit, and so start threads: until nothing is left, what is there is joined.
  while (true) {
    Threads threads;
    std::jthread ended;
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
      changed_.signal_all();
      threads.swap(threads_);
      ended.swap(ended_);
    }
    if (threads.empty()) return;
  }
}

size_t ElasticPool::threads() const {
  absl::MutexLock lock(&mu_);
  return threads_.size();
}

void ElasticPool::submit(std::function<void()> task) {
  {
    absl::MutexLock lock(&mu_);
    queue_.push_back(std::move(task));
    if (queue_.size() > idle_ && threads_.size() < most_) return start_thread();
  }
  changed_.signal();  // without the lock, which who wakes up needs first
}

bool ElasticPool::try_submit(std::function<void()> task) {
  {
    absl::MutexLock lock(&mu_);
    const bool starts = queue_.size() >= idle_;
    if (starts && threads_.size() >= most_) return false;
    queue_.push_back(std::move(task));
    if (starts) {
      start_thread();
      return true;
    }
  }
  changed_.signal();
  return true;
}

void ElasticPool::start_thread() {
  // The number matters more than the rest of the name, and the kernel keeps 15 characters.
  const std::string suffix = absl::StrCat("-", started_++);
  const auto self = threads_.emplace(threads_.end());
  *self = std::jthread([this, self, label = name_.substr(0, 15 - suffix.size()) + suffix] {
    pthread_setname_np(pthread_self(), label.c_str());
    work(self);
  });
}

void ElasticPool::work(Threads::iterator self) {
  while (true) {
    std::function<void()> task;
    std::jthread before;  // is joined without the lock
    {
      absl::MutexLock lock(&mu_);
      ++idle_;
      while (!stopping_ && queue_.empty() && changed_.wait_for(mu_, threads_stay_)) {
      }
      --idle_;
      if (queue_.empty()) {
        if (stopping_) return;
        before = std::exchange(ended_, std::move(*self));
        threads_.erase(self);
        return;
      }
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    task();
    task = nullptr;  // What it owns ends before the pool may.
  }
}

}  // namespace muster

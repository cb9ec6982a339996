#include "muster/base/elastic_pool.h"

#include <absl/strings/str_cat.h>
#include <pthread.h>

#include <utility>

#include "muster/base/check.h"

namespace muster {

ElasticPool::ElasticPool(std::string name, int most) : name_(std::move(name)), most_(most) {
  MUSTER_CHECK(most > 0) << "pool \"" << name_ << "\"";
}

ElasticPool::~ElasticPool() {
  // A running task may still submit, and so start threads: until nothing is left, what is there is joined.
  while (true) {
    std::vector<std::jthread> threads;
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
      threads.swap(threads_);
    }
    if (threads.empty()) return;
  }
}

void ElasticPool::submit(std::function<void()> task) {
  absl::MutexLock lock(&mu_);
  queue_.push_back(std::move(task));
  if (queue_.size() <= idle_ || threads_.size() >= most_) return;
  // The number matters more than the rest of the name, and the kernel keeps 15 characters.
  const std::string suffix = absl::StrCat("-", threads_.size());
  threads_.emplace_back([this, label = name_.substr(0, 15 - suffix.size()) + suffix] {
    pthread_setname_np(pthread_self(), label.c_str());
    work();
  });
}

void ElasticPool::work() {
  while (true) {
    std::function<void()> task;
    {
      absl::MutexLock lock(&mu_);
      ++idle_;
      mu_.Await(absl::Condition(this, &ElasticPool::has_news));
      --idle_;
      if (queue_.empty()) return;
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    task();
    task = nullptr;  // What it owns ends before the pool may.
  }
}

}  // namespace muster

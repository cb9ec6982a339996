#include "muster/base/deadline_timer.h"

#include <absl/time/clock.h>

#include <algorithm>

namespace muster {

DeadlineTimer::~DeadlineTimer() {
  std::optional<std::jthread> thread;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    changed_.SignalAll();
    thread = std::move(thread_);
  }
}

DeadlineTimer::Alarm::~Alarm() {
  if (timer_ != nullptr) timer_->cancel(id_);
}

DeadlineTimer::Alarm DeadlineTimer::after(absl::Duration time, std::function<void()> callback) {
  absl::MutexLock lock(&mu_);
  const uint64_t id = next_++;
  entries_.emplace(id, Entry{absl::Now() + time, std::move(callback)});
  if (!thread_) thread_.emplace([this] { work(); });
  changed_.SignalAll();
  return {*this, id};
}

void DeadlineTimer::cancel(uint64_t id) {
  absl::MutexLock lock(&mu_);
  entries_.erase(id);
  if (worker_ == std::this_thread::get_id()) return;
  while (running_ == id) changed_.Wait(&mu_);
}

void DeadlineTimer::work() {
  absl::MutexLock lock(&mu_);
  worker_ = std::this_thread::get_id();
  while (!stopping_) {
    auto first = std::min_element(entries_.begin(), entries_.end(),
                                  [](const auto& a, const auto& b) { return a.second.when < b.second.when; });
    if (first == entries_.end()) {
      changed_.Wait(&mu_);
      continue;
    }
    if (absl::Now() < first->second.when) {
      changed_.WaitWithDeadline(&mu_, first->second.when);
      continue;
    }
    running_ = first->first;
    std::function<void()> callback = std::move(first->second.callback);
    entries_.erase(first);
    mu_.Unlock();
    callback();
    callback = nullptr;
    mu_.Lock();
    running_ = 0;
    changed_.SignalAll();
  }
}

}  // namespace muster

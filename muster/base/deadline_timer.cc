#include "muster/base/deadline_timer.h"

#include <algorithm>

namespace muster {
namespace {

using TimerClock = std::chrono::steady_clock;
constexpr absl::Duration kLongest = absl::Hours(24 * 365 * 100);  // more than the clock can count is as good as this

// A mutex that its thread has locked, for a condition variable of the standard library.
struct Locked {
  absl::Mutex& mu;
  void lock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mu.Lock(); }
  void unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mu.Unlock(); }
};

}  // namespace

DeadlineTimer::~DeadlineTimer() {
  std::optional<std::jthread> thread;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    changed_.notify_all();
    thread = std::move(thread_);
  }
}

DeadlineTimer::Alarm::~Alarm() {
  if (timer_ != nullptr) timer_->cancel(id_);
}

DeadlineTimer::Alarm DeadlineTimer::after(absl::Duration time, std::function<void()> callback) {
  const auto when = TimerClock::now() + absl::ToChronoNanoseconds(std::min(time, kLongest));
  absl::MutexLock lock(&mu_);
  const uint64_t id = next_++;
  entries_.emplace(id, Entry{when, std::move(callback)});
  if (!thread_) thread_.emplace([this] { work(); });
  changed_.notify_all();
  return {*this, id};
}

void DeadlineTimer::cancel(uint64_t id) {
  absl::MutexLock lock(&mu_);
  entries_.erase(id);
  if (worker_ == std::this_thread::get_id()) return;
  Locked locked{mu_};
  while (running_ == id) changed_.wait(locked);
}

void DeadlineTimer::work() {
  absl::MutexLock lock(&mu_);
  Locked locked{mu_};
  worker_ = std::this_thread::get_id();
  while (!stopping_) {
    auto first = std::min_element(entries_.begin(), entries_.end(),
                                  [](const auto& a, const auto& b) { return a.second.when < b.second.when; });
    if (first == entries_.end()) {
      changed_.wait(locked);
      continue;
    }
    if (const auto left = first->second.when - TimerClock::now(); left > left.zero()) {
      changed_.wait_for(locked, left);
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
    changed_.notify_all();
  }
}

}  // namespace muster

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

void SteadyCondVar::wait(absl::Mutex& mu) {
  Locked locked{mu};
  ++waiting_;
  changed_.wait(locked);
  --waiting_;
}

bool SteadyCondVar::wait_for(absl::Mutex& mu, absl::Duration time) {
  Locked locked{mu};
  ++waiting_;
  const std::cv_status status = changed_.wait_for(locked, absl::ToChronoNanoseconds(std::min(time, kLongest)));
  --waiting_;
  return status == std::cv_status::no_timeout;
}

bool await_for(absl::Mutex& mu, const absl::Condition& condition, absl::Duration time) {
  static auto& timer = *new DeadlineTimer;  // never destroyed: somebody may wait at the very end
  struct Wait {
    const absl::Condition& condition;
    bool late = false;

    bool is_over() const { return late || condition.Eval(); }
  };
  Wait wait{condition};
  std::optional<DeadlineTimer::Alarm> alarm(timer.after(time, [&mu, &wait] {
    absl::MutexLock lock(&mu);
    wait.late = true;
  }));
  mu.Await(absl::Condition(&wait, &Wait::is_over));
  mu.Unlock();  // the alarm waits for one that rings
  alarm.reset();
  mu.Lock();
  return condition.Eval();
}

DeadlineTimer::~DeadlineTimer() {
  std::optional<std::jthread> thread;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    changed_.signal_all();
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
  const auto place = order_.emplace(when, id).first;
  if (!thread_) thread_.emplace([this] { work(); });
  if (place == order_.begin()) changed_.signal_all();
  return {*this, id};
}

void DeadlineTimer::cancel(uint64_t id) {
  absl::MutexLock lock(&mu_);
  if (const auto entry = entries_.find(id); entry != entries_.end()) {
    order_.erase({entry->second.when, id});
    entries_.erase(entry);
  }
  if (worker_ == std::this_thread::get_id()) return;
  while (running_ == id) changed_.wait(mu_);
}

void DeadlineTimer::work() {
  absl::MutexLock lock(&mu_);
  worker_ = std::this_thread::get_id();
  while (!stopping_) {
    if (order_.empty()) {
      changed_.wait(mu_);
      continue;
    }
    const auto [when, id] = *order_.begin();
    if (const auto left = when - TimerClock::now(); left > left.zero()) {
      changed_.wait_for(mu_, absl::FromChrono(left));
      continue;
    }
    running_ = id;
    std::function<void()> callback = std::move(entries_.find(id)->second.callback);
    entries_.erase(id);
    order_.erase(order_.begin());
    mu_.Unlock();
    callback();
    callback = nullptr;
    mu_.Lock();
    running_ = 0;
    changed_.signal_all();
  }
}

}  // namespace muster

#include "muster/base/blocking.h"

#include <thread>
#include <utility>

namespace muster {
namespace {

thread_local const WhenBlocking* when_blocking = nullptr;
thread_local const WhenWaiting* when_waiting = nullptr;

}  // namespace

WhenBlocking::WhenBlocking(std::function<void()> then, std::function<void()> when_long)
    : then_(std::move(then)), when_long_(when_long ? std::move(when_long) : then_) {
  when_blocking = this;
}

WhenBlocking::~WhenBlocking() { when_blocking = nullptr; }

void about_to_block() {
  if (when_blocking != nullptr) when_blocking->then_();
}

void about_to_take_long() {
  if (when_blocking != nullptr) when_blocking->when_long_();
}

bool look_out(std::chrono::microseconds moment, const std::function<bool()>& there) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::microseconds kSomebodyElse(10);  // had the core meanwhile
  static const bool cores_to_spare = std::thread::hardware_concurrency() > 4;
  if (!cores_to_spare) return false;
  const Clock::time_point begin = Clock::now();
  for (Clock::time_point now = begin; now - begin < moment;) {
    if (there()) return true;
    std::this_thread::yield();
    const Clock::time_point before = std::exchange(now, Clock::now());
    if (now - before > kSomebodyElse) return there();
  }
  return false;
}

WhenWaiting::WhenWaiting(std::function<void()> begins, std::function<void()> ends)
    : begins_(std::move(begins)), ends_(std::move(ends)) {
  when_waiting = this;
}

WhenWaiting::~WhenWaiting() { when_waiting = nullptr; }

// A wait inside of another one is the same wait.
Waiting::Waiting() : told_(std::exchange(when_waiting, nullptr)) {
  about_to_block();
  if (told_ != nullptr) told_->begins_();
}

Waiting::~Waiting() {
  if (told_ == nullptr) return;
  told_->ends_();
  when_waiting = told_;
}

}  // namespace muster

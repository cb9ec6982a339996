#include "muster/base/blocking.h"

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

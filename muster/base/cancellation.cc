#include "muster/base/cancellation.h"

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <map>
#include <thread>
#include <utility>

#include "muster/base/check.h"

namespace muster {

struct Cancellation::State {
  absl::Mutex mu;
  Status why ABSL_GUARDED_BY(mu);
  std::map<uint64_t, Callback> callbacks ABSL_GUARDED_BY(mu);
  uint64_t next_id ABSL_GUARDED_BY(mu) = 1;
  uint64_t running_id ABSL_GUARDED_BY(mu) = 0;  // 0: none
  std::thread::id running_thread ABSL_GUARDED_BY(mu);
};

Cancellation::Registration::Registration(std::shared_ptr<State> state, uint64_t id)
    : state_(std::move(state)), id_(id) {}

Cancellation::Registration::Registration(Registration&& other) noexcept
    : state_(std::move(other.state_)), id_(std::exchange(other.id_, 0)) {}

Cancellation::Registration& Cancellation::Registration::operator=(Registration&& other) noexcept {
  if (this != &other) {
    reset();
    state_ = std::move(other.state_);
    id_ = std::exchange(other.id_, 0);
  }
  return *this;
}

void Cancellation::Registration::reset() {
  const std::shared_ptr<State> state = std::exchange(state_, nullptr);
  if (!state) return;
  Callback dropped;  // Destroyed after the lock is released: it may own something whose destructor calls out.
  absl::MutexLock lock(&state->mu);
  if (auto found = state->callbacks.extract(id_)) {
    dropped = std::move(found.mapped());
    return;
  }
  const auto finished = [&, id = id_]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state->mu) {
    return state->running_id != id || state->running_thread == std::this_thread::get_id();
  };
  state->mu.Await(absl::Condition(&finished));
}

Cancellation::Cancellation() : state_(std::make_shared<State>()) {}
Cancellation::~Cancellation() = default;

void Cancellation::cancel(Status why) {
  MUSTER_CHECK(!why.ok());
  const std::shared_ptr<State> state = state_;  // A callback may destroy this Cancellation.
  {
    absl::MutexLock lock(&state->mu);
    if (!state->why.ok()) return;
    state->why = why;
    cancelled_.store(true, std::memory_order_relaxed);
    state->running_thread = std::this_thread::get_id();
  }
  while (true) {
    Callback next;
    {
      absl::MutexLock lock(&state->mu);
      state->running_id = 0;
      if (state->callbacks.empty()) return;
      auto first = state->callbacks.extract(state->callbacks.begin());
      state->running_id = first.key();
      next = std::move(first.mapped());
    }
    next(why);
  }
}

Status Cancellation::status() const {
  absl::MutexLock lock(&state_->mu);
  return state_->why;
}

Cancellation::Registration Cancellation::on_cancel(Callback callback) const {
  Status why;
  {
    absl::MutexLock lock(&state_->mu);
    if (state_->why.ok()) {
      const uint64_t id = state_->next_id++;
      state_->callbacks.emplace(id, std::move(callback));
      return Registration(state_, id);
    }
    why = state_->why;
  }
  callback(why);
  return {};
}

}  // namespace muster

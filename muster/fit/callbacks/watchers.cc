#include "muster/fit/callbacks/watchers.h"

#include <utility>

#include "muster/base/log.h"

namespace muster {

Watchers::~Watchers() {
  wait_until_idle();
  try {
    check();
  } catch (const std::exception& error) {
    MUSTER_LOG(warning) << "fit: a callback that only watches has failed: " << error.what();
  } catch (...) {
    MUSTER_LOG(warning) << "fit: a callback that only watches has failed";
  }
}

void Watchers::add(std::function<void()> call) {
  {
    absl::MutexLock lock(&mu_);
    ++waiting_;
  }
  thread_.submit([this, call = std::move(call)] { run(call); });
}

void Watchers::run(const std::function<void()>& call) {
  const bool skipped = [this] {
    absl::MutexLock lock(&mu_);
    return failed_;
  }();
  std::exception_ptr error;
  try {
    if (!skipped) call();
  } catch (...) {
    error = std::current_exception();
  }
  absl::MutexLock lock(&mu_);
  --waiting_;
  if (!error) return;
  failed_ = true;
  error_ = error;
}

void Watchers::check() {
  std::exception_ptr error;
  {
    absl::MutexLock lock(&mu_);
    error = std::exchange(error_, nullptr);
  }
  if (error) std::rethrow_exception(error);
}

void Watchers::wait_until_idle() {
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return waiting_ == 0; };
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&idle));
}

void Watchers::wait() {
  wait_until_idle();
  check();
}

}  // namespace muster

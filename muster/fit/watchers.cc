#include "muster/fit/watchers.h"

#include <utility>

namespace muster {

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

void Watchers::wait() {
  {
    const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return waiting_ == 0; };
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&idle));
  }
  check();
}

}  // namespace muster

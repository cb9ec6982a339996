#include "muster/rpc/calls/call_gate.h"

#include <utility>
#include <vector>

#include "muster/base/blocking.h"

namespace muster {

void CallGate::run(Work work) {
  bool here = false;
  {
    absl::MutexLock lock(&mu_);
    if (working_ >= most_) return kept_back_.push_back({std::move(work), std::chrono::steady_clock::now()});
    ++working_;
    here = lent_ < most_;
    if (here) ++lent_;
  }
  if (!here) return run_elsewhere(std::move(work));
  run_all(std::move(work));
  absl::MutexLock lock(&mu_);
  --lent_;
}

void CallGate::run_later(Work work) {
  {
    absl::MutexLock lock(&mu_);
    if (working_ >= most_) return kept_back_.push_back({std::move(work), std::chrono::steady_clock::now()});
    ++working_;
  }
  run_elsewhere(std::move(work));
}

void CallGate::run_elsewhere(Work work) {
  pool_.submit([this, work = std::move(work)]() mutable { run_all(std::move(work)); });
}

void CallGate::run_all(Work work) {
  const WhenWaiting waiting([this] { wait_begins(); }, [this] { wait_ends(); });
  while (work) {
    work();
    absl::MutexLock lock(&mu_);
    work = next();
  }
}

CallGate::Work CallGate::next() {
  if (kept_back_.empty() || working_ > most_) {
    --working_;
    return {};
  }
  Work work = std::move(kept_back_.front().work);
  kept_back_.pop_front();
  return work;
}

void CallGate::wait_begins() {
  Work work;
  {
    absl::MutexLock lock(&mu_);
    work = next();
  }
  if (work) run_elsewhere(std::move(work));
}

void CallGate::wait_ends() {
  absl::MutexLock lock(&mu_);
  ++working_;
}

void CallGate::look() {
  std::vector<Work> late;
  {
    absl::MutexLock lock(&mu_);
    const auto latest = std::chrono::steady_clock::now() - kPatience;
    while (!kept_back_.empty() && kept_back_.front().since <= latest) {
      ++working_;
      late.push_back(std::move(kept_back_.front().work));
      kept_back_.pop_front();
    }
  }
  for (Work& work : late) run_elsewhere(std::move(work));
}

}  // namespace muster

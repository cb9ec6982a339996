#include "muster/distribute/coordinator/remote_value.h"

#include <absl/time/time.h>

#include <chrono>
#include <thread>

#include "muster/base/deadline_timer.h"
#include "muster/distribute/look_outs.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

// How long to look out for a result before going to sleep: waking takes longer where there are cores that sleep, too.
std::chrono::microseconds moment() {
  static const bool cores_to_spare = std::thread::hardware_concurrency() > 4;
  return std::chrono::microseconds(cores_to_spare ? 400 : 150);
}

LookOuts& look_outs() {
  thread_local LookOuts of_this_thread(moment());
  return of_this_thread;
}

}  // namespace

void RemoteResult::set(std::vector<at::Tensor> outputs, std::shared_ptr<const TracedFunction::Entry> ran) {
  for (at::Tensor& output : outputs) bring_to(at::kCPU, output);
  absl::MutexLock lock(&mu_);
  outputs_ = std::move(outputs);
  ran_ = std::move(ran);
  why_ = Status();
  state_ = State::kReady;
}

void RemoteResult::abort(const Status& why) {
  absl::MutexLock lock(&mu_);
  if (state_ == State::kReady) return;
  why_ = why;
  state_ = State::kAborted;
}

RemoteResult::State RemoteResult::state() const { return state_; }

std::shared_ptr<const TracedFunction::Entry> RemoteResult::ran() const {
  absl::MutexLock lock(&mu_);
  return ran_;
}

std::vector<at::Tensor> RemoteResult::fetch(std::optional<std::chrono::milliseconds> timeout) const {
  auto sleep = [&] {
    absl::MutexLock lock(&mu_);
    const absl::Condition ready(this, &RemoteResult::decided);
    if (!timeout) return mu_.Await(ready);
    if (await_for(mu_, ready, absl::FromChrono(*timeout))) return;
    throw deadline_exceeded("fetch: the function has not run within ", timeout->count(), " ms");
  };
  if (!decided()) look_outs().wait([this] { return decided(); }, sleep);
  absl::MutexLock lock(&mu_);
  if (state_ == State::kAborted) throw Error(why_);
  return outputs_;
}

}  // namespace muster

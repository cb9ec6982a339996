#include "muster/distribute/remote_value.h"

#include <absl/time/time.h>

#include <chrono>
#include <thread>

#include "muster/base/deadline_timer.h"
#include "muster/runtime/tensors.h"

namespace muster {
namespace {

// How long to look out for a result before going to sleep: waking takes longer where there are cores that sleep, too.
std::chrono::microseconds moment() {
  static const bool cores_to_spare = std::thread::hardware_concurrency() > 4;
  return std::chrono::microseconds(cores_to_spare ? 400 : 150);
}

// How often in a row this thread has looked out for a result that took longer.
thread_local int looked_in_vain = 0;

// A short function is back before a thread that sleeps would be woken. The core is left to whoever has work for it. Who
// fetches one long function after the other looks out for a few of them only: fit() would keep a core of the workers
// busy for a sixtieth of its time.
template <class Decided>
void look_out(const Decided& decided) {
  constexpr int kFew = 4, kNowAndThen = 16;
  const int before = looked_in_vain++;
  if (before >= kFew && before % kNowAndThen != 0) return;
  const auto begin = std::chrono::steady_clock::now();
  while (!decided()) {
    if (std::chrono::steady_clock::now() - begin >= moment()) return;
    std::this_thread::yield();
  }
  looked_in_vain = 0;
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
  if (!decided()) look_out([this] { return decided(); });
  const bool waits = !decided();
  const auto begin = std::chrono::steady_clock::now();
  absl::MutexLock lock(&mu_);
  const absl::Condition ready(this, &RemoteResult::decided);
  if (!timeout) {
    mu_.Await(ready);
  } else if (!await_for(mu_, ready, absl::FromChrono(*timeout))) {
    throw deadline_exceeded("fetch: the function has not run within ", timeout->count(), " ms");
  }
  if (waits && std::chrono::steady_clock::now() - begin < moment()) looked_in_vain = 0;  // it would have been seen
  if (state_ == State::kAborted) throw Error(why_);
  return outputs_;
}

}  // namespace muster

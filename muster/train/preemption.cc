#include "muster/train/preemption.h"

#include <ATen/Functions.h>
#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <signal.h>

#include <algorithm>
#include <atomic>

#include "muster/base/log.h"

namespace muster {
namespace {

using PreemptionClock = std::chrono::steady_clock;

constexpr int64_t kMostSteps = 10'000;  // without a look

std::atomic<bool> told_to_end = false;
static_assert(std::atomic<bool>::is_always_lock_free);  // a signal may come at any moment

// The signal is the process's: the first one takes it, the last one gives it back.
struct TakenSignal {
  static inline absl::Mutex mu{absl::kConstInit};
  static inline int takers ABSL_GUARDED_BY(mu) = 0;
  static inline struct sigaction before ABSL_GUARDED_BY(mu) {};

  static void take() ABSL_LOCKS_EXCLUDED(mu) {
    absl::MutexLock lock(&mu);
    if (++takers > 1) return;
    told_to_end = false;
    struct sigaction action {};
    action.sa_handler = [](int) { told_to_end = true; };
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGTERM, &action, &before);
  }
  static void give_back() ABSL_LOCKS_EXCLUDED(mu) {
    absl::MutexLock lock(&mu);
    if (--takers == 0) ::sigaction(SIGTERM, &before, nullptr);
  }
};

}  // namespace

Preemption::Preemption(const Strategy& strategy, Checkpoints& checkpoints, PreemptionOptions options)
    : strategy_(strategy), checkpoints_(checkpoints), options_(options) {
  if (options_.look_every.count() < 0) throw invalid_argument("Preemption: look_every is less than nothing");
  TakenSignal::take();
}

Preemption::~Preemption() { TakenSignal::give_back(); }

bool Preemption::after_step(int64_t step) {
  if (!somebody_was_told()) return false;
  try {
    checkpoints_.wait();
  } catch (const Error& error) {  // the next one is the one that counts now
    MUSTER_LOG(error) << "an earlier checkpoint was not saved: " << error.what();
  }
  if (checkpoints_.newest() != step) checkpoints_.save(step);
  if (strategy_.is_chief()) MUSTER_LOG(info) << "told to end: step " << step << " is saved";
  return true;
}

bool Preemption::somebody_was_told() {
  const AcrossWorkers& across = strategy_.across();
  if (across.alone()) return told_to_end;
  if (++steps_ < look_after_) return false;
  // One sum says whether, and after how many steps all look again: as many as take so long, in the mean.
  const auto now = PreemptionClock::now();
  const auto a_step = std::max((now - looked_) / steps_, PreemptionClock::duration(1));
  const int64_t wish = std::clamp<int64_t>(options_.look_every / a_step, 1, kMostSteps);
  const at::Tensor sums = across.sum(at::tensor({int64_t{told_to_end}, wish}), "whether the job is to end");
  steps_ = 0;
  looked_ = now;
  look_after_ = sums[1].item<int64_t>() / across.size;
  return sums[0].item<int64_t>() > 0;
}

}  // namespace muster

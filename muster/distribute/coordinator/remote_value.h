// The result of a function that was scheduled.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "muster/base/status.h"
#include "muster/trace/function.h"

namespace muster {

// What the handles of a result share with whoever makes it. Not ready -> ready, or not ready -> aborted; an aborted one
// whose function is run again after all becomes ready. Thread-safe.
class RemoteResult {
 public:
  enum class State { kNotReady, kAborted, kReady };

  // `ran`: the trace that made them, if it is not the one that was scheduled.
  void set(std::vector<at::Tensor> outputs, std::shared_ptr<const TracedFunction::Entry> ran = {})
      ABSL_LOCKS_EXCLUDED(mu_);
  void abort(const Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  State state() const ABSL_LOCKS_EXCLUDED(mu_);
  // Waits. Throws why it was aborted, and Error{kDeadlineExceeded} when the time is over.
  std::vector<at::Tensor> fetch(std::optional<std::chrono::milliseconds> timeout) const ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<const TracedFunction::Entry> ran() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  bool decided() const { return state_.load(std::memory_order_acquire) != State::kNotReady; }

  mutable absl::Mutex mu_;
  std::atomic<State> state_ = State::kNotReady;  // changes under `mu_`
  std::vector<at::Tensor> outputs_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const TracedFunction::Entry> ran_ ABSL_GUARDED_BY(mu_);
  Status why_ ABSL_GUARDED_BY(mu_);
};

// A handle, cheap to copy. The value is kept by the coordinator's process, so it can be fetched again and again, also
// after the worker that made it has died. Without any handle the value stays at the worker and costs no transfer.
template <class T>
class RemoteValue {
 public:
  RemoteValue() = default;  // of nothing: fetching it is an error
  RemoteValue(std::shared_ptr<const TracedFunction::Entry> entry, std::shared_ptr<RemoteResult> result)
      : entry_(std::move(entry)), result_(std::move(result)) {}

  // Waits until the function has run, and returns what it returned, in the CPU's memory. Throws the error with which it
  // ended, Error{kCancelled} if it will not run because another one failed, Error{kDeadlineExceeded} when the time is
  // over.
  T fetch(std::optional<std::chrono::milliseconds> timeout = {}) const {
    if (!result_) throw failed_precondition("fetch: nothing was scheduled for this RemoteValue");
    std::vector<at::Tensor> outputs = result_->fetch(timeout);
    if constexpr (!std::is_void_v<T>) {
      const std::shared_ptr<const TracedFunction::Entry> ran = result_->ran();
      return result_of<T>(ran ? *ran : *entry_, std::move(outputs));
    }
  }

  bool ready() const { return result_ && result_->state() == RemoteResult::State::kReady; }

 private:
  std::shared_ptr<const TracedFunction::Entry> entry_;
  std::shared_ptr<RemoteResult> result_;
};

}  // namespace muster

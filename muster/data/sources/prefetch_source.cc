#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <deque>
#include <exception>

#include "muster/base/status.h"
#include "muster/data/data_pool.h"
#include "muster/data/sources/source.h"
#include "muster/graph/device_spec.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/worker/element_source.h"

namespace muster {
namespace {

// Copies elements to a device, beside what runs there. The result is whole when it is handed out.
class DeviceCopies {
 public:
  explicit DeviceCopies(at::Device device)
      : device_(device),
        stream_(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)),
        default_stream_(c10::impl::VirtualGuardImpl(device.type()).getDefaultStream(device)) {}

  Columns operator()(Columns element) const {
    const PlainTensors plain;
    {
      const c10::StreamGuard on_its_own(stream_);
      for (Column& column : element) {
        if (column.holds_strings() || column.tensor().device() == device_) continue;
        // Only from pinned memory can it be copied while something else runs.
        const at::Tensor& tensor = column.tensor();
        const at::Tensor from = device_.is_cuda() && tensor.is_cpu() ? tensor.contiguous().pin_memory() : tensor;
        at::Tensor copied = from.to(device_, /*non_blocking=*/true);
        copied.record_stream(default_stream_);  // programs run there, and may be at it when it is freed
        column = std::move(copied);
      }
    }
    stream_.synchronize();
    return element;
  }

 private:
  const at::Device device_;
  const c10::Stream stream_, default_stream_;
};

// A thread of the pool takes the elements of the input ahead of time. It alone uses the input while it runs. If the
// pool has none, whoever asks for an element takes it.
class PrefetchSource : public Source {
 public:
  PrefetchSource(const PrefetchOp& op, std::unique_ptr<Source> input)
      : count_(static_cast<size_t>(op.count)), input_(std::move(input)) {
    begin();
  }
  ~PrefetchSource() override { end(); }

  std::optional<Columns> next() override ABSL_LOCKS_EXCLUDED(mu_) {
    if (!has_thread_) return input_->next();
    Answer answer = next_answer();
    drained_ = answer.drained;
    if (answer.error) std::rethrow_exception(answer.error);
    return std::move(answer.element);
  }
  void restart() override ABSL_LOCKS_EXCLUDED(mu_) {
    end();
    input_->restart();
    begin();
  }
  int64_t drained() const override { return has_thread_ ? drained_ : input_->drained(); }

 private:
  struct Answer {  // in the order of the input; neither element nor error: its end
    std::optional<Columns> element{};
    std::exception_ptr error{};
    int64_t drained = 0;  // of the input, with this one
  };

  static bool is_end(const Answer& answer) { return !answer.element && !answer.error; }

  void begin() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    ready_.clear();
    ending_ = false;
    running_ = has_thread_ = data_pool().try_submit([this] { fetch(); });
  }
  void end() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    ending_ = true;
    mu_.Await(absl::Condition(this, &PrefetchSource::has_stopped));
  }

  Answer next_answer() ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      if (has_answer()) return take_answer();
    }
    const NotSpending waits;
    const Cancellation* const run = TakingFor::current();
    Cancellation::Registration wakes;
    if (run != nullptr) wakes = run->on_cancel([this](const Status&) { absl::MutexLock lock(&mu_); });
    absl::MutexLock lock(&mu_);
    const auto may_go_on = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return has_answer() || (run != nullptr && run->cancelled());
    };
    mu_.Await(absl::Condition(&may_go_on));
    if (run != nullptr) run->throw_if_cancelled();
    return take_answer();
  }
  Answer take_answer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    Answer answer = std::move(ready_.front());
    ready_.pop_front();
    if (is_end(answer)) ready_.push_front({.drained = answer.drained});  // for whoever asks again
    return answer;
  }

  void fetch() ABSL_LOCKS_EXCLUDED(mu_) {
    while (true) {
      {
        absl::MutexLock lock(&mu_);
        mu_.Await(absl::Condition(this, &PrefetchSource::may_fetch));
        if (ending_ || (!ready_.empty() && is_end(ready_.back()))) {
          running_ = false;  // nothing of this object is used after that
          return;
        }
      }
      Answer answer;
      try {
        answer.element = input_->next();
      } catch (...) {
        answer.error = std::current_exception();
      }
      answer.drained = input_->drained();
      absl::MutexLock lock(&mu_);
      ready_.push_back(std::move(answer));
    }
  }

  bool has_answer() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !ready_.empty(); }
  bool has_stopped() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !running_; }
  bool may_fetch() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return ending_ || ready_.size() < count_ || is_end(ready_.back());
  }

  const size_t count_;
  const std::unique_ptr<Source> input_;
  bool has_thread_ = false;
  int64_t drained_ = 0;  // of the input, with what was taken here

  absl::Mutex mu_;
  std::deque<Answer> ready_ ABSL_GUARDED_BY(mu_);
  bool running_ ABSL_GUARDED_BY(mu_) = false;  // the thread
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

std::unique_ptr<Source> open_op(const PrefetchOp& op, std::unique_ptr<Source> input, const OpenContext& context) {
  if (!op.device.empty()) {
    if (context.devices == nullptr) {
      throw failed_precondition("prefetch: whoever opens the dataset has no device \"", op.device,
                                "\" in this process");
    }
    const at::Device device = context.devices->device(canonical_device(op.device, context.devices->task()));
    // By the thread that makes elements ahead.
    if (!device.is_cpu()) input = open_change(DeviceCopies(device), {}, std::move(input), context);
  }
  return std::make_unique<PrefetchSource>(op, std::move(input));
}

}  // namespace muster

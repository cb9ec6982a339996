#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <deque>
#include <exception>
#include <thread>
#include <variant>

#include "muster/data/source.h"

namespace muster {
namespace {

// A thread takes the elements of the input ahead of time. It alone uses the input while it runs.
class PrefetchSource : public Source {
 public:
  PrefetchSource(const PrefetchOp& op, std::unique_ptr<Source> input)
      : count_(static_cast<size_t>(op.count)), input_(std::move(input)) {
    begin();
  }
  ~PrefetchSource() override { ask_to_end(); }

  std::optional<Columns> next() override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(this, &PrefetchSource::has_answer));
    Answer answer = std::move(ready_.front());
    ready_.pop_front();
    if (auto* error = std::get_if<std::exception_ptr>(&answer)) std::rethrow_exception(*error);
    auto element = std::get<std::optional<Columns>>(std::move(answer));
    if (!element) ready_.push_front(std::optional<Columns>());  // for whoever asks again
    return element;
  }
  void restart() override ABSL_LOCKS_EXCLUDED(mu_) {
    ask_to_end();
    thread_.join();
    input_->restart();
    begin();
  }

 private:
  using Answer = std::variant<std::optional<Columns>, std::exception_ptr>;  // in the order of the input

  void begin() ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      ready_.clear();
      ending_ = false;
    }
    thread_ = std::jthread([this] { fetch(); });
  }
  void ask_to_end() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    ending_ = true;
  }

  void fetch() ABSL_LOCKS_EXCLUDED(mu_) {
    while (true) {
      {
        absl::MutexLock lock(&mu_);
        mu_.Await(absl::Condition(this, &PrefetchSource::may_go_on));
        if (ending_) return;
      }
      Answer answer;
      try {
        answer = input_->next();
      } catch (...) {
        answer = std::current_exception();
      }
      const bool last = std::holds_alternative<std::optional<Columns>>(answer) && !std::get<0>(answer);
      absl::MutexLock lock(&mu_);
      ready_.push_back(std::move(answer));
      if (last) return;
    }
  }

  bool has_answer() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !ready_.empty(); }
  bool may_go_on() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ending_ || ready_.size() < count_; }

  const size_t count_;
  const std::unique_ptr<Source> input_;

  absl::Mutex mu_;
  std::deque<Answer> ready_ ABSL_GUARDED_BY(mu_);
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  std::jthread thread_;
};

}  // namespace

std::unique_ptr<Source> open_op(const PrefetchOp& op, std::unique_ptr<Source> input, const OpenContext&) {
  return std::make_unique<PrefetchSource>(op, std::move(input));
}

}  // namespace muster

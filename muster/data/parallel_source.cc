#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <algorithm>
#include <exception>
#include <map>
#include <thread>
#include <variant>

#include "muster/data/source.h"
#include "muster/trace/dispatcher_hook.h"

namespace muster {
namespace {

constexpr int kMostThreadsPerCore = 8;

// Threads that each take an element, change it and put it back where it was among the others.
class ParallelSource : public Source {
 public:
  ParallelSource(std::function<Columns(Columns)> change, int threads, std::unique_ptr<Source> input)
      : change_(std::move(change)), count_(threads), input_(std::move(input)) {}
  ~ParallelSource() override { end(); }

  std::optional<Columns> next() override ABSL_LOCKS_EXCLUDED(mu_) {
    if (threads_.empty()) begin();
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(this, &ParallelSource::has_next));
    const auto found = ready_.find(wanted_);
    if (found == ready_.end()) return std::nullopt;
    Answer answer = std::move(found->second);
    ready_.erase(found);
    ++wanted_;
    if (auto* error = std::get_if<std::exception_ptr>(&answer)) std::rethrow_exception(*error);
    return std::get<Columns>(std::move(answer));
  }

  void restart() override {
    end();
    input_->restart();
  }

 private:
  using Answer = std::variant<Columns, std::exception_ptr>;

  void begin() ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      ready_.clear();
      taken_ = wanted_ = 0;
      last_ = ending_ = false;
    }
    for (int i = 0; i < count_; ++i) threads_.emplace_back([this] { work(); });
  }

  void end() ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      ending_ = true;
    }
    threads_.clear();  // joins them
  }

  void work() ABSL_LOCKS_EXCLUDED(mu_, input_mu_) {
    const Untraced untraced;
    while (true) {
      uint64_t number = 0;
      std::optional<Columns> element;
      std::exception_ptr failure;
      {
        absl::MutexLock in_turn(&input_mu_);
        {
          absl::MutexLock lock(&mu_);
          mu_.Await(absl::Condition(this, &ParallelSource::may_go_on));
          if (ending_ || last_) return;
          number = taken_;
        }
        try {
          element = input_->next();
        } catch (...) {
          failure = std::current_exception();
        }
        absl::MutexLock lock(&mu_);
        if (!element && !failure) {
          last_ = true;
          return;
        }
        ++taken_;
      }
      Answer answer = failure;
      if (!failure) {
        try {
          answer = change_(*std::move(element));
        } catch (...) {
          answer = std::current_exception();
        }
      }
      absl::MutexLock lock(&mu_);
      ready_.emplace(number, std::move(answer));
    }
  }

  bool has_next() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return ready_.contains(wanted_) || (last_ && wanted_ == taken_);
  }
  bool may_go_on() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return ending_ || last_ || taken_ - wanted_ < 2 * static_cast<uint64_t>(count_);
  }

  const std::function<Columns(Columns)> change_;
  const int count_;

  absl::Mutex input_mu_ ABSL_ACQUIRED_BEFORE(mu_);  // whose turn it is to take
  const std::unique_ptr<Source> input_;
  absl::Mutex mu_;
  std::map<uint64_t, Answer> ready_ ABSL_GUARDED_BY(mu_);  // by their place among all
  uint64_t taken_ ABSL_GUARDED_BY(mu_) = 0;                // of the input
  uint64_t wanted_ ABSL_GUARDED_BY(mu_) = 0;               // the next one
  bool last_ ABSL_GUARDED_BY(mu_) = false;                 // there are no more
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::jthread> threads_;
};

class ChangeSource : public Source {
 public:
  ChangeSource(std::function<Columns(Columns)> change, std::unique_ptr<Source> input)
      : change_(std::move(change)), input_(std::move(input)) {}
  std::optional<Columns> next() override {
    std::optional<Columns> element = input_->next();
    if (!element) return std::nullopt;
    return change_(*std::move(element));
  }
  void restart() override { input_->restart(); }
  bool skip(int64_t count) override { return input_->skip(count); }

 private:
  const std::function<Columns(Columns)> change_;
  const std::unique_ptr<Source> input_;
};

}  // namespace

std::unique_ptr<Source> open_change(std::function<Columns(Columns)> change, int threads,
                                    std::unique_ptr<Source> input) {
  // A description may come from a stranger.
  threads =
      std::min(threads, kMostThreadsPerCore * static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
  if (threads > 1) return std::make_unique<ParallelSource>(std::move(change), threads, std::move(input));
  return std::make_unique<ChangeSource>(std::move(change), std::move(input));
}

}  // namespace muster

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <algorithm>
#include <exception>
#include <map>
#include <thread>
#include <variant>

#include "muster/data/data_pool.h"
#include "muster/data/sources/source.h"
#include "muster/runtime/worker/element_source.h"
#include "muster/trace/tracer/dispatcher_hook.h"

namespace muster {
namespace {

constexpr int kMostThreadsPerCore = 8;
constexpr int64_t kMostInGroup = 64;
constexpr std::chrono::microseconds kGroupTakes(50);  // much longer than to hand it on

int cores_here() { return static_cast<int>(std::max(1U, std::thread::hardware_concurrency())); }

// Threads of the pool take elements, change them and put them back where they were among the others, or hand them on as
// they come. They do so in groups that take longer than a lock does, and go back to the pool when they are far enough
// ahead; whoever wants elements calls them again. If the pool has no thread left, who wants them does it instead.
// Invariant: elements wait to be handed on, or somebody works, or whoever asks for the next one will.
class ParallelSource : public Source {
 public:
  ParallelSource(std::function<Columns(Columns)> change, Parallel parallel, std::unique_ptr<Source> input,
                 const OpenContext& context)
      : change_(std::move(change)),
        own_stage_("", 0, possible_threads(parallel, cores_here())),
        stage_(context.stage != nullptr ? *context.stage : own_stage_),
        ordered_(parallel.deterministic),
        most_in_group_(context.one_by_one ? 1 : kMostInGroup),
        input_(std::move(input)) {}
  ~ParallelSource() override { end(); }

  std::optional<Columns> next() override ABSL_LOCKS_EXCLUDED(mu_) {
    while (at_ == current_.answers.size()) {
      if (!next_group()) return std::nullopt;
    }
    Answer answer = std::move(current_.answers[at_++]);
    if (auto* error = std::get_if<std::exception_ptr>(&answer)) std::rethrow_exception(*error);
    return std::get<Columns>(std::move(answer));
  }

  void restart() override ABSL_LOCKS_EXCLUDED(mu_) {
    end();
    input_->restart();
    absl::MutexLock lock(&mu_);
    ready_.clear();
    taken_ = wanted_ = done_ = 0;
    last_ = ending_ = false;
    current_ = {};
    at_ = 0;
  }
  // Those that come without an order may leave others of before behind.
  int64_t drained() const override { return ordered_ ? current_.drained : 0; }
  int64_t fast_forward(int64_t count) override ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      if (taken_ > 0 || workers_ > 0) return Source::fast_forward(count);
    }
    return input_->fast_forward(count);
  }

 private:
  using Answer = std::variant<Columns, std::exception_ptr>;
  struct Group {
    std::vector<Answer> answers{};
    int64_t drained = 0;  // of the input, before it
  };
  using Clock = Stage::Clock;

  // False: there are no more.
  bool next_group() ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      call_workers();
      if (has_next()) return take_next();
    }
    const NotSpending waits;
    const Cancellation* const run = TakingFor::current();
    Cancellation::Registration wakes;
    if (run != nullptr) wakes = run->on_cancel([this](const Status&) { absl::MutexLock lock(&mu_); });
    while (true) {
      {
        absl::MutexLock lock(&mu_);
        const auto may_go_on = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
          return has_next() || workers_ == 0 || (run != nullptr && run->cancelled());
        };
        mu_.Await(absl::Condition(&may_go_on));
        if (run != nullptr) run->throw_if_cancelled();
        if (has_next()) return take_next();
        call_workers();
        if (workers_ > 0) continue;
        ++workers_;
      }
      if (!work_once()) continue;
      absl::MutexLock lock(&mu_);
      --workers_;
    }
  }

  bool has_next() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return ready_.contains(wanted_) || (last_ && wanted_ == taken_);
  }
  bool take_next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto found = ready_.find(wanted_);
    if (found == ready_.end()) return false;
    current_ = std::move(found->second);
    at_ = 0;
    ready_.erase(found);
    ++wanted_;
    return true;
  }

  // Not one by one as soon as there is room, since each call wakes a thread.
  void call_workers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const int threads = stage_.threads();
    if (last_ || taken_ - wanted_ > static_cast<uint64_t>(threads)) return;
    while (workers_ < threads && data_pool().try_submit([this] { work(); })) ++workers_;
  }

  void work() ABSL_LOCKS_EXCLUDED(mu_) {
    const Untraced untraced;
    while (work_once()) {
    }
  }

  // Takes a group, changes it and makes it ready. False: there is nothing to do, and this thread is no worker any more.
  // Nothing of this object is used after that.
  bool work_once() ABSL_LOCKS_EXCLUDED(mu_) {
    uint64_t number = 0;
    int64_t size = 0;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &ParallelSource::may_take_or_leave));
      if (should_leave()) {
        --workers_;
        return false;
      }
      taking_ = true;
      number = taken_;
      size = group_;
    }
    const Clock::time_point began = Clock::now();
    bool last = false;
    Group group = taken_from_input(static_cast<size_t>(size), last);
    {
      absl::MutexLock lock(&mu_);
      taking_ = false;
      last_ = last;
      if (group.answers.empty()) return true;
      ++taken_;
    }
    const Clock::time_point taken = Clock::now();
    for (Answer& answer : group.answers) change(answer);
    const Clock::time_point changed = Clock::now();
    const auto count = static_cast<int64_t>(group.answers.size());
    stage_.add(changed - taken, count);
    absl::MutexLock lock(&mu_);
    ready_.emplace(ordered_ ? number : done_++, std::move(group));
    const int64_t fitting = kGroupTakes * count / std::max(changed - began, Clock::duration(1));
    group_ = std::clamp<int64_t>(fitting, 1, std::min(2 * group_, most_in_group_));
    return true;
  }

  // One thread at a time.
  Group taken_from_input(size_t size, bool& last) {
    Group group{.answers = {}, .drained = input_->drained()};
    try {
      while (group.answers.size() < size) {
        std::optional<Columns> element = input_->next();
        if (!element) {
          last = true;
          break;
        }
        group.answers.emplace_back(*std::move(element));
      }
    } catch (...) {
      // That the run of this thread was cancelled is nothing that the next one should hear.
      const Cancellation* const run = TakingFor::current();
      if (run == nullptr || !run->cancelled()) group.answers.emplace_back(std::current_exception());
    }
    return group;
  }

  void change(Answer& answer) const {
    if (std::holds_alternative<std::exception_ptr>(answer)) return;
    try {
      answer = change_(std::get<Columns>(std::move(answer)));
    } catch (...) {
      answer = std::current_exception();
    }
  }

  bool should_leave() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const int threads = stage_.threads();
    return ending_ || last_ || workers_ > threads || taken_ - wanted_ >= 2 * static_cast<uint64_t>(threads);
  }
  bool may_take_or_leave() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !taking_ || should_leave(); }
  bool has_no_workers() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return workers_ == 0; }

  void end() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    ending_ = true;
    mu_.Await(absl::Condition(this, &ParallelSource::has_no_workers));
  }

  const std::function<Columns(Columns)> change_;
  Stage own_stage_;  // for whoever opens a dataset without
  Stage& stage_;
  const bool ordered_;
  const int64_t most_in_group_;
  const std::unique_ptr<Source> input_;  // of the one that has set taking_
  Group current_;                        // that is handed out, by one thread at a time
  size_t at_ = 0;                        // in it

  absl::Mutex mu_;
  std::map<uint64_t, Group> ready_ ABSL_GUARDED_BY(mu_);  // by their place among all, or by when they were done
  uint64_t taken_ ABSL_GUARDED_BY(mu_) = 0;               // groups, of the input
  uint64_t wanted_ ABSL_GUARDED_BY(mu_) = 0;              // the next one
  uint64_t done_ ABSL_GUARDED_BY(mu_) = 0;                // without an order
  int64_t group_ ABSL_GUARDED_BY(mu_) = 1;                // elements in the next one
  int workers_ ABSL_GUARDED_BY(mu_) = 0;                  // threads that were called and have not left
  bool taking_ ABSL_GUARDED_BY(mu_) = false;              // is one of them
  bool last_ ABSL_GUARDED_BY(mu_) = false;                // there are no more
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
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
  int64_t drained() const override { return input_->drained(); }
  int64_t fast_forward(int64_t count) override { return input_->fast_forward(count); }
  bool skip(int64_t count) override { return input_->skip(count); }

 private:
  const std::function<Columns(Columns)> change_;
  const std::unique_ptr<Source> input_;
};

}  // namespace

ElasticPool& data_pool() {
  static auto* const pool = new ElasticPool("data", kMostDataThreads);  // a dataset may be static, too
  return *pool;
}

Parallel parallel_of(const DatasetNode& node) {
  if (const auto* parse = std::get_if<ParseOp>(&node.op())) return parse->parallel;
  if (const auto* decode = std::get_if<DecodeImagesOp>(&node.op())) return decode->parallel;
  if (const auto* function = std::get_if<FunctionOp>(&node.op())) return function->parallel;
  if (const auto* named = std::get_if<RegisteredOp>(&node.op())) return named->parallel;
  if (const auto* native = std::get_if<NativeMapOp>(&node.op())) return native->parallel;
  return {};
}

int possible_threads(Parallel parallel, int cores) {
  if (parallel.threads == kAutoThreads) return cores;
  return std::min(parallel.threads, kMostThreadsPerCore * cores_here());  // a description may come from a stranger
}

std::unique_ptr<Source> open_change(std::function<Columns(Columns)> change, Parallel parallel,
                                    std::unique_ptr<Source> input, const OpenContext& context) {
  const bool pooled = context.stage != nullptr ? context.stage->pooled() : possible_threads(parallel, cores_here()) > 1;
  if (context.example || !pooled) return std::make_unique<ChangeSource>(std::move(change), std::move(input));
  return std::make_unique<ParallelSource>(std::move(change), parallel, std::move(input), context);
}

}  // namespace muster

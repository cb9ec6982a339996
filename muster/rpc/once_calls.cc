#include "muster/rpc/once_calls.h"

#include <algorithm>

#include "muster/rpc/rpc_server.h"

namespace muster {

// Runs in place of the first call of a request.
//
//   wanted --last caller is lost--> unwanted --grace has passed--> cancelled
//     ^                                |
//     '------------- asked again ------'          finish() ends all of these
class OnceCalls::Run final : public RpcCall, public std::enable_shared_from_this<Run> {
 public:
  Run(OnceCalls& owner, uint64_t id, std::shared_ptr<RpcCall> call) : owner_(owner), id_(id), call_(std::move(call)) {
    request_ = std::move(call_->request());
  }

  const std::string& peer() const override { return call_->peer(); }
  std::chrono::system_clock::time_point deadline() const override { return call_->deadline(); }
  void answer(Frame frame) override {
    finish();
    owner_.recent_.finish(id_, Status(), frame);
    call_->answer(std::move(frame));
  }
  void fail(const Status& status) override {
    finish();
    owner_.recent_.finish(id_, status, {});
    call_->fail(status);
  }

  void cancel(const Status& why) { cancellation_.cancel(why); }

  void add_caller(const RpcCall& caller) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      ++callers_;
      deadline_ = std::max(deadline_, caller.deadline());
    }
    auto lost = [weak = weak_from_this()](const Status&) {
      if (std::shared_ptr<Run> run = weak.lock()) run->lose_caller();
    };
    Cancellation::Registration registration = caller.cancellation().on_cancel(lost);
    absl::MutexLock lock(&mu_);
    registrations_.push_back(std::move(registration));
  }

 private:
  void lose_caller() ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      if (finished_ || --callers_ > 0) return;
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - std::chrono::system_clock::now());
      const auto wait = std::min(owner_.options_.grace, left);
      if (wait.count() > 0) {
        auto patience_ends = [weak = weak_from_this(), loss = ++losses_] {
          if (std::shared_ptr<Run> run = weak.lock()) run->end_unless_wanted(loss);
        };
        alarms_.push_back(owner_.timer_.after(absl::FromChrono(wait), std::move(patience_ends)));
        return;
      }
    }
    end();
  }

  void end_unless_wanted(int loss) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      if (callers_ > 0 || losses_ != loss) return;
    }
    end();
  }

  void end() { cancel(Status(StatusCode::kCancelled, "the caller has gone")); }

  // The server may be destroyed once the answer is given: nothing of it is used afterwards.
  void finish() ABSL_LOCKS_EXCLUDED(mu_) {
    std::vector<DeadlineTimer::Alarm> alarms;
    {
      absl::MutexLock lock(&mu_);
      finished_ = true;
      alarms.swap(alarms_);
    }
    owner_.forget(id_);
  }

  OnceCalls& owner_;
  const uint64_t id_;
  const std::shared_ptr<RpcCall> call_;

  absl::Mutex mu_;
  int callers_ ABSL_GUARDED_BY(mu_) = 0;  // that wait for the answer
  int losses_ ABSL_GUARDED_BY(mu_) = 0;   // of the last of them
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  std::chrono::system_clock::time_point deadline_ ABSL_GUARDED_BY(mu_);  // of the most patient one
  std::vector<Cancellation::Registration> registrations_ ABSL_GUARDED_BY(mu_);
  std::vector<DeadlineTimer::Alarm> alarms_ ABSL_GUARDED_BY(mu_);
};

OnceCalls::OnceCalls(OnceCallsOptions options)
    : options_(options), recent_(options.remembered_requests, options.remembered_bytes) {}

OnceCalls::~OnceCalls() = default;

std::shared_ptr<RpcCall> OnceCalls::begin(uint64_t id, std::shared_ptr<RpcCall> call) {
  auto repeat = [call](const Status& status, const Frame& answer) {
    status.ok() ? call->answer(answer) : call->fail(status);
  };
  if (!recent_.begin(id, std::move(repeat))) {
    if (std::shared_ptr<Run> run = find(id)) run->add_caller(*call);
    return nullptr;
  }
  auto run = std::make_shared<Run>(*this, id, call);
  Status cancelled;
  {
    absl::MutexLock lock(&mu_);
    runs_[id] = run;
    cancelled = all_cancelled_;
    if (auto known = cancelled_.find(id); known != cancelled_.end()) cancelled = known->second;
  }
  run->add_caller(*call);
  if (!cancelled.ok()) run->cancel(cancelled);
  return run;
}

void OnceCalls::cancel(uint64_t id, const Status& why) {
  constexpr size_t kRemembered = 256;
  std::shared_ptr<Run> run;
  {
    absl::MutexLock lock(&mu_);
    if (auto it = runs_.find(id); it != runs_.end()) {
      run = it->second.lock();
    } else if (cancelled_.emplace(id, why).second) {
      cancelled_order_.push_back(id);
      if (cancelled_order_.size() > kRemembered) {
        cancelled_.erase(cancelled_order_.front());
        cancelled_order_.pop_front();
      }
    }
  }
  if (run) run->cancel(why);
}

void OnceCalls::cancel_all(const Status& why) {
  std::vector<std::shared_ptr<Run>> runs;
  {
    absl::MutexLock lock(&mu_);
    all_cancelled_ = why;
    for (auto& [id, weak] : runs_) {
      if (auto run = weak.lock()) runs.push_back(std::move(run));
    }
  }
  for (auto& run : runs) run->cancel(why);
}

std::shared_ptr<OnceCalls::Run> OnceCalls::find(uint64_t id) {
  absl::MutexLock lock(&mu_);
  auto it = runs_.find(id);
  return it == runs_.end() ? nullptr : it->second.lock();
}

void OnceCalls::forget(uint64_t id) {
  absl::MutexLock lock(&mu_);
  runs_.erase(id);
}

}  // namespace muster

#include "muster/runtime/worker/lease_holder.h"

#include <absl/synchronization/notification.h>
#include <absl/time/time.h>

#include <algorithm>

#include "muster/base/log.h"
#include "muster/runtime/worker/worker.h"

namespace muster {

// ---- The keeper
std::shared_ptr<LeaseKeeper> LeaseKeeper::shared() {
  static absl::Mutex mu;
  static std::weak_ptr<LeaseKeeper>& known = *new std::weak_ptr<LeaseKeeper>;
  absl::MutexLock lock(&mu);
  std::shared_ptr<LeaseKeeper> keeper = known.lock();
  if (!keeper) known = keeper = std::make_shared<LeaseKeeper>();
  return keeper;
}

LeaseKeeper::LeaseKeeper() : thread_([this] { work(); }) {}

LeaseKeeper::~LeaseKeeper() {
  absl::MutexLock lock(&mu_);
  stopping_ = true;
  changed_.signal_all();
}

uint64_t LeaseKeeper::add(Renew renew) {
  absl::MutexLock lock(&mu_);
  const uint64_t number = next_++;
  users_[number] = {Clock::now(), std::make_shared<const Renew>(std::move(renew))};
  changed_.signal_all();
  return number;
}

void LeaseKeeper::call_now(uint64_t number) {
  absl::MutexLock lock(&mu_);
  auto it = users_.find(number);
  if (it == users_.end()) return;
  it->second.due = Clock::now();
  changed_.signal_all();
}

void LeaseKeeper::remove(uint64_t number) {
  std::shared_ptr<const Renew> last;  // destroyed without the lock
  absl::MutexLock lock(&mu_);
  if (auto it = users_.find(number); it != users_.end()) {
    last = std::move(it->second.renew);
    users_.erase(it);
  }
  while (running_ == number) changed_.wait(mu_);
}

void LeaseKeeper::work() {
  absl::MutexLock lock(&mu_);
  while (!stopping_) {
    auto first = std::min_element(users_.begin(), users_.end(),
                                  [](const auto& a, const auto& b) { return a.second.due < b.second.due; });
    if (first == users_.end()) {
      changed_.wait(mu_);
      continue;
    }
    if (const auto left = first->second.due - Clock::now(); left > Clock::duration::zero()) {
      changed_.wait_for(mu_, absl::FromChrono(left));
      continue;
    }
    const uint64_t number = running_ = first->first;
    first->second.due = Clock::time_point::max();
    std::shared_ptr<const Renew> renew = first->second.renew;
    mu_.Unlock();
    const std::chrono::milliseconds next = (*renew)();
    renew.reset();
    mu_.Lock();
    running_ = 0;
    // It may have been called for meanwhile.
    if (auto it = users_.find(number); it != users_.end()) {
      it->second.due = std::min(it->second.due, Clock::now() + next);
    }
    changed_.signal_all();
  }
}

// ---- The holder
struct LeaseHolder::State : public std::enable_shared_from_this<State> {
  State(Lease l, Peers& p) : lease(std::move(l)), peers(p) {}

  // `answered` is called once, whatever comes of it.
  void renew_at(const std::string& task, const std::function<void()>& answered = [] {}) {
    std::shared_ptr<Worker> worker;
    try {
      worker = peers.worker(task);
    } catch (const Error&) {
      return answered();
    }
    worker->renew(lease,
                  [self = shared_from_this(), worker, task, answered](const Status& status, const LeaseTerms& terms) {
                    if (status.ok()) self->agreed(task, terms);
                    answered();
                  });
  }

  void agreed(const std::string& task, const LeaseTerms& terms) {
    if (terms.lapsed) {
      MUSTER_LOG(error) << task << " did not hear of " << lease.owner.name << " for longer than "
                        << terms.length.count() << " ms and has dropped what it had there";
    }
    const std::chrono::milliseconds next = std::max(renewal_after(terms.length), std::chrono::milliseconds(1));
    absl::MutexLock lock(&mu);
    if (next >= interval) return;
    interval = next;
    if (hurry) hurry();
  }

  std::chrono::milliseconds renew_all() {
    std::vector<std::string> all;
    {
      absl::MutexLock lock(&mu);
      all = tasks;
    }
    for (const std::string& task : all) renew_at(task);
    absl::MutexLock lock(&mu);
    return interval;
  }

  const Lease lease;
  Peers& peers;
  absl::Mutex mu;
  std::vector<std::string> tasks ABSL_GUARDED_BY(mu);
  std::chrono::milliseconds interval ABSL_GUARDED_BY(mu) = renewal_after(kUsualLease);
  std::function<void()> hurry ABSL_GUARDED_BY(mu);  // null when nobody renews
};

LeaseHolder::LeaseHolder(Lease lease, Peers& peers) : state_(std::make_shared<State>(std::move(lease), peers)) {}

LeaseHolder::~LeaseHolder() {
  {
    absl::MutexLock lock(&state_->mu);
    state_->hurry = nullptr;
    state_->tasks.clear();
  }
  absl::MutexLock lock(&mu_);
  if (keeper_) keeper_->remove(number_);
}

const Owner& LeaseHolder::owner() const { return state_->lease.owner; }

void LeaseHolder::hold_at(const std::string& task) {
  {
    absl::MutexLock lock(&state_->mu);
    if (std::find(state_->tasks.begin(), state_->tasks.end(), task) != state_->tasks.end()) return;
  }
  absl::Notification answered;
  state_->renew_at(task, [&] { answered.Notify(); });
  answered.WaitForNotification();
  {
    absl::MutexLock lock(&state_->mu);
    if (std::find(state_->tasks.begin(), state_->tasks.end(), task) != state_->tasks.end()) return;
    state_->tasks.push_back(task);
  }
  absl::MutexLock lock(&mu_);
  if (keeper_) return;
  keeper_ = LeaseKeeper::shared();
  number_ = keeper_->add([state = state_] { return state->renew_all(); });
  absl::MutexLock state_lock(&state_->mu);
  state_->hurry = [keeper = keeper_.get(), number = number_] { keeper->call_now(number); };
}

void LeaseHolder::release() {
  std::vector<std::string> tasks;
  {
    absl::MutexLock lock(&state_->mu);
    tasks.swap(state_->tasks);
  }
  for (const std::string& task : tasks) {
    try {
      state_->peers.worker(task)->release(state_->lease);
    } catch (const Error& error) {
      MUSTER_LOG(info) << task << " cannot be told that " << owner().name
                       << " is done with it; what it has there, if the task lives, goes when the lease ends: "
                       << error.what();
    }
  }
}

}  // namespace muster

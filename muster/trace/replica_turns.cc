#include "muster/trace/replica_turns.h"

#include <system_error>

#include "muster/base/check.h"

namespace muster {

void ReplicaTurns::run(const std::function<void(int call)>& function) {
  function_ = &function;
  if (count_ > 1) scopes_.emplace(ThreadState::here(), at::ThreadLocalState());
  call_now(0);
  if (others_.empty()) {
    for (int call = 1; call < count_ && !failed(); ++call) call_now(call);
  } else {
    // Round and round, until all have ended.
    while (true) {
      pass_on(0);
      await(0);
      absl::MutexLock lock(&mu_);
      if (ended_ == count_) break;
    }
    for (std::thread& other : others_) other.join();
  }
  absl::MutexLock lock(&mu_);
  if (failure_) std::rethrow_exception(failure_);
}

void ReplicaTurns::meet(int call) {
  if (others_.empty()) {
    MUSTER_CHECK(call == 0) << "the first has ended, so there is nobody to meet";
    begin_others();
  }
  if (failed()) throw Abandoned();
  leave_(call);
  pass_on(call);
  await(call);
  if (failed()) throw Abandoned();
  arrive_(call);
}

void ReplicaTurns::begin_others() {
  try {
    for (int call = 1; call < count_; ++call) {
      others_.emplace_back([this, call] {
        ThreadState::here() = scopes_->first;
        const at::ThreadLocalStateGuard as_the_caller(scopes_->second);
        call_in_turn(call);
      });
    }
  } catch (const std::system_error&) {  // no more threads: those that there are end again
    absl::MutexLock lock(&mu_);
    failure_ = std::current_exception();
    ended_ += count_ - 1 - static_cast<int>(others_.size());
  }
}

void ReplicaTurns::call_in_turn(int call) {
  await(call);
  if (failed()) {
    absl::MutexLock lock(&mu_);
    ++ended_;
  } else {
    call_now(call);
  }
  while (true) {
    pass_on(call);
    {
      absl::MutexLock lock(&mu_);
      if (ended_ == count_) return;
    }
    await(call);
  }
}

void ReplicaTurns::call_now(int call) {
  std::exception_ptr failure;
  try {
    arrive_(call);
    (*function_)(call);
    leave_(call);
  } catch (const Abandoned&) {
  } catch (...) {
    failure = std::current_exception();
  }
  absl::MutexLock lock(&mu_);
  ++ended_;
  if (!failure_) failure_ = failure;
}

void ReplicaTurns::pass_on(int call) {
  absl::MutexLock lock(&mu_);
  turn_ = (call + 1) % (static_cast<int>(others_.size()) + 1);
}

void ReplicaTurns::await(int call) {
  absl::MutexLock lock(&mu_);
  auto its_turn = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return turn_ == call || ended_ == count_; };
  mu_.Await(absl::Condition(&its_turn));
}

bool ReplicaTurns::failed() const {
  absl::MutexLock lock(&mu_);
  return failure_ != nullptr;
}

}  // namespace muster

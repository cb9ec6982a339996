#include "muster/data/sources/part_queue.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace muster {
namespace {

constexpr absl::Duration kLookAgain = absl::Milliseconds(20);  // whether anybody still wants the answer
constexpr std::chrono::seconds kNobodyThere(15);               // to hand out
constexpr absl::Duration kMomentForOthers = absl::Milliseconds(20);

}  // namespace

void PartQueue::set_parts(int64_t count, uint64_t which) {
  absl::MutexLock lock(&mu_);
  parts_ = count;
  which_ = which;
}

void PartQueue::begin_round() {
  absl::MutexLock lock(&mu_);
  ++round_;
  before_round_ = static_cast<int64_t>(forgotten_ + taken_.size());
}

bool PartQueue::any_this_round() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int64_t>(forgotten_ + taken_.size()) > before_round_;
}

int64_t PartQueue::taken() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int64_t>(forgotten_ + taken_.size());
}

void PartQueue::returned(int64_t drained) {
  absl::MutexLock lock(&mu_);
  ++in_use_;
  drained_ = std::max(drained_, drained);
}

void PartQueue::used(int64_t elements) {
  PartsDone waiter;
  PartsWanted told;
  {
    absl::MutexLock lock(&mu_);
    in_use_ -= elements;
    if (in_use_ > 0) return;
    used_ = drained_;
    // Nobody may ask for an element here for a long time, and others wait to know whether this one is done.
    if (asks_ || !waiter_ || used_ <= static_cast<int64_t>(forgotten_)) return;
    told = report();
    waiter = std::exchange(waiter_, nullptr);
  }
  waiter({}, std::move(told));
}

void PartQueue::taken_again() {
  PartsDone waiter;
  PartsWanted told;
  {
    absl::MutexLock lock(&mu_);
    if (std::exchange(idle_, 0) == 0 || asks_ || !waiter_) return;
    told = report();
    waiter = std::exchange(waiter_, nullptr);
  }
  waiter({}, std::move(told));
}

PartsWanted PartQueue::report() {
  said_ = used_;
  PartsWanted told = request();
  told.request = 0;
  return told;
}

void PartQueue::forget_said() {
  const auto known = std::max<int64_t>(0, said_ - static_cast<int64_t>(forgotten_));
  taken_.erase(taken_.begin(), taken_.begin() + static_cast<ptrdiff_t>(known));
  forgotten_ += static_cast<size_t>(known);
}

PartsWanted PartQueue::request() const {
  const int64_t new_ones = std::max<int64_t>(0, said_ - static_cast<int64_t>(forgotten_));
  return {.request = asked_,
          .parts = parts_,
          .which = which_,
          .round = round_,
          .late = late_,
          .ended = ended_,
          .idle = idle_,
          .needs = needs_,
          .used = {taken_.begin(), taken_.begin() + static_cast<ptrdiff_t>(new_ones)}};
}

PartsGiven PartQueue::ask(const std::optional<Taking>& at_end, const CheckOpen& check) {
  PartsDone waiter;
  PartsWanted wanted;
  const auto asked_at = std::chrono::steady_clock::now();
  {
    absl::MutexLock lock(&mu_);
    if (!asks_ && !answer_) {  // else the one who asked has been cancelled, and the answer is as good for this one
      asks_ = true;
      ++asked_;
      ended_ = at_end.has_value();
      idle_ = at_end && at_end->has == in_use_ ? in_use_ : 0;
      needs_ = at_end ? at_end->needs : 0;
      said_ = used_;
      wanted = request();
      waiter = std::exchange(waiter_, nullptr);
    }
  }
  if (waiter) waiter({}, std::move(wanted));
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      if (!answer_ && !closed_) changed_.wait_for(mu_, kLookAgain);
      if (closed_) throw cancelled("the dataset was closed");
      if (answer_) {
        PartsGiven given = *std::exchange(answer_, std::nullopt);
        // To one who was cancelled and needed more.
        const bool of_another = given.what == PartsGiven::What::kEnd && at_end && at_end->needs < needs_;
        if (of_another) given.what = PartsGiven::What::kElsewhere;
        return given;
      }
      if (std::chrono::steady_clock::now() - asked_at > kNobodyThere)
        throw unavailable("nobody hands out the parts of the dataset");
    }
    check();
  }
}

std::optional<int64_t> PartQueue::take(const CheckOpen& check) {
  const PartsGiven given = ask({}, check);
  switch (given.what) {
    case PartsGiven::What::kPart: return given.part.number;
    case PartsGiven::What::kError: throw Error(given.error);
    default: return std::nullopt;
  }
}

bool PartQueue::more_after_end(const Taking& how, const CheckOpen& check) {
  {
    absl::MutexLock lock(&mu_);
    late_ = true;
    drained_ = static_cast<int64_t>(forgotten_ + taken_.size());
    if (in_use_ == 0) used_ = drained_;
  }
  while (true) {
    const PartsGiven given = ask(how, check);
    switch (given.what) {
      case PartsGiven::What::kAgain: return true;
      case PartsGiven::What::kEnd: return false;
      case PartsGiven::What::kError: throw Error(given.error);
      default: break;
    }
    {
      absl::MutexLock lock(&mu_);
      if (!closed_) changed_.wait_for(mu_, kMomentForOthers);
    }
    if (how.may_come_back) throw others_still_read();
    check();
  }
}

uint64_t PartQueue::hand_out(const PartsGiven& given, PartsDone wanted) {
  PartsWanted pending;
  {
    absl::MutexLock lock(&mu_);
    if (closed_) throw cancelled("the dataset was closed");
    if (given.what != PartsGiven::What::kNothing && asks_ && given.request == asked_) {
      asks_ = false;
      forget_said();  // it is known now
      if (given.what == PartsGiven::What::kPart) taken_.push_back(given.part);
      answer_ = given;
      changed_.signal_all();
    }
    if (!asks_) {
      if (given.what == PartsGiven::What::kNothing) forget_said();   // after a report
      PartsDone before = std::exchange(waiter_, std::move(wanted));  // whose connection is gone
      return ++waiters_;
    }
    pending = request();
  }
  wanted({}, std::move(pending));
  return 0;
}

void PartQueue::give_up(uint64_t waiter, const Status& why) {
  PartsDone given_up;
  {
    absl::MutexLock lock(&mu_);
    if (waiter != waiters_ || !waiter_) return;
    given_up = std::exchange(waiter_, nullptr);
  }
  given_up(why, {});
}

void PartQueue::close() {
  PartsDone waiter;
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
    waiter = std::exchange(waiter_, nullptr);
    changed_.signal_all();
  }
  if (waiter) waiter(Status(StatusCode::kCancelled, "the dataset was closed"), {});
}

}  // namespace muster

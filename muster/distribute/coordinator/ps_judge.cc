#include "muster/distribute/coordinator/ps_judge.h"

#include <algorithm>

#include "muster/base/log.h"
#include "muster/rpc/calls/nobody_listens.h"
#include "muster/runtime/worker/missing_program.h"
#include "muster/runtime/worker/restart.h"

namespace muster {
namespace {

// A worker whose packets vanished may be about to connect, which ends in failure or not within this (rpc/task_wire.cc).
constexpr std::chrono::milliseconds kConnecting(5'000);
constexpr int kLooksBeforeTheEnd = 5;                // at one that does not answer
constexpr std::chrono::milliseconds kSlow(1'000);    // all looks, if what they wait for is no short cut
constexpr std::chrono::milliseconds kLookAgain(50);  // at a parameter server whose port refused

}  // namespace

bool tells_of_loss(const Status& status) {
  return status.code() == StatusCode::kUnavailable || is_restart(status) || is_missing_program(status);
}

std::string_view without_task(const Status& failure) {
  std::string_view words = failure.message();
  if (!words.starts_with(failure.task())) return words;
  words.remove_prefix(failure.task().size());
  for (std::string_view filler : {" at ", " "}) {
    if (words.starts_with(filler)) return words.substr(filler.size());
  }
  return words;
}

bool PsJudge::concerns(const Status& failure) const {
  return is_ps(failure.task()) && (failure.code() == StatusCode::kDeadlineExceeded || tells_of_loss(failure));
}

void PsJudge::met(size_t worker, const Status& failure, Time began) {
  const bool late = failure.code() == StatusCode::kDeadlineExceeded;
  const bool anew = note_trouble(worker, began);  // or with others of the same message
  if (late) {
    if (anew && !tolerate_late(failure)) judge(failure);
    return;
  }
  const Met met = note(failure, began);
  if (!met.tolerated) return judge(failure);
  if (met.anew) look_whether_gone(failure);
}

bool PsJudge::Trouble::count(Time began) {
  if (times > 0 && began <= last) return false;
  last = std::chrono::steady_clock::now();
  if (times++ == 0) first = last;
  return true;
}

PsJudge::Met PsJudge::note(const Status& failure, Time began) {
  // One that answers as another incarnation has lost its variables; nothing brings them back.
  if (is_restart(failure)) return {.tolerated = false, .anew = true};
  absl::MutexLock lock(&mu_);
  Trouble& trouble = ps_trouble_[failure.task()];
  const bool anew = trouble.count(began);
  if (anew && trouble.times == 1) {
    MUSTER_LOG(warning) << failure.task() << " was not reached, which is tolerated " << options_.transient_failures
                        << " times: " << without_task(failure);
  }
  return {.tolerated = trouble.times <= options_.transient_failures, .anew = anew};
}

void PsJudge::look_whether_gone(const Status& failure) {
  {
    absl::MutexLock lock(&mu_);
    if (!looked_at_.insert(failure.task()).second) return;
  }
  options_.in_background([this, task = failure.task()] {
    if (const auto why = found_gone(task)) end_without(*why, "is gone, and its variables with it");
    absl::MutexLock lock(&mu_);
    looked_at_.erase(task);
  });
}

std::optional<Status> PsJudge::found_gone(const std::string& task) const {
  const int looks = std::max(2, options_.transient_failures - 1);  // the failure that made us look counts, too
  for (int look = 1;; ++look) {
    try {
      options_.check_alive(task);
      return std::nullopt;
    } catch (const Error& error) {
      const Status& found = error.status();
      if (is_restart(found)) return found;
      if (!is_nobody_there(found)) return std::nullopt;
      if (look == looks) return found;
    }
    if (!options_.pause(kLookAgain)) return std::nullopt;
  }
}

std::optional<Status> PsJudge::found_unreachable(const std::string& task) const {
  const auto slow = std::chrono::steady_clock::now() + kSlow;
  for (int look = 1;; ++look) {
    try {
      options_.check_alive(task);
      return std::nullopt;
    } catch (const Error& error) {
      const bool sure = look == kLooksBeforeTheEnd || std::chrono::steady_clock::now() > slow;
      if (sure || is_restart(error.status()) || !options_.pause(kLookAgain)) return error.status();
    }
  }
}

bool PsJudge::tolerate_late(const Status& failure) {
  const auto most = std::max<size_t>(1, options_.workers / 10);
  absl::MutexLock lock(&mu_);
  const auto times = static_cast<size_t>(++late_);
  MUSTER_LOG(warning) << failure.task() << " did not answer a worker in time (" << times << " times; " << most
                      << " are tolerated): " << failure.message();
  if (times <= most) return true;
  late_ = 0;
  return false;
}

bool PsJudge::note_trouble(size_t worker, Time began) {
  absl::MutexLock lock(&mu_);
  any_worker_trouble_ = true;
  return worker_trouble_[worker].count(began);
}

void PsJudge::reached(size_t worker) {
  if (!any_worker_trouble_.load(std::memory_order_relaxed)) return;
  absl::MutexLock lock(&mu_);
  worker_trouble_.erase(worker);
  any_worker_trouble_ = !worker_trouble_.empty();
}

void PsJudge::judge(const Status& failure) {
  if (is_restart(failure)) return end_without(failure, "is gone, and its variables with it");
  {
    absl::MutexLock lock(&mu_);
    if (!judged_.insert(failure.task()).second) return;
  }
  options_.in_background([this, failure] {
    if (const auto why = found_unreachable(failure.task())) {
      end_without(*why, "is gone, and its variables with it");
    } else if (!do_without_cut_off(failure)) {
      end_without(failure, "is out of reach of all workers");
    }
    absl::MutexLock lock(&mu_);
    judged_.erase(failure.task());
    ps_trouble_.erase(failure.task());
  });
}

bool PsJudge::do_without_cut_off(const Status& failure) {
  const std::vector<size_t> up = options_.workers_up();
  std::vector<size_t> cut_off;
  bool others = false, too_often = true;
  {
    absl::MutexLock lock(&mu_);
    for (const size_t worker : up) {
      auto trouble = worker_trouble_.find(worker);
      if (trouble == worker_trouble_.end()) {
        others = true;
      } else {
        cut_off.push_back(worker);
        const Trouble& known = trouble->second;
        too_often = too_often && known.times > options_.transient_failures && known.last - known.first > kConnecting;
      }
    }
  }
  if (!others) return !too_often;
  for (const size_t worker : cut_off) options_.do_without(worker, failure);
  return true;
}

void PsJudge::end_without(const Status& failure, const std::string& why) {
  options_.end(Status(StatusCode::kUnavailable,
                      str_cat("parameter server ", failure.task(), " ", why, ": ", without_task(failure)),
                      failure.task()));
}

void PsJudge::ask_all() {
  if (asking_.exchange(true)) return;
  options_.in_background([this] {
    for (const std::string& task : options_.ps) {
      const Time began = std::chrono::steady_clock::now();
      try {
        options_.check_alive(task);
      } catch (const Error& error) {
        if (!tells_of_loss(error.status()) || note(error.status(), began).tolerated) continue;
        judge(error.status());
        break;
      }
    }
    asking_ = false;
  });
}

}  // namespace muster

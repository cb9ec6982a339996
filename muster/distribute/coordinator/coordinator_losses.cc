// What a failure of a task means to the coordinator, and how tasks that are lost are looked for.
#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <algorithm>
#include <random>

#include "muster/base/cancellation.h"
#include "muster/base/deadline_timer.h"
#include "muster/base/log.h"
#include "muster/distribute/coordinator/coordinator_core.h"
#include "muster/runtime/worker/missing_program.h"

namespace muster {
namespace {

constexpr std::chrono::milliseconds kShortestPause(50), kLongestPause(2'000);  // between two looks for a worker
constexpr std::chrono::milliseconds kCutOffPause(1'000);  // for one that reaches no parameter server
constexpr int kTellAgain =
    360;  // parts of the time for which a worker is looked for, before its user hears of it again

// The longer one is missing, and the more are, the rarer it is looked for; and never at the same moment as all others
// that were lost with it.
std::chrono::milliseconds until_next_look(std::chrono::nanoseconds missing_for, size_t missing) {
  thread_local std::minstd_rand random{std::random_device{}()};
  const auto least = kShortestPause + std::chrono::microseconds(500) * missing;
  const std::chrono::duration<double> pause = std::clamp<std::chrono::duration<double>>(
      missing_for / 8, least, std::max<std::chrono::duration<double>>(least, kLongestPause));
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      pause * std::uniform_real_distribution<double>(0.75, 1.25)(random));
}

// False: it was cancelled meanwhile.
bool passes(std::chrono::milliseconds time, const Cancellation& cancellation) {
  absl::Mutex mu;
  bool cancelled = false;
  const auto registration = cancellation.on_cancel([&](const Status&) {
    absl::MutexLock lock(&mu);
    cancelled = true;
  });
  absl::MutexLock lock(&mu);
  return !await_for(mu, absl::Condition(&cancelled), absl::FromChrono(time));
}

}  // namespace

std::unique_ptr<PsJudge> CoordinatorCore::make_judge(const std::vector<std::string>& ps) {
  PsJudgeOptions options{.ps = {ps.begin(), ps.end()},
                         .workers = workers_.size(),
                         .transient_failures = options_.transient_ps_failures,
                         .check_alive = [this](const std::string& task) { variables_->check_alive(task); },
                         .workers_up =
                             [this] {
                               std::vector<size_t> up;
                               for (const auto& slot : workers_) {
                                 if (slot->up()) up.push_back(slot->index());
                               }
                               return up;
                             },
                         .do_without =
                             [this](size_t worker, const Status& why) {
                               WorkerSlot& slot = *workers_[worker];
                               lose(slot, slot.generation(), why, kCutOffPause);
                             },
                         .end =
                             [this](const Status& why) {
                               queue_.stop(why);
                               of_tagged_->cancel(why);
                             },
                         .in_background = [this](std::function<void()> work) { in_background(std::move(work)); },
                         .pause = [this](std::chrono::milliseconds time) { return passes(time, ending_); }};
  return std::make_unique<PsJudge>(std::move(options));
}

void CoordinatorCore::watch_parameter_servers(const WorkerSlot& lost) {
  const bool others_up = std::any_of(workers_.begin(), workers_.end(), [](const auto& slot) { return slot->up(); });
  const auto first = std::find_if(workers_.begin(), workers_.end(), [](const auto& slot) { return !slot->given_up; });
  if (others_up || first == workers_.end() || first->get() != &lost) return;  // one who asks is enough
  judge_->ask_all();
}

// ---- Workers that are not there
void CoordinatorCore::lose(WorkerSlot& slot, uint64_t generation, const Status& why, std::chrono::milliseconds pause) {
  if (!slot.lose(generation)) return;
  loads_->lost(slot.index(), generation);
  if (is_missing_program(why)) slot.forget();  // it was cut off for longer than a lease
  if (stopping_) return;                       // what was under way is cut off then, which tells nothing of the worker
  ++metrics_.worker_failures;
  MUSTER_LOG(warning) << slot.task() << " is lost, its closures go to others: "
                      << (why.task() == slot.task() ? without_task(why) : why.message());
  look_later({.slot = slot, .was_there = true}, pause);
}

void CoordinatorCore::look_later(Search search, std::chrono::milliseconds pause) {
  set_alarm(search.slot.index(), absl::FromChrono(pause), [this, search] { look(search); });
}

void CoordinatorCore::look(Search search) {
  begin_work();
  auto answered = [this, search](const Status& status, const WorkerStatus& of_worker) {
    if (status.ok()) {
      {
        absl::MutexLock lock(&mu_);
        reported_.tasks.emplace(search.slot.task(), of_worker);  // from here on
      }
      in_background([this, search] { use_again(search); });
    } else {
      still_missing(search, status);
    }
    end_work();
  };
  std::shared_ptr<Worker> worker;
  try {
    worker = peers_->worker(search.slot.task());
  } catch (...) {
    return answered(status_of(std::current_exception()), {});
  }
  ++metrics_.looks_for_workers;
  worker->start_status(ending_, answered);
}

void CoordinatorCore::use_again(const Search& search) {
  try {
    search.slot.revive();
  } catch (...) {
    return still_missing(search, status_of(std::current_exception()));
  }
  loads_->found(search.slot.index(), search.slot.found());
  if (search.was_there) metrics_.server_def_update.record(std::chrono::steady_clock::now() - search.began);
  if (search.was_there || search.told) {
    MUSTER_LOG(info) << search.slot.task() << (search.was_there ? " is back" : " is there");
  }
  serve(search.slot);
}

void CoordinatorCore::still_missing(Search search, const Status& why) {
  if (stopping_) return;
  if (std::chrono::steady_clock::now() - search.began > options_.worker_recovery_limit) {
    return give_up(search.slot, str_cat("did not come back within ", options_.worker_recovery_limit.count(), " ms"),
                   why);
  }
  // One that was there may be about to get other certificates; with one that never was, the job is set up wrongly.
  if (!search.was_there && why.code() == StatusCode::kUnauthenticated) {
    return give_up(search.slot, "cannot be talked to", why);
  }
  if (!search.was_there && !search.told) {
    MUSTER_LOG(info) << "waiting for worker " << search.slot.index() << " at " << search.slot.address();
    search.told = true;
  }
  watch_parameter_servers(search.slot);
  const auto missing_for = std::chrono::steady_clock::now() - search.began;
  if (search.tell_again.count() == 0) search.tell_again = options_.worker_recovery_limit / kTellAgain;
  if (missing_for > search.tell_again) {
    using std::chrono::seconds;
    MUSTER_LOG(warning) << search.slot.task() << " is missing for "
                        << std::chrono::duration_cast<seconds>(missing_for).count() << " s, and given up after "
                        << std::chrono::duration_cast<seconds>(options_.worker_recovery_limit).count()
                        << " s: " << without_task(why);
    search.tell_again *= 2;
  }
  const auto missing = std::count_if(workers_.begin(), workers_.end(), [](const auto& slot) { return !slot->up(); });
  look_later(std::move(search), until_next_look(missing_for, static_cast<size_t>(missing)));
}

void CoordinatorCore::give_up(WorkerSlot& slot, const std::string& what, const Status& why) {
  const std::string text = str_cat(slot.task(), " ", what, " and is given up: ", why.message());
  MUSTER_LOG(error) << text;
  slot.given_up = true;
  queue_.drop_tagged(static_cast<int>(slot.index()), Status(StatusCode::kUnavailable, text, slot.task()));
  std::string names;
  for (const auto& other : workers_) {
    if (!other->given_up) return;
    names += " " + other->task();
  }
  const bool refused = why.code() == StatusCode::kUnauthenticated;
  queue_.stop(Status(refused ? why.code() : StatusCode::kUnavailable,
                     str_cat("no worker is left; given up:", names, refused ? "; " + text : ""), slot.task()));
}

}  // namespace muster

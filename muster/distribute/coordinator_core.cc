#include "muster/distribute/coordinator_core.h"

#include <algorithm>

#include "muster/base/log.h"
#include "muster/graph/device_spec.h"
#include "muster/runtime/missing_program.h"
#include "muster/runtime/restart.h"

namespace muster {
namespace {

constexpr std::chrono::milliseconds kLongestPause(100);   // between two looks for a worker
constexpr std::chrono::milliseconds kCutOffPause(1'000);  // for one that reaches no parameter server
// A worker whose packets vanished may be about to connect, which ends in failure or not within this (rpc/task_wire.cc).
constexpr std::chrono::milliseconds kConnecting(5'000);

std::vector<std::string> devices_of(Peers& peers, const std::vector<std::string>& tasks) {
  std::vector<std::string> devices;
  for (const std::string& task : tasks) {
    for (std::string& device : peers.worker(task)->status(/*wait=*/true).devices) devices.push_back(std::move(device));
  }
  return devices;
}

// A task that ends cancels what it runs, and one that hangs does not answer in time: if nobody here has asked for that,
// the task is gone.
Status as_loss(const Status& failure, const Cancellation* cancellation = nullptr) {
  const bool unasked = cancellation == nullptr || !cancellation->cancelled();
  if (failure.code() != StatusCode::kCancelled || !unasked) return failure;
  return {StatusCode::kUnavailable, failure.message(), failure.task()};
}
Status late_is_lost(const Status& failure) {
  if (failure.code() != StatusCode::kDeadlineExceeded) return failure;
  return {StatusCode::kUnavailable, failure.message(), failure.task()};
}

// What happened, for a sentence that has named the task.
std::string_view without_task(const Status& failure) {
  std::string_view words = failure.message();
  if (!words.starts_with(failure.task())) return words;
  words.remove_prefix(failure.task().size());
  for (std::string_view filler : {" at ", " "}) {
    if (words.starts_with(filler)) return words.substr(filler.size());
  }
  return words;
}

// What tells of a task that is gone or was restarted, and nothing of what it was asked to do.
bool tells_of_loss(const Status& status) {
  return status.code() == StatusCode::kUnavailable || is_restart(status) || is_missing_program(status);
}

}  // namespace

// Iterators may outlive the coordinator, and the last one may end on any thread: so they know this and not the core.
class CoordinatorCore::Keeper : public ResourceKeeper {
 public:
  explicit Keeper(CoordinatorCore& core) : core_(&core) {}

  void release(std::shared_ptr<PerWorkerResource> resource) override {
    absl::MutexLock lock(&mu_);  // the core does not end meanwhile, and does no more than to note it
    if (core_ != nullptr) core_->release(std::move(resource));
  }
  void close() {
    absl::MutexLock lock(&mu_);
    core_ = nullptr;
  }

 private:
  absl::Mutex mu_;
  CoordinatorCore* core_ ABSL_GUARDED_BY(mu_);
};

CoordinatorCore::CoordinatorCore(const ParameterServerStrategy& strategy, CoordinatorOptions options)
    : options_(std::move(options)),
      peers_(strategy.peers()),
      variables_(strategy.variables()),
      queue_({.capacity = options_.queue_capacity, .on_put = [this] { dispatch(); }}),
      keeper_(std::make_shared<Keeper>(*this)),
      ps_(strategy.parameter_servers().begin(), strategy.parameter_servers().end()) {
  if (options_.depth < 1)
    throw invalid_argument("ClusterCoordinator: depth is ", options_.depth, ", expected 1 or more");
  const ProgramSetting setting{.variables = variables_,
                               .ps_devices = devices_of(*peers_, strategy.parameter_servers())};
  for (const std::string& task : strategy.workers()) {
    const size_t index = workers_.size();
    workers_.push_back(std::make_unique<WorkerSlot>(index, task, strategy.worker_addresses()[index], peers_, setting));
  }
  watchdog_.emplace(WatchdogOptions{.timeout = options_.watchdog});
  for (const auto& slot : workers_) look({.slot = *slot, .was_there = false});
  tidy_later();
}

CoordinatorCore::~CoordinatorCore() { stop(); }

void CoordinatorCore::stop() {
  if (stopping_.exchange(true)) return;
  keeper_->close();
  if (const size_t left = queue_.queued() + queue_.inflight(); left > 0 && std::uncaught_exceptions() == 0) {
    MUSTER_LOG(warning) << left << " scheduled functions have not run, and the coordinator ends: join() waits for them";
  }
  const Status why(StatusCode::kCancelled, "the coordinator was destroyed");
  queue_.stop(why);
  of_tagged_->cancel(why);
  ending_.cancel(why);
  Alarms looks;
  {
    absl::MutexLock lock(&mu_);
    looks.swap(looks_);
  }
  looks.clear();  // waits for one that has just begun
  {
    absl::MutexLock lock(&mu_);
    while (under_way_ > 0) changed_.Wait(&mu_);
  }
  for (const auto& slot : workers_) slot->clear();
}

void CoordinatorCore::put(std::shared_ptr<ScheduledClosure> closure) {
  const std::optional<int> tag = closure->tag;
  queue_.put(std::move(closure));
  if (!tag || !workers_[*tag]->given_up) return;
  const std::string& task = workers_[*tag]->task();
  queue_.drop_tagged(*tag, Status(StatusCode::kUnavailable, str_cat(task, " is given up"), task));
}

bool CoordinatorCore::wait(std::optional<std::chrono::milliseconds> timeout) { return queue_.wait(timeout); }
bool CoordinatorCore::done() { return queue_.done(); }

Metrics& CoordinatorCore::metrics() {
  metrics_.queued_closures = static_cast<int64_t>(queue_.queued());
  metrics_.inflight_closures = static_cast<int64_t>(queue_.inflight());
  return metrics_;
}

// ---- What is under way
void CoordinatorCore::begin_work() {
  absl::MutexLock lock(&mu_);
  ++under_way_;
}

void CoordinatorCore::end_work() {
  absl::MutexLock lock(&mu_);
  --under_way_;
  if (under_way_ == 0) changed_.SignalAll();
}

void CoordinatorCore::in_background(std::function<void()> work) {
  begin_work();
  pool_.submit([this, work = std::move(work)]() mutable {
    work();
    work = nullptr;  // with all that it holds
    end_work();
  });
}

void CoordinatorCore::tidy_later() {
  std::unique_ptr<DeadlineTimer::Alarm> last;  // ends without the lock
  absl::MutexLock lock(&mu_);
  if (stopping_) return;
  auto& next = looks_[workers_.size()];
  last = std::move(next);
  next = std::make_unique<DeadlineTimer::Alarm>(timer_.after(absl::FromChrono(options_.tidy_every), [this] {
    for (const auto& slot : workers_) {
      if (slot->up() && slot->untidy()) in_background([&slot = *slot] { slot.tidy(); });
    }
    tidy_later();
  }));
}

std::weak_ptr<ResourceKeeper> CoordinatorCore::keeper() const { return keeper_; }

void CoordinatorCore::release(std::shared_ptr<PerWorkerResource> resource) {
  in_background([this, resource = std::move(resource)] {
    for (const auto& slot : workers_) slot->drop(resource);
  });
}

void CoordinatorCore::add_resource(const std::shared_ptr<Variable::State>& variable,
                                   std::shared_ptr<PerWorkerResource> resource) {
  absl::MutexLock lock(&mu_);
  resources_[variable.get()] = std::move(resource);  // which keeps the variable, and so its address
}

std::shared_ptr<PerWorkerResource> CoordinatorCore::resource_of(const Variable::State* variable) const {
  absl::MutexLock lock(&mu_);
  auto it = resources_.find(variable);
  return it == resources_.end() ? nullptr : it->second;
}

// ---- To the workers
// Whoever comes while another thread is at it leaves a note, and that one looks once more.
void CoordinatorCore::dispatch() {
  if (dispatching_.fetch_add(1) > 0) return;
  int seen = 1;
  do {
    seen = dispatching_.load();
    const size_t first = next_worker_++;
    // Those that have nothing to do come first.
    for (int under_way = 0; under_way < options_.depth;) {
      bool sent = false;
      for (size_t i = 0; i < workers_.size(); ++i) {
        sent = send_to(*workers_[(first + i) % workers_.size()], under_way) || sent;
      }
      if (!sent) ++under_way;
    }
  } while (!dispatching_.compare_exchange_strong(seen, 0));
}

bool CoordinatorCore::send_to(WorkerSlot& slot, int under_way) {
  if (stopping_ || !slot.up() || slot.batches_in_flight != under_way) return false;
  if (under_way > 0 && !options_.overlap && !slot.is_quick()) return false;
  // Nobody gets more than its share of what there is.
  const size_t share = queue_.queued() / workers_.size() + 1;
  std::vector<std::shared_ptr<Closure>> taken;
  if (queue_.take(std::min(slot.batch_size(), share), static_cast<int>(slot.index()), taken) == 0) return false;
  Batch tagged, others;
  others.reserve(taken.size());
  for (auto& closure : taken) {
    Batch& batch = closure->tag ? tagged : others;
    batch.push_back(std::static_pointer_cast<ScheduledClosure>(std::move(closure)));
  }
  if (!tagged.empty()) send(slot, std::move(tagged));
  if (!others.empty()) send(slot, std::move(others));
  return true;
}

void CoordinatorCore::send(WorkerSlot& slot, Batch batch) {
  ++slot.batches_in_flight;
  Sent sent{.batch = std::move(batch),
            .cancellation = of_tagged_,
            .generation = slot.generation(),
            .began = std::chrono::steady_clock::now()};
  if (!sent.batch.front()->tag) sent.cancellation = queue_.cancellation();
  for (const auto& closure : sent.batch) closure->note_variants();
  std::vector<ProgramRun> runs;
  runs.reserve(sent.batch.size());
  for (const auto& closure : sent.batch) {
    auto run = slot.ready(*closure);
    if (!run) {
      auto later = std::make_shared<Sent>(std::move(sent));
      return in_background([this, &slot, later] { prepare_and_begin(slot, std::move(*later)); });
    }
    runs.push_back(std::move(*run));
  }
  begin(slot, std::move(sent), std::move(runs));
}

void CoordinatorCore::prepare_and_begin(WorkerSlot& slot, Sent sent) {
  Batch prepared;
  std::vector<ProgramRun> runs;
  Status lost;
  for (const std::shared_ptr<ScheduledClosure>& closure : sent.batch) {
    const Time began = std::chrono::steady_clock::now();
    Status failure = lost;
    if (lost.ok()) {
      try {
        slot.prepare(*closure);
        if (auto run = slot.ready(*closure)) {
          prepared.push_back(closure);
          runs.push_back(std::move(*run));
          continue;
        }
        failure = restarted(slot.task(), "the worker was restarted");
      } catch (...) {
        failure = late_is_lost(as_loss(status_of(std::current_exception()).from(slot.task())));
      }
    }
    if (tells_of_loss(failure) && !is_ps(failure.task())) {
      lost = failure;
      lose(slot, sent.generation, lost);
      queue_.put_back(closure);
    } else {
      failed(slot, closure, failure, began);
    }
  }
  sent.batch = std::move(prepared);
  if (!sent.batch.empty()) return begin(slot, std::move(sent), std::move(runs));
  --slot.batches_in_flight;
  dispatch();
}

void CoordinatorCore::begin(WorkerSlot& slot, Sent made, std::vector<ProgramRun> runs) {
  begin_work();
  made.began = std::chrono::steady_clock::now();
  auto sent = std::make_shared<Sent>(std::move(made));
  auto done = [this, &slot, sent](const Status& status, std::vector<RunOutcome> outcomes) {
    sent->asked_to_end.reset();
    ended(slot, *sent, status, std::move(outcomes));
    sent->batch.clear();  // with all that the closures hold
    dispatch();
    end_work();
  };
  try {
    // The worker is asked to end, and answers when nothing runs any more; only the end of the coordinator cuts it off.
    const std::shared_ptr<Worker> worker = slot.worker();
    const uint64_t meeting = random_id();
    sent->asked_to_end =
        sent->cancellation->on_cancel([worker, meeting](const Status& why) { worker->abort(meeting, why); });
    worker->start_runs(
        std::move(runs),
        {.replica = slot.index(), .cancellation = &ending_, .meeting = meeting, .sequence = options_.overlap ? 0 : id_},
        done);
  } catch (...) {
    done(status_of(std::current_exception()).from(slot.task()), {});  // it was not sent
  }
}

// ---- From the workers
void CoordinatorCore::ended(WorkerSlot& slot, Sent& sent, const Status& status, std::vector<RunOutcome> outcomes) {
  if (watchdog_) watchdog_->alive();
  const Batch& batch = sent.batch;
  const auto took = std::chrono::steady_clock::now() - sent.began;
  auto is_loss = [&](const Status& failure) { return tells_of_loss(failure) && !is_ps(failure.task()); };
  if (!status.ok()) {
    const Status failure = late_is_lost(as_loss(status.from(slot.task()), sent.cancellation.get()));
    const bool loss = is_loss(failure);
    if (loss) lose(slot, sent.generation, failure);
    --slot.batches_in_flight;
    for (const auto& closure : batch) loss ? repeat(closure) : failed(slot, closure, failure, sent.began);
    return;
  }
  std::chrono::nanoseconds at_worker{};
  for (const RunOutcome& outcome : outcomes) at_worker += outcome.took;
  slot.learn(batch.size(), at_worker);
  std::vector<std::shared_ptr<Closure>> finished;
  finished.reserve(batch.size());
  Batch again;
  std::vector<std::pair<std::shared_ptr<ScheduledClosure>, ElementSpecs>> to_trace;
  for (size_t i = 0; i < batch.size(); ++i) {
    RunOutcome& outcome = outcomes[i];
    if (outcome.status.ok()) {
      if (batch[i]->watched()) batch[i]->result->set(std::move(outcome.outputs), batch[i]->ran(outcome));
      metrics_.closure_execution.record(took / static_cast<int64_t>(batch.size()));
      finished.push_back(batch[i]);
      continue;
    }
    const Status failure = as_loss(outcome.status, sent.cancellation.get());
    if (is_loss(failure)) {
      lose(slot, sent.generation, failure);
      again.push_back(batch[i]);
    } else if (auto found = other_elements_of(failure); found && batch[i]->trace) {
      to_trace.emplace_back(batch[i], std::move(*found));
    } else {
      failed(slot, batch[i], failure, sent.began);
    }
  }
  --slot.batches_in_flight;
  if (!finished.empty()) {
    forget_trouble(slot);
    queue_.mark_finished(finished);
  }
  for (const auto& closure : again) repeat(closure);
  if (to_trace.empty()) return;
  in_background([this, &slot, to_trace = std::move(to_trace)] {
    // The first one last, to the front.
    for (size_t i = to_trace.size(); i-- > 0;) trace_and_put_back(slot, to_trace[i].first, to_trace[i].second);
  });
}

void CoordinatorCore::trace_and_put_back(const WorkerSlot& slot, const std::shared_ptr<ScheduledClosure>& closure,
                                         const ElementSpecs& found) {
  const Time began = std::chrono::steady_clock::now();
  auto trace = [&](const ElementSpecs& elements) {
    auto traced = closure->trace(elements);
    metrics_.function_tracing.record(std::chrono::steady_clock::now() - began);
    return traced;
  };
  try {
    closure->entry->variant(found, trace);
  } catch (...) {
    return failed(slot, closure, status_of(std::current_exception()), began);
  }
  queue_.put_back(closure);
}

void CoordinatorCore::failed(const WorkerSlot& slot, const std::shared_ptr<ScheduledClosure>& closure,
                             const Status& failure, Time began) {
  const bool late = failure.code() == StatusCode::kDeadlineExceeded;
  if (!is_ps(failure.task()) || !(late || tells_of_loss(failure))) {
    queue_.mark_failed(*closure, failure);  // first, so that who has fetched the error finds it pending
    return closure->cancelled(failure);
  }
  const bool anew = note_trouble(slot, began);  // or with others of the same message
  if (!(late ? !anew || tolerate_late(failure) : tolerate(failure, began))) judge(failure);
  repeat(closure);  // which tells it, if that was the end
}

void CoordinatorCore::repeat(const std::shared_ptr<ScheduledClosure>& closure) {
  ++metrics_.repeated_closures;
  queue_.put_back(closure);
}

// ---- Lost parameter servers
bool CoordinatorCore::Trouble::count(Time began) {
  if (times > 0 && began <= last) return false;
  last = std::chrono::steady_clock::now();
  if (times++ == 0) first = last;
  return true;
}

bool CoordinatorCore::tolerate(const Status& failure, Time began) {
  // One that answers as another incarnation has lost its variables; nothing brings them back.
  if (is_restart(failure)) return false;
  absl::MutexLock lock(&mu_);
  Trouble& trouble = ps_trouble_[failure.task()];
  if (trouble.count(began) && trouble.times == 1) {
    MUSTER_LOG(warning) << failure.task() << " was not reached, which is tolerated " << options_.transient_ps_failures
                        << " times: " << without_task(failure);
  }
  return trouble.times <= options_.transient_ps_failures;
}

bool CoordinatorCore::tolerate_late(const Status& failure) {
  const auto most = std::max<size_t>(1, workers_.size() / 10);
  absl::MutexLock lock(&mu_);
  const auto times = static_cast<size_t>(++late_);
  MUSTER_LOG(warning) << failure.task() << " did not answer a worker in time (" << times << " times; " << most
                      << " are tolerated): " << failure.message();
  if (times <= most) return true;
  late_ = 0;
  return false;
}

bool CoordinatorCore::note_trouble(const WorkerSlot& slot, Time began) {
  absl::MutexLock lock(&mu_);
  any_worker_trouble_ = true;
  return worker_trouble_[slot.index()].count(began);
}

void CoordinatorCore::forget_trouble(const WorkerSlot& slot) {
  if (!any_worker_trouble_.load(std::memory_order_relaxed)) return;
  absl::MutexLock lock(&mu_);
  worker_trouble_.erase(slot.index());
  any_worker_trouble_ = !worker_trouble_.empty();
}

void CoordinatorCore::judge(const Status& failure) {
  if (is_restart(failure)) return end_without(failure, "is gone, and its variables with it");
  {
    absl::MutexLock lock(&mu_);
    if (!judged_.insert(failure.task()).second) return;
  }
  in_background([this, failure] {
    try {
      variables_->check_alive(failure.task());
      if (!do_without_cut_off(failure)) end_without(failure, "is out of reach of all workers");
    } catch (const Error& error) {
      end_without(error.status(), "is gone, and its variables with it");
    }
    absl::MutexLock lock(&mu_);
    judged_.erase(failure.task());
    ps_trouble_.erase(failure.task());
  });
}

bool CoordinatorCore::do_without_cut_off(const Status& failure) {
  std::vector<WorkerSlot*> cut_off;
  bool others = false, too_often = true;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& slot : workers_) {
      if (!slot->up()) continue;
      auto trouble = worker_trouble_.find(slot->index());
      if (trouble == worker_trouble_.end()) {
        others = true;
      } else {
        cut_off.push_back(slot.get());
        const Trouble& known = trouble->second;
        too_often = too_often && known.times > options_.transient_ps_failures && known.last - known.first > kConnecting;
      }
    }
  }
  if (!others) return !too_often;
  for (WorkerSlot* slot : cut_off) lose(*slot, slot->generation(), failure, kCutOffPause);
  return true;
}

void CoordinatorCore::end_without(const Status& failure, const std::string& why) {
  const Status gone(StatusCode::kUnavailable,
                    str_cat("parameter server ", failure.task(), " ", why, ": ", without_task(failure)),
                    failure.task());
  queue_.stop(gone);
  of_tagged_->cancel(gone);
}

void CoordinatorCore::watch_parameter_servers(const WorkerSlot& lost) {
  const bool others_up = std::any_of(workers_.begin(), workers_.end(), [](const auto& slot) { return slot->up(); });
  const auto first = std::find_if(workers_.begin(), workers_.end(), [](const auto& slot) { return !slot->given_up; });
  if (others_up || first == workers_.end() || first->get() != &lost) return;  // one who asks is enough
  if (!asking_ps_.exchange(true)) in_background([this] { ask_parameter_servers(); });
}

void CoordinatorCore::ask_parameter_servers() {
  for (const std::string& task : ps_) {
    const Time began = std::chrono::steady_clock::now();
    try {
      variables_->check_alive(task);
    } catch (const Error& error) {
      if (!tells_of_loss(error.status()) || tolerate(error.status(), began)) continue;
      judge(error.status());
      break;
    }
  }
  asking_ps_ = false;
}

// ---- Workers that are not there
void CoordinatorCore::lose(WorkerSlot& slot, uint64_t generation, const Status& why, std::chrono::milliseconds pause) {
  if (!slot.lose(generation)) return;
  if (is_missing_program(why)) slot.forget();  // it was cut off for longer than a lease
  if (stopping_) return;                       // what was under way is cut off then, which tells nothing of the worker
  ++metrics_.worker_failures;
  MUSTER_LOG(warning) << slot.task() << " is lost, its closures go to others: "
                      << (why.task() == slot.task() ? without_task(why) : why.message());
  look_later({.slot = slot, .was_there = true}, pause);
}

void CoordinatorCore::look_later(Search search, std::chrono::milliseconds pause) {
  std::unique_ptr<DeadlineTimer::Alarm> last;  // ends without the lock
  absl::MutexLock lock(&mu_);
  if (stopping_) return;
  auto& look = looks_[search.slot.index()];
  last = std::move(look);
  look = std::make_unique<DeadlineTimer::Alarm>(
      timer_.after(absl::FromChrono(pause), [this, search] { this->look(search); }));
}

void CoordinatorCore::look(Search search) {
  begin_work();
  auto answered = [this, search](const Status& status, const WorkerStatus&) {
    if (status.ok()) {
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
  worker->start_status(ending_, answered);
}

void CoordinatorCore::use_again(const Search& search) {
  try {
    search.slot.revive();
  } catch (...) {
    return still_missing(search, status_of(std::current_exception()));
  }
  search.slot.found();
  if (search.was_there) metrics_.server_def_update.record(std::chrono::steady_clock::now() - search.began);
  if (search.was_there || search.told) {
    MUSTER_LOG(info) << search.slot.task() << (search.was_there ? " is back" : " is there");
  }
  dispatch();
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
  const auto pause = search.pause;
  search.pause = std::min(pause * 2, kLongestPause);
  look_later(std::move(search), pause);
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

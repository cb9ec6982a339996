#include "muster/distribute/coordinator/coordinator_core.h"

#include <algorithm>
#include <thread>

#include "muster/base/log.h"
#include "muster/distribute/servers/lost_with_server.h"
#include "muster/graph/device_spec.h"
#include "muster/runtime/worker/restart.h"

namespace muster {
namespace {

constexpr int64_t kEnoughToTell = 1'000;                      // closures, before it is said what limits them
constexpr int kLongEnough = 12;                               // or so many times of tidy_every, if they are fewer
constexpr std::chrono::microseconds kWorthAMessage(100);      // of work
constexpr std::chrono::milliseconds kLong(50);                // next to which the way of a message is nothing
constexpr std::chrono::milliseconds kWarm(1);                 // of work, after which a worker is still as it was before
constexpr std::chrono::microseconds kBurst(20);               // between closures that are scheduled in a loop
constexpr absl::Duration kGatherFor = absl::Milliseconds(1);  // that closures wait for each other at most

std::vector<WorkerStatus> statuses_of(Peers& peers, const std::vector<std::string>& tasks) {
  std::vector<WorkerStatus> statuses;
  for (const std::string& task : tasks) statuses.push_back(peers.worker(task)->status(/*wait=*/true));
  return statuses;
}

std::vector<std::string> devices_of(const std::vector<WorkerStatus>& tasks) {
  std::vector<std::string> devices;
  for (const WorkerStatus& task : tasks) devices.insert(devices.end(), task.devices.begin(), task.devices.end());
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
      queue_({.capacity = options_.queue_capacity, .on_put = [this](std::optional<int> tag) { put_for(tag); }}),
      keeper_(std::make_shared<Keeper>(*this)) {
  if (options_.depth < 1)
    throw invalid_argument("ClusterCoordinator: depth is ", options_.depth, ", expected 1 or more");
  const std::vector<WorkerStatus> ps = statuses_of(*peers_, strategy.parameter_servers());
  {
    absl::MutexLock lock(&mu_);
    for (const WorkerStatus& status : ps) reported_.tasks.emplace(status.task, status);
  }
  const ProgramSetting setting{.variables = variables_, .ps_devices = devices_of(ps)};
  for (const std::string& task : strategy.workers()) {
    const size_t index = workers_.size();
    workers_.push_back(std::make_unique<WorkerSlot>(index, task, strategy.worker_addresses()[index], peers_, setting));
  }
  loads_.emplace(workers_.size(), options_.depth);
  judge_ = make_judge(strategy.parameter_servers());
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
  end_work();
  {
    absl::MutexLock lock(&mu_);
    while (!all_ended_) changed_.Wait(&mu_);
  }
  for (const auto& slot : workers_) slot->clear();
}

void CoordinatorCore::put(std::shared_ptr<ScheduledClosure> closure) {
  spent_.free_some();
  const std::optional<int> tag = closure->tag;
  queue_.put(std::move(closure));
  if (!tag || !workers_[*tag]->given_up) return;
  const std::string& task = workers_[*tag]->task();
  queue_.drop_tagged(*tag, Status(StatusCode::kUnavailable, str_cat(task, " is given up"), task));
}

bool CoordinatorCore::wait(std::optional<std::chrono::milliseconds> timeout) {
  in_burst_ = false;  // nothing more comes for a while
  dispatch();
  const bool ended = queue_.wait(timeout);
  spent_.free_all();
  return ended;
}
bool CoordinatorCore::done() { return queue_.done(); }
bool CoordinatorCore::has_ended() const { return queue_.stopped() || variables_->servers() != servers_; }

Metrics& CoordinatorCore::metrics() {
  metrics_.queued_closures = static_cast<int64_t>(queue_.queued());
  metrics_.inflight_closures = static_cast<int64_t>(queue_.inflight());
  return metrics_;
}

// ---- What it spends its time on
CoordinatorReport CoordinatorCore::report(bool last) {
  std::vector<std::string> tasks;
  for (const auto& slot : workers_) tasks.push_back(slot->task());
  tasks.insert(tasks.end(), judge_->ps().begin(), judge_->ps().end());
  struct Answers {
    absl::Mutex mu;
    std::vector<std::pair<Status, WorkerStatus>> of ABSL_GUARDED_BY(mu);
    size_t missing ABSL_GUARDED_BY(mu);
  };
  auto answers = std::make_shared<Answers>();
  {
    absl::MutexLock lock(&answers->mu);
    answers->of.resize(tasks.size());
    answers->missing = tasks.size();
  }
  for (size_t i = 0; i < tasks.size(); ++i) {
    auto answered = [answers, i](const Status& status, WorkerStatus of_task) {
      absl::MutexLock lock(&answers->mu);
      answers->of[i] = {status, std::move(of_task)};
      --answers->missing;
    };
    try {
      peers_->worker(tasks[i])->start_status(ending_, answered);
    } catch (...) {
      answered(status_of(std::current_exception()), {});
    }
  }
  std::vector<std::pair<Status, WorkerStatus>> statuses;
  {
    absl::MutexLock lock(&answers->mu);  // each of them has a deadline
    answers->mu.Await(absl::Condition(+[](size_t* missing) { return *missing == 0; }, &answers->missing));
    statuses = std::move(answers->of);
  }

  Reported now;
  now.closures = metrics_.closure_execution.snapshot().count;
  CoordinatorReport report;
  absl::MutexLock lock(&mu_);
  report.seconds = std::chrono::duration<double>(now.when - reported_.when).count();
  report.closures_per_second = static_cast<double>(now.closures - reported_.closures) / report.seconds;
  report.chief_cpu = (now.cpu_seconds - reported_.cpu_seconds) / report.seconds;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const auto& [status, latest] = statuses[i];
    TaskReport& task = (i < workers_.size() ? report.workers : report.parameter_servers).emplace_back();
    task.task = tasks[i];
    task.status = status;
    if (status.ok() && i < workers_.size() && !workers_[i]->up()) {
      task.status = Status(StatusCode::kUnavailable, "is not used: it is lost, or was not there yet", tasks[i]);
    }
    if (!status.ok()) continue;
    WorkerStatus before = reported_.tasks[tasks[i]];
    if (before.incarnation != latest.incarnation) before = {};
    const double seconds = std::max(latest.uptime_seconds - before.uptime_seconds, 1e-6);
    task.cores = latest.cores;
    task.cpu = (latest.cpu_seconds - before.cpu_seconds) / seconds;
    if (before.machine_cores > 0) {
      const double idle = (latest.machine_idle_seconds - before.machine_idle_seconds) / seconds;
      task.machine = std::clamp(1 - idle / before.machine_cores, 0.0, 1.0);
    }
    task.running = (latest.run_seconds - before.run_seconds) / seconds;
    task.input = (latest.input_seconds - before.input_seconds) / seconds;
    task.input_stage = latest.input_stage;
    task.peers = (latest.peer_seconds - before.peer_seconds) / seconds;
    now.tasks[tasks[i]] = latest;
  }
  if (last) reported_ = std::move(now);
  return report;
}

void CoordinatorCore::tell_limit() {
  const CoordinatorReport so_far = report(/*last=*/false);
  limit_told_ = so_far.limit() != Limit::kNothing;
  if (limit_told_) MUSTER_LOG(info) << so_far.sentence();
}

// ---- What is under way
void CoordinatorCore::end_work() {
  if (under_way_.fetch_sub(1) > 1) return;
  absl::MutexLock lock(&mu_);
  all_ended_ = true;
  changed_.SignalAll();
}

void CoordinatorCore::in_background(std::function<void()> work) {
  begin_work();
  pool_.submit([this, work = std::move(work)]() mutable {
    work();
    work = nullptr;  // with all that it holds
    end_work();
  });
}

void CoordinatorCore::set_alarm(size_t number, absl::Duration after, std::function<void()> then) {
  std::unique_ptr<DeadlineTimer::Alarm> last;  // ends without the lock
  absl::MutexLock lock(&mu_);
  if (stopping_) return;
  auto& alarm = looks_[number];
  last = std::move(alarm);
  alarm = std::make_unique<DeadlineTimer::Alarm>(timer_.after(after, std::move(then)));
}

void CoordinatorCore::tidy_later() {
  set_alarm(workers_.size(), absl::FromChrono(options_.tidy_every), [this] {
    const bool enough = metrics_.closure_execution.snapshot().count > kEnoughToTell || ++tidied_ >= kLongEnough;
    if (enough && queue_.inflight() > 0 && !limit_told_.exchange(true)) in_background([this] { tell_limit(); });
    for (const auto& slot : workers_) {
      if (slot->up() && slot->untidy()) in_background([&slot = *slot] { slot.tidy(); });
    }
    tidy_later();
  });
}

std::weak_ptr<ResourceKeeper> CoordinatorCore::keeper() const { return keeper_; }

void CoordinatorCore::make(const std::shared_ptr<PerWorkerResource>& resource, const std::shared_ptr<void>& hold) {
  for (const auto& slot : workers_) {
    if (!slot->up()) continue;
    in_background([&slot = *slot, resource, hold] {
      try {
        slot.prepare_resource(resource);
      } catch (const Error&) {  // nobody needs it yet
      }
    });
  }
}

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
void CoordinatorCore::dispatch() {
  // None is left behind: who gives a worker back looks at the queue afterwards, who queues at the workers.
  while (!stopping_ && queue_.available() > 0 && !wait_for_more()) {
    const std::optional<size_t> worker = loads_->take();
    if (!worker) return;
    send_to(*workers_[*worker]);
  }
}

void CoordinatorCore::serve(WorkerSlot& slot) {
  while (!stopping_ && queue_.any_tagged() && loads_->take(slot.index())) {
    if (!send_to(slot)) break;
  }
  dispatch();
}

void CoordinatorCore::put_for(std::optional<int> tag) {
  if (tag) return serve(*workers_[*tag]);
  auto now = [] { return std::chrono::steady_clock::now().time_since_epoch(); };
  const Time::duration since = now() - Time::duration(last_put_.load(std::memory_order_relaxed));
  in_burst_.store(since < kBurst, std::memory_order_relaxed);
  dispatch();
  last_put_.store(now().count(), std::memory_order_relaxed);  // what it takes to send does not count
}

// A message costs more than a short closure. So the first one goes at once, and those that come while it is under way
// go together, when they are worth a message, when an answer comes, or when a moment is over.
bool CoordinatorCore::wait_for_more() {
  if (!in_burst_.load(std::memory_order_relaxed) || queue_.expected() >= kWorthAMessage) return false;
  if (loads_->under_way() == 0) return false;
  if (!dispatches_later_.exchange(true)) dispatch_later();
  return true;
}

void CoordinatorCore::dispatch_later() {
  set_alarm(workers_.size() + 1, kGatherFor, [this] {
    dispatches_later_ = false;
    in_burst_ = false;
    dispatch();
  });
}

// REQUIRES: a message to it is counted. False, and it is not, if there was nothing for it.
bool CoordinatorCore::send_to(WorkerSlot& slot) {
  // Nobody gets more than its share of what there is, unless that is not worth a message.
  const size_t most = slot.batch_size(), share = queue_.available() / workers_.size() + 1;
  std::vector<std::shared_ptr<Closure>> taken;
  if (queue_.take(std::min(most, share), static_cast<int>(slot.index()), taken, most, kWorthAMessage) == 0) {
    loads_->give_back(slot.index(), /*was_long=*/true);
    return false;
  }
  Batch tagged, others;
  others.reserve(taken.size());
  for (auto& closure : taken) {
    Batch& batch = closure->tag ? tagged : others;
    batch.push_back(std::static_pointer_cast<ScheduledClosure>(std::move(closure)));
  }
  // With both of them there are two messages.
  if (!tagged.empty() && !others.empty()) loads_->count_another(slot.index());
  if (!tagged.empty()) send(slot, std::move(tagged));
  if (!others.empty()) send(slot, std::move(others));
  return true;
}

void CoordinatorCore::send(WorkerSlot& slot, Batch batch) {
  std::chrono::nanoseconds takes{};
  for (const auto& closure : batch) takes += closure->takes();
  Sent sent{.batch = std::move(batch),
            .cancellation = of_tagged_,
            .generation = slot.generation(),
            .is_long = !options_.overlap && takes > kLong,
            .began = std::chrono::steady_clock::now()};
  if (!sent.is_long) loads_->count_short(slot.index());
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
    if (tells_of_loss(failure) && !judge_->is_ps(failure.task())) {
      lost = failure;
      lose(slot, sent.generation, lost);
      queue_.put_back(closure);
    } else {
      failed(slot, closure, failure, began);
    }
  }
  sent.batch = std::move(prepared);
  if (!sent.batch.empty()) return begin(slot, std::move(sent), std::move(runs));
  loads_->give_back(slot.index(), sent.is_long);
  serve(slot);
}

void CoordinatorCore::begin(WorkerSlot& slot, Sent made, std::vector<ProgramRun> runs) {
  begin_work();
  made.began = std::chrono::steady_clock::now();
  auto sent = std::make_shared<Sent>(std::move(made));
  auto finish = [this, &slot, sent](const Status& status, std::vector<RunOutcome> outcomes) {
    sent->asked_to_end.reset();
    ended(slot, *sent, status, std::move(outcomes));
    spent_.give(std::exchange(sent->batch, {}));  // who lets go of all that the closures hold
    serve(slot);
    end_work();
  };
  // One that fails at once is not sent again from here: the stack would grow with each of them.
  auto starting = std::make_shared<std::atomic<std::thread::id>>(std::this_thread::get_id());
  auto done = [this, finish, starting](const Status& status, std::vector<RunOutcome> outcomes) {
    if (starting->load() != std::this_thread::get_id()) return finish(status, std::move(outcomes));
    auto kept = std::make_shared<std::vector<RunOutcome>>(std::move(outcomes));
    in_background([finish, status, kept] { finish(status, std::move(*kept)); });
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
  starting->store({});
}

// ---- From the workers
void CoordinatorCore::ended(WorkerSlot& slot, Sent& sent, const Status& status, std::vector<RunOutcome> outcomes) {
  if (watchdog_) watchdog_->alive();
  const Batch& batch = sent.batch;
  const auto took = std::chrono::steady_clock::now() - sent.began;
  auto is_loss = [&](const Status& failure) { return tells_of_loss(failure) && !judge_->is_ps(failure.task()); };
  if (!status.ok()) {
    const Status failure = late_is_lost(as_loss(status.from(slot.task()), sent.cancellation.get()));
    const bool loss = is_loss(failure);
    if (loss) lose(slot, sent.generation, failure);
    loads_->give_back(slot.index(), sent.is_long);
    for (const auto& closure : batch) loss ? repeat(closure) : failed(slot, closure, failure, sent.began);
    return sent.batch.clear();
  }
  std::chrono::nanoseconds at_worker{};
  for (const RunOutcome& outcome : outcomes) at_worker += outcome.took;
  slot.learn(batch.size(), at_worker);
  // What reads a dataset is for all workers in turn, and so is what was to be run elsewhere.
  const bool warm =
      at_worker < kWarm &&
      std::all_of(outcomes.begin(), outcomes.end(), [](const RunOutcome& outcome) { return outcome.status.ok(); }) &&
      std::all_of(batch.begin(), batch.end(), [](const auto& closure) { return closure->resources.empty(); });
  // First: who has a result and schedules more finds the worker free.
  loads_->give_back(slot.index(), sent.is_long, warm);
  size_t finished = 0;
  Batch again, elsewhere;
  std::vector<std::pair<std::shared_ptr<ScheduledClosure>, ElementSpecs>> to_trace;
  for (size_t i = 0; i < batch.size(); ++i) {
    RunOutcome& outcome = outcomes[i];
    if (outcome.status.ok()) {
      if (batch[i]->watched()) batch[i]->result->set(std::move(outcome.outputs), batch[i]->ran(outcome));
      ++finished;
      continue;
    }
    const Status failure = as_loss(outcome.status, sent.cancellation.get());
    if (is_loss(failure)) {
      lose(slot, sent.generation, failure);
      again.push_back(batch[i]);
    } else if (is_read_elsewhere(failure)) {
      elsewhere.push_back(batch[i]);
    } else if (auto found = other_elements_of(failure); found && batch[i]->trace) {
      to_trace.emplace_back(batch[i], std::move(*found));
    } else {
      failed(slot, batch[i], failure, sent.began);
    }
  }
  if (finished > 0) {
    learn(batch, outcomes);
    metrics_.closure_execution.record(took / static_cast<int64_t>(batch.size()), static_cast<int64_t>(finished));
    judge_->reached(slot.index());
    queue_.mark_finished(finished, batch.front()->tag.has_value());
  }
  for (const auto& closure : again) repeat(closure);
  for (const auto& closure : elsewhere) queue_.put_back(closure);  // the next one to get it has waited longest
  if (finished < batch.size()) sent.batch.clear();                 // others have some of them, and none is spent
  if (to_trace.empty()) return;
  in_background([this, &slot, to_trace = std::move(to_trace)] {
    // The first one last, to the front.
    for (size_t i = to_trace.size(); i-- > 0;) trace_and_put_back(slot, to_trace[i].first, to_trace[i].second);
  });
}

// By the mean of those of a function, told once: all workers tell of the same few functions, and the first closure of a
// message takes longer than those that find its program in the cache.
void CoordinatorCore::learn(const Batch& finished, const std::vector<RunOutcome>& outcomes) {
  const ScheduledClosure* of = nullptr;
  std::chrono::nanoseconds took{};
  int64_t times = 0;
  auto tell = [&] {
    if (times > 0) of->learn(took / times);
  };
  for (size_t i = 0; i < finished.size(); ++i) {
    if (!outcomes[i].status.ok()) continue;
    if (of == nullptr || of->entry != finished[i]->entry) {
      tell();
      of = finished[i].get();
      took = {};
      times = 0;
    }
    took += outcomes[i].took;
    ++times;
  }
  tell();
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
  if (!judge_->concerns(failure)) {
    const Status told = lost_with_server(failure);
    queue_.mark_failed(*closure, told);  // first, so that who has fetched the error finds it pending
    return closure->cancelled(told);
  }
  judge_->met(slot.index(), failure, began);
  repeat(closure);  // which tells it, if that was the end
}

void CoordinatorCore::repeat(const std::shared_ptr<ScheduledClosure>& closure) {
  ++metrics_.repeated_closures;
  queue_.put_back(closure);
}

}  // namespace muster

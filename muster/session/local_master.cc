#include "muster/session/local_master.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <set>

#include "muster/base/blocking.h"
#include "muster/base/log.h"
#include "muster/graph/checker.h"
#include "muster/graph/device_spec.h"
#include "muster/graph/placement/split.h"
#include "muster/session/step_program.h"

namespace muster {
namespace {

void for_each_device(const Program& program, const std::function<void(const std::string&)>& visit) {
  for (const std::string& device : program.devices) visit(device);
  for (const Program& body : program.bodies) for_each_device(body, visit);
}

constexpr size_t kMostNames = 16;  // in a message

Error no_such_task(const Program& program, const std::string& task, const std::string& here,
                   const std::vector<std::string>& others) {
  std::string there = here;
  for (size_t i = 0; i < std::min(others.size(), kMostNames); ++i) str_append(there, ", ", others[i]);
  if (others.size() > kMostNames) str_append(there, " and ", others.size() - kMostNames, " more");
  return invalid_argument("program \"", program.name, "\": ", task,
                          " does not exist, nor does any device of it; the cluster has ", there);
}

}  // namespace

// What a session has: programs at this task's worker, and a way to end what runs.
struct LocalMaster::SessionState {
  using Clock = std::chrono::steady_clock;

  std::string id;
  SessionConfig config;
  Cancellation ended{};
  std::atomic<Clock::time_point> used = Clock::now();  // the last time
  std::optional<LeaseHolder> variables{};              // of an isolated session, at other tasks
  absl::Mutex mu;
  std::set<uint64_t> programs ABSL_GUARDED_BY(mu);
  bool closed ABSL_GUARDED_BY(mu) = false;
};

LocalMaster::LocalMaster(LocalWorker& worker, LocalMasterOptions options)
    : worker_(worker), options_(std::move(options)) {
  absl::MutexLock lock(&mu_);
  tasks_ = options_.tasks;
  devices_[worker_.devices().task()] = worker_.devices().names();
}

LocalMaster::~LocalMaster() {
  std::optional<DeadlineTimer::Alarm> tick;  // destroyed without the lock: that waits for one that looks at sessions
  absl::flat_hash_map<std::string, std::shared_ptr<SessionState>> sessions;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    sessions.swap(sessions_);
    if (tick_) tick.emplace(std::move(*tick_));
    tick_.reset();
  }
  for (auto& [id, session] : sessions) end(*session, Status(StatusCode::kUnavailable, "the master stops"));
}

std::string LocalMaster::create_session(const SessionConfig& config) {
  if (config.container.find("//") != std::string::npos) {
    throw invalid_argument("container \"", config.container, "\": a name has no \"//\" in it");
  }
  auto session = std::make_shared<SessionState>();
  session->id = absl::StrCat(absl::Hex(random_id()));
  session->config = config;
  if (config.isolated) {
    session->config.container = "session " + session->id;
    if (options_.peers != nullptr) {
      session->variables.emplace(
          Lease{{random_id(), str_cat("session ", session->id, " of ", worker_.devices().task())},
                {session->config.container}},
          *options_.peers);
    }
  }
  absl::MutexLock lock(&mu_);
  if (sessions_.size() >= options_.max_sessions) {
    throw resource_exhausted(worker_.devices().task(), " has ", sessions_.size(), " sessions, and no more than ",
                             options_.max_sessions, " are allowed; close some, or reset it");
  }
  sessions_[session->id] = session;
  if (config.leased) wait_for_tick();
  return session->id;
}

void LocalMaster::wait_for_tick() {
  constexpr int kTicks = 4;  // in the length of a lease
  if (tick_ || stopping_) return;
  tick_.emplace(timer_.after(absl::FromChrono(options_.lease) / kTicks, [this] { end_abandoned(); }));
}

void LocalMaster::end_abandoned() {
  std::vector<std::shared_ptr<SessionState>> abandoned;
  {
    absl::MutexLock lock(&mu_);
    tick_.reset();
    const auto latest = SessionState::Clock::now() - options_.lease;
    bool leased = false;
    absl::erase_if(sessions_, [&](auto& entry) {
      if (!entry.second->config.leased) return false;
      const bool busy = entry.second.use_count() > 1;  // a call has it
      if (busy || entry.second->used.load() > latest) {
        leased = true;
        return false;
      }
      abandoned.push_back(std::move(entry.second));
      return true;
    });
    if (leased) wait_for_tick();
  }
  for (auto& session : abandoned) {
    // Its programs may have parts at tasks that do not answer.
    pool_.submit([this, session = std::move(session)] {
      MUSTER_LOG(info) << worker_.devices().task() << ": the client of session " << session->id
                       << " was not heard of for " << options_.lease.count() << " ms; the session ends";
      end(*session, Status(StatusCode::kAborted, str_cat("session ", session->id, " was not used for long")));
    });
  }
}

void LocalMaster::renew(const std::string& session, RenewDone done) {
  Status status;
  try {
    find(session);
  } catch (const Error& error) {
    status = error.status();
  }
  done(status, {.length = options_.lease});
}

std::shared_ptr<LocalMaster::SessionState> LocalMaster::find(const std::string& session) const {
  absl::MutexLock lock(&mu_);
  auto it = sessions_.find(session);
  if (it == sessions_.end()) {
    throw aborted("Session handle is not found: ", worker_.devices().task(), " has no session \"", session,
                  "\"; it was closed, reset or not used for long, or the task was restarted since");
  }
  it->second->used = SessionState::Clock::now();
  return it->second;
}

WorkerStatus LocalMaster::ask(const std::string& task, bool wait) {
  if (options_.peers == nullptr) throw invalid_argument("task ", task, ": there is no cluster");
  return options_.peers->worker(task)->status(wait);
}

std::set<std::string> LocalMaster::tasks_of(const Program& program) const {
  std::set<std::string> named;
  const DeviceSpec own = DeviceSpec::parse(worker_.devices().task());
  for_each_device(program, [&](const std::string& device) {
    DeviceSpec spec = DeviceSpec::parse(device);
    if (!spec.job && !spec.task) return;
    DeviceSpec task{
        .job = spec.job ? spec.job : own.job, .replica = spec.replica.value_or(0), .task = spec.task.value_or(0)};
    if (!spec.job) task.task = spec.task;
    named.insert(task.to_string());
  });
  named.erase(worker_.devices().task());
  return named;
}

std::vector<std::string> LocalMaster::devices_for(const Program& program, const SessionConfig& config) {
  const std::string& here = worker_.devices().task();
  std::set<std::string> named = tasks_of(program);
  named.insert(here);
  const std::vector<std::string> others = tasks();
  const std::set<std::string> known(others.begin(), others.end());
  std::vector<std::string> missing, devices;
  {
    absl::MutexLock lock(&mu_);
    for (const std::string& task : named) {
      if (auto it = devices_.find(task); it != devices_.end()) {
        devices.insert(devices.end(), it->second.begin(), it->second.end());
      } else if (known.contains(task)) {
        missing.push_back(task);
      } else if (task != here) {
        throw no_such_task(program, task, here, others);
      }
    }
  }
  // All at once, so that several tasks that are down cost the time of one.
  std::vector<std::future<WorkerStatus>> answers;
  for (const std::string& task : missing) {
    answers.push_back(std::async(std::launch::async, [this, task] { return ask(task, /*wait=*/true); }));
  }
  std::vector<Status> failures;
  for (size_t i = 0; i < answers.size(); ++i) {
    try {
      const Waiting waiting;
      const WorkerStatus status = answers[i].get();
      devices.insert(devices.end(), status.devices.begin(), status.devices.end());
      absl::MutexLock lock(&mu_);
      devices_[missing[i]] = status.devices;
    } catch (const Error& error) {
      failures.push_back(error.status());
    }
  }
  if (failures.size() == 1) throw Error(failures[0]);
  if (!failures.empty()) {
    std::string text = absl::StrCat(failures.size(), " tasks cannot be reached:");
    for (const Status& failure : failures) absl::StrAppend(&text, "\n  ", failure.message());
    throw Error(Status(failures[0].code(), text, failures[0].task()));
  }
  if (!config.device_filters.empty()) {
    std::erase_if(devices, [&](const std::string& device) {
      const DeviceSpec full = DeviceSpec::parse(device);
      return task_of_device(device) != here &&
             std::none_of(config.device_filters.begin(), config.device_filters.end(),
                          [&](const std::string& filter) { return DeviceSpec::parse(filter).matches(full); });
    });
  }
  return devices;
}

ProgramHandle LocalMaster::extend(const std::string& id, const Program& program) {
  std::shared_ptr<SessionState> session = find(id);
  check(program);
  const Program step = make_step(program, session->config.container,
                                 {.devices = devices_for(program, session->config),
                                  .default_device = worker_.devices().default_name(),
                                  .soft_placement = session->config.soft_placement,
                                  .log_placement = session->config.log_device_placement},
                                 worker_.devices().task());
  if (session->variables) {
    for (const std::string& task : tasks_of(program)) session->variables->hold_at(task);
  }
  const ProgramHandle handle = worker_.register_program(step);
  bool closed = false;
  {
    absl::MutexLock lock(&session->mu);
    closed = session->closed;
    if (!closed) session->programs.insert(handle.id);
  }
  if (closed) {
    worker_.deregister_program(handle);
    throw Error(session->ended.status());
  }
  return handle;
}

std::vector<at::Tensor> LocalMaster::run(const std::string& id, ProgramHandle handle, std::vector<at::Tensor> arguments,
                                         const RunOptions& options) {
  std::shared_ptr<SessionState> session = find(id);
  {
    absl::MutexLock lock(&session->mu);
    if (!session->programs.contains(handle.id)) {
      throw not_found("program ", handle.id, " is not one of session ", id, " at ", worker_.devices().task());
    }
  }
  Cancellation cancellation;
  auto cancel = [&](const Status& why) { cancellation.cancel(why); };
  const Cancellation::Registration closed = session->ended.on_cancel(cancel);
  Cancellation::Registration given_up;
  if (options.cancellation != nullptr) given_up = options.cancellation->on_cancel(cancel);
  RunOptions inner = options;
  inner.cancellation = &cancellation;
  try {
    return worker_.run(handle, std::move(arguments), inner);
  } catch (const Error& error) {
    // Whoever was cancelled in the middle of a call only knows that; why is known here.
    if (cancellation.cancelled() && error.code() == StatusCode::kCancelled) throw Error(cancellation.status());
    throw Error(error.status().from(worker_.devices().task()));
  }
}

void LocalMaster::release(const std::string& id, ProgramHandle handle) {
  std::shared_ptr<SessionState> session = find(id);
  {
    absl::MutexLock lock(&session->mu);
    if (session->programs.erase(handle.id) == 0) throw not_found("program ", handle.id, " is not one of session ", id);
  }
  worker_.deregister_program(handle);
}

void LocalMaster::end(SessionState& session, const Status& why) {
  std::set<uint64_t> programs;
  {
    absl::MutexLock lock(&session.mu);
    session.closed = true;
    programs.swap(session.programs);
  }
  session.ended.cancel(why);
  for (uint64_t program : programs) {
    try {
      worker_.deregister_program({program});
    } catch (const Error&) {
      // A reset has dropped it before.
    }
  }
  if (!session.config.isolated) return;
  // Its variables end with it, here and at the tasks that it has used.
  worker_.reset({session.config.container});
  if (session.variables) session.variables->release();
}

void LocalMaster::close_session(const std::string& id) {
  std::shared_ptr<SessionState> session = find(id);
  {
    absl::MutexLock lock(&mu_);
    sessions_.erase(id);
  }
  end(*session, Status(StatusCode::kCancelled, str_cat("Session::Close: session ", id, " was closed")));
}

ClusterDevices LocalMaster::list_devices() {
  ClusterDevices result;
  result.devices = worker_.devices().names();
  std::vector<std::future<WorkerStatus>> answers;
  const std::vector<std::string> others = tasks();
  for (const std::string& task : others) {
    answers.push_back(std::async(std::launch::async, [this, task] { return ask(task, /*wait=*/false); }));
  }
  const Waiting waiting;
  for (size_t i = 0; i < answers.size(); ++i) {
    try {
      const WorkerStatus status = answers[i].get();
      result.devices.insert(result.devices.end(), status.devices.begin(), status.devices.end());
    } catch (const Error& error) {
      result.unreachable.push_back(error.status().from(others[i]));
    }
  }
  return result;
}

void LocalMaster::reset(const std::vector<std::string>& given) {
  const std::vector<std::string> containers = given.empty() ? std::vector<std::string>{""} : given;
  absl::flat_hash_map<std::string, std::shared_ptr<SessionState>> sessions;
  std::set<std::string> used;
  const std::vector<std::string> others = tasks();
  {
    absl::MutexLock lock(&mu_);
    sessions.swap(sessions_);
    for (const auto& [task, devices] : devices_) used.insert(task);
  }
  for (auto& [id, session] : sessions) {
    end(*session, Status(StatusCode::kAborted, str_cat("session ", id, " was ended by a reset")));
  }
  worker_.reset(containers);
  for (const std::string& task : others) {
    try {
      options_.peers->worker(task)->reset(containers);
    } catch (const Error&) {
      // Nothing of this master's is at a task that it has never used.
      if (used.contains(task)) throw;
    }
  }
}

std::vector<std::string> LocalMaster::tasks() const {
  absl::MutexLock lock(&mu_);
  return tasks_;
}

void LocalMaster::set_tasks(std::vector<std::string> tasks) {
  absl::MutexLock lock(&mu_);
  tasks_ = std::move(tasks);
}

size_t LocalMaster::sessions() const {
  absl::MutexLock lock(&mu_);
  return sessions_.size();
}

}  // namespace muster

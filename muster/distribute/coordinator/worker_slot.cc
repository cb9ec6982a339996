#include "muster/distribute/coordinator/worker_slot.h"

#include <algorithm>

#include "muster/base/log.h"
#include "muster/runtime/worker/restart.h"
#include "muster/session/step_program.h"

namespace muster {
namespace {

// The work that is sent at once: long enough to hide the way to the worker, short enough that results come soon and
// nobody else is left without work.
constexpr std::chrono::microseconds kWorthSending(1'000);
constexpr size_t kMostAtOnce = 256;

}  // namespace

WorkerSlot::WorkerSlot(size_t index, std::string task, std::string address, std::shared_ptr<Peers> peers,
                       ProgramSetting setting)
    : index_(index),
      task_(std::move(task)),
      address_(std::move(address)),
      peers_(std::move(peers)),
      setting_(std::move(setting)) {}

std::shared_ptr<Worker> WorkerSlot::worker() {
  {
    absl::MutexLock lock(&mu_);
    if (!workers_.empty()) return workers_.back();
  }
  std::shared_ptr<Worker> worker = peers_->worker(task_);
  absl::MutexLock lock(&mu_);
  if (workers_.empty()) workers_.push_back(std::move(worker));
  return workers_.back();
}

std::optional<ProgramRun> WorkerSlot::ready(const ScheduledClosure& closure) const {
  absl::MutexLock lock(&mu_);
  auto program = programs_.find(closure.entry.get());
  if (program == programs_.end()) return std::nullopt;
  for (const auto& resource : closure.resources) {
    if (!resources_.contains(resource)) return std::nullopt;
  }
  ProgramRun run{.handle = program->second.handle, .arguments = closure.arguments, .wanted = closure.watched()};
  for (const auto& entry : closure.variants) {
    auto variant = programs_.find(entry.get());
    if (variant == programs_.end()) return std::nullopt;
    run.variants.push_back(variant->second.handle);
  }
  return run;
}

// ---- Whether it is there
bool WorkerSlot::lose(uint64_t generation) {
  std::vector<std::shared_ptr<PerWorkerResource>> resources;
  {
    absl::MutexLock lock(&mu_);
    if (!up_ || generation != generation_) return false;
    up_ = false;
    resources.assign(resources_.begin(), resources_.end());
  }
  std::erase_if(resources, [&](const auto& resource) { return !resource->lost(index_); });
  absl::MutexLock lock(&mu_);
  for (const auto& resource : resources) resources_.erase(resource);
  return true;
}

uint64_t WorkerSlot::found() {
  absl::MutexLock lock(&mu_);
  up_ = true;
  return ++generation_;
}

void WorkerSlot::check_incarnation(Worker& worker) {
  const WorkerStatus status = worker.status();
  setting_.variables->leases().hold_at(task_);
  absl::MutexLock lock(&mu_);
  if (status_.incarnation == 0) status_ = status;
  if (status.incarnation == status_.incarnation) return;
  throw Error(restarted(task_, str_cat(task_, " was restarted")));
}

void WorkerSlot::forget() {
  absl::MutexLock lock(&mu_);
  programs_.clear();
  resources_.clear();
  left_over_.clear();
}

void WorkerSlot::revive() {
  absl::MutexLock one_at_a_time(&preparing_);
  std::shared_ptr<Worker> worker = peers_->worker(task_);
  WorkerStatus status = worker->status();
  std::vector<std::shared_ptr<PerWorkerResource>> left_over;
  {
    absl::MutexLock lock(&mu_);
    if (workers_.empty() || workers_.back() != worker) workers_.push_back(worker);
    if (status.incarnation != status_.incarnation) {
      programs_.clear();
      resources_.clear();
      left_over_.clear();
    }
    status_ = std::move(status);
    left_over = left_over_;
  }
  for (const auto& resource : left_over) resource->drop(*worker);
  absl::MutexLock lock(&mu_);
  left_over_.clear();
}

// ---- What it has
Program WorkerSlot::step_of(const Program& program) {
  PlacerOptions devices{.devices = setting_.ps_devices, .default_device = {}};
  {
    absl::MutexLock lock(&mu_);
    devices.devices.insert(devices.devices.end(), status_.devices.begin(), status_.devices.end());
    devices.default_device = status_.default_device;
  }
  return make_step(program, setting_.variables->container(), devices, task_);
}

void WorkerSlot::create(const std::shared_ptr<Worker>& worker, const std::shared_ptr<PerWorkerResource>& resource) {
  {
    absl::MutexLock lock(&mu_);
    if (resources_.contains(resource)) return;
  }
  try {
    resource->create(worker, index_, setting_.variables->leases().owner());
  } catch (const Error& error) {
    if (error.code() == StatusCode::kUnavailable || is_restart(error.status())) throw;
    throw Error(Status(error.code(),
                       str_cat(resource->name(), " cannot be made at a worker: ", error.status().message()),
                       error.status().task()));
  }
  absl::MutexLock lock(&mu_);
  resources_.insert(resource);
}

void WorkerSlot::prepare_resource(const std::shared_ptr<PerWorkerResource>& resource) {
  absl::MutexLock one_at_a_time(&preparing_);
  const std::shared_ptr<Worker> worker = this->worker();
  check_incarnation(*worker);
  create(worker, resource);
}

void WorkerSlot::prepare(const ScheduledClosure& closure) {
  absl::MutexLock one_at_a_time(&preparing_);
  if (ready(closure)) return;  // while this one waited for its turn
  const std::shared_ptr<Worker> worker = this->worker();
  check_incarnation(*worker);
  for (const auto& resource : closure.resources) create(worker, resource);
  give(*worker, closure.entry);
  for (const auto& variant : closure.variants) give(*worker, variant);
}

void WorkerSlot::give(Worker& worker, const std::shared_ptr<TracedFunction::Entry>& entry) {
  {
    absl::MutexLock lock(&mu_);
    if (programs_.contains(entry.get())) return;
  }
  entry->warn_of_lost_writes();
  drop_programs_of_gone(worker);
  const Program& program = entry->traced.program;
  const ProgramHandle handle = worker.register_program(step_of(program), setting_.variables->leases().owner());
  try {
    setting_.variables->check_alive(program);
    check_incarnation(worker);
  } catch (const Error&) {
    try {
      worker.deregister_program(handle);
    } catch (const Error&) {
      // The first error is the one that counts.
    }
    throw;
  }
  absl::MutexLock lock(&mu_);
  programs_.emplace(entry.get(), Known{entry, handle});
}

// Nobody can ask for them any more: who scheduled or runs one holds its entry.
void WorkerSlot::drop_programs_of_gone(ProgramRunner& runner) {
  std::vector<std::pair<const TracedFunction::Entry*, ProgramHandle>> gone;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [entry, known] : programs_) {
      if (known.entry.expired()) gone.emplace_back(entry, known.handle);
    }
  }
  for (const auto& [entry, handle] : gone) {
    try {
      runner.deregister_program(handle);
    } catch (const Error& error) {
      if (error.code() != StatusCode::kNotFound) return;  // whoever runs something there learns of it; later, then
    }
    absl::MutexLock lock(&mu_);
    programs_.erase(entry);
  }
}

bool WorkerSlot::untidy() const {
  absl::MutexLock lock(&mu_);
  return std::any_of(programs_.begin(), programs_.end(),
                     [](const auto& known) { return known.second.entry.expired(); });
}

void WorkerSlot::tidy() {
  absl::MutexLock one_at_a_time(&preparing_);
  if (!up()) return;
  std::shared_ptr<Worker> worker;
  try {
    worker = this->worker();
  } catch (const Error&) {
    return;
  }
  drop_programs_of_gone(*worker);
}

void WorkerSlot::drop(const std::shared_ptr<PerWorkerResource>& resource) {
  absl::MutexLock one_at_a_time(&preparing_);
  {
    absl::MutexLock lock(&mu_);
    if (resources_.erase(resource) == 0) return;
  }
  try {
    if (!up()) throw unavailable(task_, " is lost");
    resource->drop(*worker());
  } catch (const Error& error) {
    MUSTER_LOG(info) << task_ << ": " << resource->name() << " stays for now: " << error.what();
    absl::MutexLock lock(&mu_);
    left_over_.push_back(resource);
  }
}

void WorkerSlot::clear() {
  absl::MutexLock one_at_a_time(&preparing_);
  decltype(programs_) programs;
  std::set<std::shared_ptr<PerWorkerResource>> resources;
  {
    absl::MutexLock lock(&mu_);
    programs.swap(programs_);
    resources.swap(resources_);
    resources.insert(left_over_.begin(), left_over_.end());
    left_over_.clear();
  }
  if (!up()) return;
  try {
    const std::shared_ptr<Worker> worker = this->worker();
    for (const auto& resource : resources) resource->drop(*worker);
    for (const auto& [entry, known] : programs) worker->deregister_program(known.handle);
  } catch (const Error& error) {
    MUSTER_LOG(info) << task_ << ": what the coordinator gave it stays: " << error.what();
  }
}

void WorkerSlot::learn(size_t closures, std::chrono::nanoseconds took) {
  const size_t now = batch_size();
  if (took < kWorthSending && closures >= now) {
    batch_size_.store(std::min(now * 2, kMostAtOnce), std::memory_order_relaxed);
  } else if (took > 4 * kWorthSending) {
    const auto fits = static_cast<size_t>(static_cast<double>(closures) * kWorthSending / took);
    batch_size_.store(std::clamp(fits, size_t{1}, now), std::memory_order_relaxed);
  }
}

}  // namespace muster

#include "muster/runtime/worker/local_worker.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <ATen/Parallel.h>

#include <algorithm>
#include <set>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/graph/placement/placer.h"
#include "muster/graph/serialize.h"
#include "muster/runtime/executor/core_share.h"
#include "muster/runtime/executor/executor.h"
#include "muster/runtime/executor/remote_parts.h"
#include "muster/runtime/memory/memory_pool.h"
#include "muster/runtime/ops/evaluate.h"
#include "muster/runtime/ops/op_catalog.h"
#include "muster/runtime/tuning/autotuner.h"
#include "muster/runtime/worker/collectives.h"
#include "muster/runtime/worker/lost_device.h"
#include "muster/runtime/worker/missing_program.h"

namespace muster {
namespace {

// After an owner or a program has gone: threads that served it stay for some seconds, answers that it may ask for again
// for a minute.
constexpr std::chrono::minutes kHolesAppear{2};
constexpr size_t kOwnersPerProgram = 1'000;  // at most, of which each has a handle

struct LocalWorkerSlot {
  absl::Mutex mu;
  LocalWorkerOptions options ABSL_GUARDED_BY(mu);
  std::unique_ptr<LocalWorker> worker ABSL_GUARDED_BY(mu);
};

// The devices of a process are one set, however many parts of the program use them: this is the one global of the
// library. Never destroyed: variables with static lifetime may outlive everything else.
LocalWorkerSlot& local_worker_slot() {
  static LocalWorkerSlot& slot = *new LocalWorkerSlot;
  return slot;
}

std::chrono::steady_clock::time_point end_of_holes(std::chrono::milliseconds lease) {
  return std::chrono::steady_clock::now() + lease + kHolesAppear;
}

// Owners that come and go leave holes between what stays, and malloc keeps their pages: ten MiB in a quarter of an hour
// of sessions. It takes milliseconds, so not for each of them, but every few seconds while they leave and then for a
// while.
void give_free_memory_back() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

// Nothing is measured where everything runs as it was recorded.
std::unique_ptr<Autotuner> tuner_for(const LocalWorkerOptions& options) {
  if (options.exact) return nullptr;
  TuningOptions tuning = with_environment(options.tuning);
  if (tuning.mode == TuningMode::kOff) return nullptr;
  return std::make_unique<Autotuner>(std::move(tuning));
}

}  // namespace

LocalWorker::LocalWorker(LocalWorkerOptions options, Peers* peers)
    : options_(std::move(options)),
      peers_(peers),
      run_memory_(options_.run_memory.value_or(usual_memory())),
      devices_(options_.devices),
      catalog_(std::make_unique<OpCatalog>(options_.extra_ops)),
      tuner_(tuner_for(options_)),
      holder_(peers == nullptr ? nullptr
                               : std::make_unique<LeaseHolder>(Lease{{incarnation_, devices_.task()}, {}}, *peers)) {
  if (options_.cores && *options_.cores < 1) {
    throw invalid_argument(devices_.task(), ": cores is ", *options_.cores, ", expected 1 or more");
  }
  if (run_memory_ < 1) {
    throw invalid_argument(devices_.task(), ": run_memory is ", run_memory_, ", expected 1 or more bytes");
  }
  MemoryPool::instance();
}

LocalWorker::~LocalWorker() {
  ending_ = true;
  std::optional<DeadlineTimer::Alarm> tick;  // destroyed without the lock: that waits for one that looks at leases
  absl::MutexLock lock(&mu_);
  for (const auto& [number, sequence] : sources_) sequence.source->close();
  if (tick_) tick.emplace(std::move(*tick_));
  tick_.reset();
}

void LocalWorker::prepare_thread() const {
  thread_local int prepared_for = 0;
  if (!options_.cores || *options_.cores == prepared_for) return;
  prepared_for = *options_.cores;
  use_cores(prepared_for);
}

ProgramHandle LocalWorker::register_program(const Program& program, const Owner& owner) {
  throw_if_device_lost();
  check_room();
  return add_program(prepare(program), owner);
}

ProgramHandle LocalWorker::register_bytes(const std::string& bytes, const Owner& owner) {
  throw_if_device_lost();
  std::shared_ptr<Executor> executor;
  {
    absl::MutexLock lock(&mu_);
    const auto known = by_bytes_.find(bytes);
    const bool room = programs_.size() < options_.max_programs * kOwnersPerProgram;
    if (known != by_bytes_.end() && room) executor = known->second.lock();
  }
  if (!executor) {
    check_room();
    const Program program = parse_program(bytes);
    executor = prepare(program);
    absl::MutexLock lock(&mu_);
    absl::erase_if(by_bytes_, [](const auto& entry) { return entry.second.expired(); });
    if (program.parts.empty()) by_bytes_[bytes] = executor;
  }
  return add_program(std::move(executor), owner);
}

void LocalWorker::check_room() const {
  absl::MutexLock lock(&mu_);
  if (programs_.size() < options_.max_programs) return;
  std::set<const Executor*> different;
  for (const auto& [handle, program] : programs_) different.insert(program.executor.get());
  if (different.size() < options_.max_programs) return;
  throw resource_exhausted(devices_.task(), " has ", different.size(), " programs registered, which is its limit");
}

namespace {

// A GPU's kernel for many tensors gives each of its processors 65,536 elements, so that few elements keep few of them
// busy: 19 us for what a kernel per variable does in 10 (H200, 100,000 elements).
bool worth_fusing_updates(const Program& program, const at::Device& device) {
  constexpr int64_t kElements = 65'536 * 128;
  if (device.is_cpu()) return true;
  int64_t elements = 0;
  for (const VariableRef& variable : program.variables) elements += variable.spec.elements();
  return elements >= kElements;
}

}  // namespace

std::shared_ptr<Executor> LocalWorker::prepare(const Program& program) {
  check(program, options_.limits);
  catalog_->verify(program);
  Program ready = program;
  ready.parts.clear();
  PassOptions passes = options_.passes;
  passes.fuse = passes.fuse && worth_fusing_updates(program, devices_.device(devices_.default_name()));
  optimize(
      ready, passes,
      [this](const Program& p, const Instruction& instruction) { return evaluate(*catalog_, p, instruction); },
      [](const std::string& op) { return schema_of(op); });
  ready = place(std::move(ready), {.devices = devices_.names(),
                                   .default_device = devices_.default_name(),
                                   .soft_placement = options_.soft_placement,
                                   .log_placement = options_.log_device_placement,
                                   .has_kernel = [](const std::string& op, const std::string& type) {
                                     return type != "GPU" || has_kernel(op, at::kCUDA);
                                   }});
  if (options_.passes.early) copy_early(ready);
  ready.parts = program.parts;
  ExecutorLinks links{.rendezvous = &rendezvous_};
  links.source = [this](uint64_t number) { return source(number); };
  links.group = [this](uint64_t number) { return group(number); };
  if (peers_ != nullptr) {
    links.parts = std::make_shared<RemoteParts>(program, *peers_, *this, devices_.task(), *holder_);
  } else if (!program.parts.empty()) {
    throw failed_precondition("program \"", program.name, "\" has parts on other tasks, but ", devices_.task(),
                              " is not in a cluster");
  }
  return std::make_shared<Executor>(std::move(ready), devices_, *catalog_, store_, tuner_.get(), std::move(links));
}

ProgramHandle LocalWorker::add_program(std::shared_ptr<Executor> executor, const Owner& owner) {
  std::shared_ptr<LeaseTable::Entry> lease = lease_of(owner);
  absl::MutexLock lock(&mu_);
  ProgramHandle handle{next_handle_++};
  programs_[handle.id] = {std::move(executor), std::move(lease), owner.id};
  return handle;
}

LocalWorker::Runnable LocalWorker::runnable(ProgramHandle handle) const {
  throw_if_device_lost();
  absl::MutexLock lock(&mu_);
  auto it = programs_.find(handle.id);
  if (it == programs_.end()) throw Error(missing_program(devices_.task(), handle.id));
  if (it->second.lease) it->second.lease->heard();
  return {it->second.executor, it->second.owner};
}

void LocalWorker::deregister_program(ProgramHandle handle) {
  if (ending_) return;  // a program that goes with the rest has parts here
  const Runnable last = runnable(handle);
  {
    absl::MutexLock lock(&mu_);
    programs_.erase(handle.id);
    holes_until_ = end_of_holes(options_.lease);
  }
  wait_for_tick();
}

void LocalWorker::receive(uint64_t meeting, int64_t edge, const RunOptions& options, ReceiveDone done) {
  if (options.cancellation == nullptr) {
    rendezvous_.receive(meeting, edge, std::move(done));
    return;
  }
  // The caller may vanish without having aborted its step.
  auto given_up = std::make_shared<Cancellation::Registration>();
  const uint64_t waiter = rendezvous_.receive(
      meeting, edge,
      [given_up, done = std::move(done)](const Status& status, at::Tensor value) { done(status, std::move(value)); });
  if (waiter == 0) return;
  *given_up = options.cancellation->on_cancel(
      [this, meeting, edge, waiter](const Status& why) { rendezvous_.give_up(meeting, edge, waiter, why); });
}

void LocalWorker::abort(uint64_t meeting, const Status& why) {
  rendezvous_.abort(meeting, why);
  constexpr size_t kRemembered = 256;
  absl::MutexLock lock(&mu_);
  if (auto running = running_.find(meeting); running != running_.end()) {
    // Under the lock, so that the run does not end meanwhile; what it cancels does not call back here.
    return running->second->cancel(Status(StatusCode::kCancelled, why.message(), why.task()));
  }
  aborted_.push_back(meeting);
  if (aborted_.size() > kRemembered) aborted_.pop_front();
}

// ---- Groups
void LocalWorker::add_group(uint64_t number, std::shared_ptr<Collectives> group) {
  absl::MutexLock lock(&mu_);
  if (!groups_.emplace(number, std::move(group)).second) {
    throw already_exists(devices_.task(), " has a group number ", number);
  }
}

void LocalWorker::remove_group(uint64_t number) {
  std::shared_ptr<Collectives> removed;  // destroyed without the lock
  absl::MutexLock lock(&mu_);
  if (const auto found = groups_.find(number); found != groups_.end()) {
    removed = std::move(found->second);
    groups_.erase(found);
  }
}

std::shared_ptr<Collectives> LocalWorker::group(uint64_t number) const {
  absl::MutexLock lock(&mu_);
  const auto found = groups_.find(number);
  if (found == groups_.end()) {
    throw not_found(devices_.task(), " has no group number ", number, ": its strategy is gone, or in another process");
  }
  return found->second;
}

// ---- Leases
std::shared_ptr<LeaseTable::Entry> LocalWorker::lease_of(const Owner& owner) {
  if (owner.id == 0) return nullptr;
  std::shared_ptr<LeaseTable::Entry> lease = leases_.of(owner);
  wait_for_tick();
  return lease;
}

void LocalWorker::wait_for_tick() {
  absl::MutexLock lock(&mu_);
  if (tick_ || ending_ || (leases_.size() == 0 && !has_holes())) return;
  tick_.emplace(timer_.after(absl::FromChrono(options_.lease) / LeaseTable::kTicks, [this] {
    {
      absl::MutexLock lock(&mu_);
      tick_.reset();
    }
    look_at_leases();
    wait_for_tick();
  }));
}

bool LocalWorker::has_holes() const { return std::chrono::steady_clock::now() < holes_until_; }

void LocalWorker::look_at_leases() {
  {
    absl::MutexLock lock(&mu_);
    if (has_holes()) pool_.submit(give_free_memory_back);
  }
  for (Lease& lease : leases_.tick()) {
    // Its programs may have parts at tasks that do not answer.
    pool_.submit([this, lease = std::move(lease)] {
      const std::string dropped = drop(lease);
      if (dropped.empty()) return;
      MUSTER_LOG(info) << devices_.task() << ": " << lease.owner.name << " was not heard of for "
                       << options_.lease.count() << " ms; dropped " << dropped << " that it had left";
    });
  }
}

std::string LocalWorker::drop(const Lease& lease) {
  std::vector<Registered> programs;  // destroyed without the lock
  std::vector<OpenSequence> sources;
  auto of_owner = [&](const std::shared_ptr<LeaseTable::Entry>& entry) {
    return entry != nullptr && entry->owner().id == lease.owner.id;
  };
  auto take = [&](auto& from, auto& to) {
    absl::erase_if(from, [&](auto& entry) {
      if (!of_owner(entry.second.lease)) return false;
      to.push_back(std::move(entry.second));
      return true;
    });
  };
  {
    absl::MutexLock lock(&mu_);
    take(programs_, programs);
    take(sources_, sources);
  }
  const size_t values = rendezvous_.drop(lease.owner.id);
  const size_t variables = lease.containers.empty() ? 0 : drop_containers(lease.containers);
  std::string words;
  auto count = [&](size_t number, const char* what) {
    if (number > 0) str_append(words, words.empty() ? "" : ", ", number, " ", what);
  };
  count(programs.size(), "programs");
  count(variables, "variables");
  count(sources.size(), "sequences of examples");
  count(values, "values for parts of steps");
  programs.clear();
  for (const OpenSequence& sequence : sources) sequence.source->close();
  sources.clear();
  MemoryPool::instance().let_go();  // what their steps needed; those of others ask for it anew
  {
    absl::MutexLock lock(&mu_);
    holes_until_ = end_of_holes(options_.lease);
  }
  wait_for_tick();
  return words;
}

void LocalWorker::renew(const Lease& lease, RenewDone done) {
  LeaseTerms terms{.length = options_.lease};
  Status status;
  try {
    terms.lapsed = leases_.renew(lease);
    wait_for_tick();
  } catch (const Error& error) {
    status = error.status();
  }
  done(status, terms);
}

void LocalWorker::release(const Lease& lease) {
  Lease ended = leases_.end(lease.owner);
  ended.containers.insert(ended.containers.end(), lease.containers.begin(), lease.containers.end());
  drop(ended);
}

std::vector<VariableInfo> LocalWorker::variables() {
  std::vector<VariableInfo> infos;
  for (const auto& cell : store_.all()) {
    infos.push_back({cell->name(), cell->spec(), devices_.name(cell->device()), cell->version(), cell->initialized(),
                     cell->whole_reads()});
  }
  return infos;
}

std::vector<ShardEntry> LocalWorker::save(const std::string& directory, const std::vector<StoredVariable>& variables,
                                          const SaveOptions& options) {
  const std::string path = path_below(options_.storage, directory);
  return save_variables(store_, devices_.task(), path, variables, options);
}

void LocalWorker::restore(const std::string& checkpoint, const std::vector<StoredVariable>& variables,
                          RestoreStage stage) {
  const std::string path = path_below(options_.storage, checkpoint);
  std::unique_ptr<StagedValues> staged;
  {
    absl::MutexLock lock(&mu_);
    staged = std::move(staged_);
  }
  if (stage == RestoreStage::kCheck) staged = std::make_unique<StagedValues>();
  restore_variables(store_, devices_, path, variables, stage, staged.get());
  absl::MutexLock lock(&mu_);
  if (stage == RestoreStage::kCheck) staged_ = std::move(staged);
}

void LocalWorker::reset(const std::vector<std::string>& containers) { drop_containers(containers); }

size_t LocalWorker::drop_containers(const std::vector<std::string>& containers) {
  const std::set<std::string> chosen(containers.begin(), containers.end());
  std::vector<Registered> dropped;  // destroyed without the lock
  {
    absl::MutexLock lock(&mu_);
    by_bytes_.clear();  // those that use these variables may still run
    staged_.reset();    // of somebody who may be gone
    absl::erase_if(programs_, [&](auto& entry) {
      const auto& used = entry.second.executor->program().variables;
      const bool uses = std::any_of(used.begin(), used.end(), [&](const VariableRef& variable) {
        return chosen.contains(container_of(variable.name));
      });
      if (uses) dropped.push_back(std::move(entry.second));
      return uses;
    });
  }
  size_t variables = 0;
  for (const auto& cell : store_.all()) {
    if (!chosen.contains(container_of(cell->name()))) continue;
    store_.erase(cell->name());
    ++variables;
  }
  return variables;
}

WorkerStatus LocalWorker::status(bool) {
  WorkerStatus status{.task = devices_.task(),
                      .incarnation = incarnation_,
                      .devices = devices_.names(),
                      .default_device = devices_.default_name()};
  for (const auto& cell : store_.all()) {
    ++status.variables;
    status.variable_bytes += cell->spec().bytes();
  }
  status.resident_bytes = resident_memory();
  status.uptime_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
  status.cpu_seconds = used_cpu_seconds();
  auto seconds = [](const TimeSpent& spent) { return std::chrono::duration<double>(spent.total()).count(); };
  status.run_seconds = seconds(times_.running);
  status.input_seconds = seconds(times_.input);
  status.peer_seconds = seconds(times_.peers);
  status.cores = options_.cores.value_or(at::get_num_threads());
  const MachineTime machine = machine_time();
  status.machine_cores = machine.cores;
  status.machine_idle_seconds = machine.idle_seconds;
  status.workers = options_.workers;
  if (device_is_lost()) status.lost = lost_device_status().message();
  absl::MutexLock lock(&mu_);
  status.programs = programs_.size();
  status.sources = sources_.size();
  InputTiming slowest;
  for (const auto& [number, sequence] : sources_)
    slowest = std::ranges::max(slowest, sequence.source->timing(), {}, &InputTiming::waited);
  if (const StageTiming* stage = slowest.bottleneck()) status.input_stage = stage->name;
  return status;
}

Program LocalWorker::prepared_program(ProgramHandle handle) const { return runnable(handle).executor->program(); }

std::string name_in_container(const std::string& container, const std::string& name) {
  return container.empty() ? name : str_cat(container, "//", name);
}

std::string container_of(const std::string& name) {
  const size_t end = name.find("//");
  return end == std::string::npos ? "" : name.substr(0, end);
}

LocalWorker& local_worker() {
  LocalWorkerSlot& slot = local_worker_slot();
  absl::MutexLock lock(&slot.mu);
  if (!slot.worker) slot.worker = std::make_unique<LocalWorker>(slot.options);
  return *slot.worker;
}

void set_local_options(LocalWorkerOptions options) {
  LocalWorkerSlot& slot = local_worker_slot();
  absl::MutexLock lock(&slot.mu);
  if (slot.worker) {
    throw failed_precondition(
        "set_local_options: the devices of this process are in use; call it before the first variable is made, "
        "function "
        "is called, or dataset is opened or adapted");
  }
  slot.options = std::move(options);
}

bool share_local_gpus(const GpuShare& share) {
  LocalWorkerSlot& slot = local_worker_slot();
  absl::MutexLock lock(&slot.mu);
  std::optional<GpuShare>& own = slot.options.devices.gpu_share;
  if (!slot.worker && !own) own = share;
  return own.has_value();
}

}  // namespace muster

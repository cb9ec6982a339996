// The worker of this process.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_map.h>
#include <absl/synchronization/mutex.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>

#include "muster/base/deadline_timer.h"
#include "muster/base/elastic_pool.h"
#include "muster/runtime/devices.h"
#include "muster/runtime/variables/variable_store.h"
#include "muster/runtime/worker/lease_holder.h"
#include "muster/runtime/worker/lease_table.h"
#include "muster/runtime/worker/local_worker_options.h"
#include "muster/runtime/worker/run_turns.h"
#include "muster/runtime/worker/shared_source.h"
#include "muster/runtime/worker/worker.h"

namespace muster {

class Collectives;
class Executor;
class Autotuner;
class OpCatalog;
class RemoteParts;

class LocalWorker : public Worker {
 public:
  // `peers` outlives the worker; without it a program cannot have parts on other tasks.
  explicit LocalWorker(LocalWorkerOptions options = {}, Peers* peers = nullptr);
  ~LocalWorker() override;

  ProgramHandle register_program(const Program& program, const Owner& owner = {}) override ABSL_LOCKS_EXCLUDED(mu_);
  // The same for what serialize() has made of it. Programs of the same bytes that have no parts elsewhere are one,
  // whoever has registered them: a thousand workers have the same part at a parameter server.
  ProgramHandle register_bytes(const std::string& program, const Owner& owner = {}) ABSL_LOCKS_EXCLUDED(mu_);
  void deregister_program(ProgramHandle handle) override ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<at::Tensor> run(ProgramHandle handle, std::vector<at::Tensor> arguments,
                              const RunOptions& options = {}) override ABSL_LOCKS_EXCLUDED(mu_);
  // RunOptions::then; nothing if it fails. `options` are those of the run before it.
  std::vector<at::Tensor> run_along(ProgramHandle handle, const RunOptions& options);
  void start(ProgramHandle handle, std::vector<at::Tensor> arguments, const RunOptions& options, RunDone done) override;
  void start_runs(std::vector<ProgramRun> runs, const RunOptions& options, RunsDone done) override;
  // The same as soon as its sequence has come to it: on this thread, or on the one that has run what was before it.
  // `done` must not throw.
  void run_in_turn(std::vector<ProgramRun> runs, const RunOptions& options,
                   std::function<void(std::vector<RunOutcome>)> done);
  void open_source(uint64_t number, const std::string& description, const Owner& owner = {}) override
      ABSL_LOCKS_EXCLUDED(mu_);
  // One that is made here and needs no description.
  void add_source(uint64_t number, std::shared_ptr<ElementSource> source, const Owner& owner = {})
      ABSL_LOCKS_EXCLUDED(mu_);
  void close_source(uint64_t number) override ABSL_LOCKS_EXCLUDED(mu_);
  std::string source_position(uint64_t number) override { return source(number)->position(); }
  void hand_out(uint64_t number, const PartsGiven& given, const Cancellation* cancellation, PartsDone wanted) override
      ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<SharedSource> source(uint64_t number) const ABSL_LOCKS_EXCLUDED(mu_);
  // A group of tasks that this process belongs to, under a number that programs name it by.
  void add_group(uint64_t number, std::shared_ptr<Collectives> group) ABSL_LOCKS_EXCLUDED(mu_);
  void remove_group(uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<Collectives> group(uint64_t number) const ABSL_LOCKS_EXCLUDED(mu_);
  void receive(uint64_t meeting, int64_t edge, const RunOptions& options, ReceiveDone done) override;
  void abort(uint64_t meeting, const Status& why) override;
  void renew(const Lease& lease, RenewDone done) override ABSL_LOCKS_EXCLUDED(mu_);
  void release(const Lease& lease) override ABSL_LOCKS_EXCLUDED(mu_);
  // What the timer does a few times in the length of a lease: drops what is left of owners that are gone.
  void look_at_leases() ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<VariableInfo> variables() override;
  std::vector<ShardEntry> save(const std::string& directory, const std::vector<StoredVariable>& variables,
                               const SaveOptions& options) override;
  void restore(const std::string& checkpoint, const std::vector<StoredVariable>& variables,
               RestoreStage stage) override;
  void reset(const std::vector<std::string>& containers) override ABSL_LOCKS_EXCLUDED(mu_);
  WorkerStatus status(bool wait = false) override ABSL_LOCKS_EXCLUDED(mu_);
  void start_status(const Cancellation&, StatusDone done) override { done({}, status()); }

  // To be called by each thread that is there to run its programs: gives it the worker's share of the cores.
  void prepare_thread() const;
  // Which of several processes this is that run the same programs in step: their random ops draw different numbers, and
  // errors of runs begin at `task`, by which the others know this one; empty: as it calls itself.
  void set_replica(uint64_t replica, const std::string& task = {}) ABSL_LOCKS_EXCLUDED(mu_);
  const LocalDevices& devices() const { return devices_; }
  bool soft_placement() const { return options_.soft_placement; }
  VariableStore& store() { return store_; }
  Rendezvous& rendezvous() { return rendezvous_; }
  uint64_t incarnation() const { return incarnation_; }
  const Autotuner* tuner() const { return tuner_.get(); }  // null: everything runs as it was recorded
  // The program as it runs: after the passes and placed.
  Program prepared_program(ProgramHandle handle) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  std::vector<at::Tensor> run_program(ProgramHandle handle, std::vector<at::Tensor> arguments,
                                      const RunOptions& options);
  std::vector<at::Tensor> run_in_time(ProgramHandle handle, std::vector<at::Tensor> arguments,
                                      const RunOptions& options);
  struct Registered {
    std::shared_ptr<Executor> executor;
    std::shared_ptr<LeaseTable::Entry> lease;  // null: nobody's
    uint64_t owner = 0;
  };
  struct OpenSequence {
    std::shared_ptr<SharedSource> source;
    std::shared_ptr<LeaseTable::Entry> lease;
  };

  // Checked, optimized and planned.
  std::shared_ptr<Executor> prepare(const Program& program);
  ProgramHandle add_program(std::shared_ptr<Executor> executor, const Owner& owner) ABSL_LOCKS_EXCLUDED(mu_);
  void check_room() const ABSL_LOCKS_EXCLUDED(mu_);
  // The lease of the owner. From the first one on, a timer looks at them.
  std::shared_ptr<LeaseTable::Entry> lease_of(const Owner& owner) ABSL_LOCKS_EXCLUDED(mu_);
  void wait_for_tick() ABSL_LOCKS_EXCLUDED(mu_);
  bool has_holes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Drops what an owner has left. Returns what that was, in words; nothing if there was nothing.
  std::string drop(const Lease& lease) ABSL_LOCKS_EXCLUDED(mu_);
  size_t drop_containers(const std::vector<std::string>& containers) ABSL_LOCKS_EXCLUDED(mu_);
  struct Runnable {
    std::shared_ptr<Executor> executor;
    uint64_t owner;
  };
  Runnable runnable(ProgramHandle handle) const ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<RunOutcome> run_all(std::vector<ProgramRun> runs, const RunOptions& options, ReadAhead& ahead);
  // Runs them when it is their turn, and tells what came of them.
  RunTurns::Work turn_of(std::vector<ProgramRun> runs, const RunOptions& options,
                         std::function<void(std::vector<RunOutcome>)> done);
  // What other tasks do for it; null if there is no such program.
  std::shared_ptr<const RemoteParts> parts_of(uint64_t program) const ABSL_LOCKS_EXCLUDED(mu_);
  RunOutcome run_one(ProgramRun run, const RunOptions& options);
  // The number of the program of `run` that is for the elements that another one has found, as in RunOutcome::variant.
  std::optional<uint32_t> fitting(const ProgramRun& run, const Status& failure) const;

  const LocalWorkerOptions options_;
  Peers* const peers_;  // null: it is not in a cluster
  const int64_t run_memory_;
  const LocalDevices devices_;
  const uint64_t incarnation_ = random_id();
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  VariableStore store_;
  Rendezvous rendezvous_;
  RunTurns turns_;
  RunTimes times_;
  // Behind pointers, to keep libtorch's dispatcher out of every file that uses Muster.
  const std::unique_ptr<const OpCatalog> catalog_;
  const std::unique_ptr<Autotuner> tuner_;

  LeaseTable leases_;                          // of those who leave something here
  const std::unique_ptr<LeaseHolder> holder_;  // of what is left for this worker's programs elsewhere
  std::atomic<bool> ending_{false};
  std::atomic<uint64_t> replica_{0};

  mutable absl::Mutex mu_;
  // At random: a handle that another incarnation gave is unknown here.
  std::string known_as_ ABSL_GUARDED_BY(mu_);  // to others that run in step with this one
  uint64_t next_handle_ ABSL_GUARDED_BY(mu_) = random_id() >> 8;
  absl::flat_hash_map<uint64_t, Registered> programs_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, std::weak_ptr<Executor>> by_bytes_ ABSL_GUARDED_BY(mu_);  // those that are shared
  absl::flat_hash_map<uint64_t, OpenSequence> sources_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<Collectives>> groups_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, Cancellation*> running_ ABSL_GUARDED_BY(mu_);  // those of run_all that can be aborted
  std::deque<uint64_t> aborted_ ABSL_GUARDED_BY(mu_);                          // lately, before they had begun
  std::optional<DeadlineTimer::Alarm> tick_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<StagedValues> staged_ ABSL_GUARDED_BY(mu_);  // between the stages of a restore
  // Until then, holes appear in malloc's memory: somebody has left, and what was kept for them goes bit by bit.
  std::chrono::steady_clock::time_point holes_until_ ABSL_GUARDED_BY(mu_){};
  ElasticPool pool_{"worker"};  // what it runs uses all of the above
  DeadlineTimer timer_;         // last: it gives the pool work
};

// The worker that functions run on when they are called directly. It is made at the first use, with one CPU device and
// the machine's GPUs unless `set_local_options` came before.
LocalWorker& local_worker();

// Throws Error{kFailedPrecondition} once `local_worker()` is in use: devices cannot change under variables.
void set_local_options(LocalWorkerOptions options);

// Lets `local_worker()` have its share of the machine's GPUs, unless its options say which it has. False: it is in use,
// with others.
bool share_local_gpus(const GpuShare& share);

}  // namespace muster

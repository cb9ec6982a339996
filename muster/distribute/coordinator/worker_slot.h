// One worker as its coordinator sees it.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_map.h>
#include <absl/synchronization/mutex.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "muster/distribute/coordinator/closure_queue.h"
#include "muster/distribute/coordinator/per_worker.h"
#include "muster/distribute/coordinator/remote_value.h"
#include "muster/distribute/servers/ps_variables.h"
#include "muster/runtime/worker/worker.h"
#include "muster/trace/traced_function.h"

namespace muster {

// A function that was scheduled, with its arguments.
class ScheduledClosure : public Closure {
 public:
  void cancelled(const Status& why) override { result->abort(why); }

  // Before it is sent: the traces for other elements that it can run as, too.
  void note_variants() {
    if (!entry->elements.empty()) variants = entry->variants();
  }

  // The trace that ran; null if it is the one that was scheduled.
  std::shared_ptr<TracedFunction::Entry> ran(const RunOutcome& outcome) const {
    const size_t variant = outcome.variant;
    return variant == 0 || variant > variants.size() ? nullptr : variants[variant - 1];
  }

  std::shared_ptr<TracedFunction::Entry> entry{};
  std::vector<std::shared_ptr<TracedFunction::Entry>> variants{};
  TracedFunction::TraceForElements trace{};  // set if it takes elements
  std::vector<at::Tensor> arguments{};
  std::shared_ptr<RemoteResult> result = std::make_shared<RemoteResult>();
  std::vector<std::shared_ptr<PerWorkerResource>> resources{};
  std::vector<std::shared_ptr<void>> holds{};  // what lives until it has run

  // How long it took, for the next ones.
  void learn(std::chrono::nanoseconds took) const { entry->took_ns.store(took.count(), std::memory_order_relaxed); }
  // As far as is known by now.
  std::chrono::nanoseconds takes() const {
    return std::chrono::nanoseconds(entry->took_ns.load(std::memory_order_relaxed));
  }

  // Whether somebody besides this closure can ask for the result.
  bool watched() const { return result.use_count() > 1; }
};

// How a program reaches a worker: placed and split for it, with the variables of its strategy.
struct ProgramSetting {
  std::shared_ptr<PsVariables> variables;
  std::vector<std::string> ps_devices;  // that programs may use besides the worker's own
};

// Knows what one worker has been given, and gives it what is missing. Programs are placed and split with the worker as
// the driver of the step, registered once and from then on named by a handle.
// Invariant: all that it is said to have was given to one incarnation of it.
// Thread-safe. `prepare`, `revive`, `drop` and `tidy` call the worker and wait for it.
class WorkerSlot {
 public:
  WorkerSlot(size_t index, std::string task, std::string address, std::shared_ptr<Peers> peers, ProgramSetting setting);

  size_t index() const { return index_; }
  const std::string& task() const { return task_; }
  const std::string& address() const { return address_; }  // for messages
  // Throws Error{kUnavailable} if it is known not to be there.
  std::shared_ptr<Worker> worker() ABSL_LOCKS_EXCLUDED(mu_);

  // The run of this closure if the worker has all that it needs.
  std::optional<ProgramRun> ready(const ScheduledClosure& closure) const ABSL_LOCKS_EXCLUDED(mu_);
  // Gives the worker what the closure needs. Throws Error; a failure of a resource says so in its words, and
  // the error restarted() says that the worker was restarted, or the parameter server that it names.
  void prepare(const ScheduledClosure& closure) ABSL_LOCKS_EXCLUDED(mu_, preparing_);
  void prepare_resource(const std::shared_ptr<PerWorkerResource>& resource) ABSL_LOCKS_EXCLUDED(mu_, preparing_);
  // It has dropped what it was given.
  void forget() ABSL_LOCKS_EXCLUDED(mu_);
  // After the worker was lost: asks whether it is there and forgets what its last incarnation had. Throws Error while
  // it is not.
  void revive() ABSL_LOCKS_EXCLUDED(mu_, preparing_);
  void drop(const std::shared_ptr<PerWorkerResource>& resource) ABSL_LOCKS_EXCLUDED(mu_, preparing_);
  // Whether it has programs of functions that are gone, and their end.
  bool untidy() const ABSL_LOCKS_EXCLUDED(mu_);
  void tidy() ABSL_LOCKS_EXCLUDED(mu_, preparing_);
  // At the end: what was registered is deregistered, as far as the worker answers.
  void clear() ABSL_LOCKS_EXCLUDED(mu_, preparing_);

  // ---- Whether it is there: not yet -> up -> lost -> up again, each time with a new generation, or given up.
  bool up() const { return up_.load(); }
  uint64_t generation() const { return generation_.load(); }
  // False if it is lost already, or if what failed was sent before it was found again.
  bool lose(uint64_t generation) ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t found() ABSL_LOCKS_EXCLUDED(mu_);  // returns the generation
  std::atomic<bool> given_up{false};          // it did not come back in time

  // ---- How many closures it gets at a time.
  size_t batch_size() const { return batch_size_.load(std::memory_order_relaxed); }
  // So many closures in one message took the worker so long. The way there does not count: on a machine that is busy
  // with many messages it takes long, and smaller ones would only make more of them.
  void learn(size_t closures, std::chrono::nanoseconds took);

 private:
  void give(Worker& worker, const std::shared_ptr<TracedFunction::Entry>& entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(preparing_) ABSL_LOCKS_EXCLUDED(mu_);
  void create(const std::shared_ptr<Worker>& worker, const std::shared_ptr<PerWorkerResource>& resource)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(preparing_) ABSL_LOCKS_EXCLUDED(mu_);
  void drop_programs_of_gone(ProgramRunner& runner) ABSL_EXCLUSIVE_LOCKS_REQUIRED(preparing_) ABSL_LOCKS_EXCLUDED(mu_);
  Program step_of(const Program& program) ABSL_LOCKS_EXCLUDED(mu_);
  void check_incarnation(Worker& worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(preparing_) ABSL_LOCKS_EXCLUDED(mu_);

  const size_t index_;
  const std::string task_, address_;
  const std::shared_ptr<Peers> peers_;
  const ProgramSetting setting_;
  std::atomic<size_t> batch_size_{1};
  std::atomic<bool> up_{false};          // written under mu_
  std::atomic<uint64_t> generation_{0};  // likewise

  absl::Mutex preparing_ ABSL_ACQUIRED_BEFORE(mu_);  // held while the worker is given something
  mutable absl::Mutex mu_;
  std::vector<std::shared_ptr<Worker>> workers_ ABSL_GUARDED_BY(mu_);  // the last one counts; others may be in a call
  WorkerStatus status_ ABSL_GUARDED_BY(mu_);                           // of this incarnation; empty until it was asked
  // What was traced goes with its function: it is not held here. As long as there is a weak pointer, no other one gets
  // its address.
  struct Known {
    std::weak_ptr<TracedFunction::Entry> entry;
    ProgramHandle handle;
  };
  absl::flat_hash_map<const TracedFunction::Entry*, Known> programs_ ABSL_GUARDED_BY(mu_);
  std::set<std::shared_ptr<PerWorkerResource>> resources_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<PerWorkerResource>> left_over_ ABSL_GUARDED_BY(mu_);  // dropped while it was lost
};

}  // namespace muster

#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_map.h>
#include <absl/synchronization/mutex.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/deadline_timer.h"
#include "muster/base/elastic_pool.h"
#include "muster/distribute/coordinator/closure_queue.h"
#include "muster/distribute/coordinator/cluster_coordinator.h"
#include "muster/distribute/coordinator/coordinator_report.h"
#include "muster/distribute/coordinator/ps_judge.h"
#include "muster/distribute/coordinator/spent_closures.h"
#include "muster/distribute/coordinator/watchdog.h"
#include "muster/distribute/coordinator/worker_loads.h"
#include "muster/distribute/coordinator/worker_slot.h"
#include "muster/distribute/servers/ps_variables.h"
#include "muster/runtime/executor/run_times.h"

namespace muster {

// Moves closures from the queue to the workers and results back, and decides what a failure means:
// - a worker that cannot be reached or was restarted is lost: its closures go back to the queue, and it is asked again
//   and again until it is there;
// - a parameter server that was restarted, or again and again cannot be reached, has lost its variables: the
//   coordinator ends (ps_judge.h);
// - anything else is an error of the function.
// No thread of its own waits for a worker: messages are sent by whoever schedules and by whoever receives the answer to
// the one before. Thread-safe.
class CoordinatorCore {
 public:
  CoordinatorCore(const ParameterServerStrategy& strategy, CoordinatorOptions options);
  ~CoordinatorCore();
  CoordinatorCore(const CoordinatorCore&) = delete;
  CoordinatorCore& operator=(const CoordinatorCore&) = delete;

  // Cancels and waits. REQUIRES: nobody calls anything else meanwhile or afterwards.
  void stop();

  void put(std::shared_ptr<ScheduledClosure> closure);
  bool wait(std::optional<std::chrono::milliseconds> timeout);
  bool done();
  std::weak_ptr<ResourceKeeper> keeper() const;
  // Makes it at all workers that are there. Does not wait; what fails does so again for a closure that needs it.
  // `hold`: it is not released until then.
  void make(const std::shared_ptr<PerWorkerResource>& resource, const std::shared_ptr<void>& hold);
  // Whether it runs nothing more, or nothing with the variables of parameter servers that were restored since.
  bool has_ended() const;

  // What every worker must have of a variable before it can run a function that uses it.
  void add_resource(const std::shared_ptr<Variable::State>& variable, std::shared_ptr<PerWorkerResource> resource)
      ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<PerWorkerResource> resource_of(const Variable::State* variable) const ABSL_LOCKS_EXCLUDED(mu_);

  const std::vector<std::unique_ptr<WorkerSlot>>& workers() const { return workers_; }
  Metrics& metrics();
  // Asks all tasks at once. Those that do not answer are in it with the reason. `last`: the next one begins here.
  CoordinatorReport report(bool last = true) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Keeper;
  using Batch = std::vector<std::shared_ptr<ScheduledClosure>>;
  using Time = std::chrono::steady_clock::time_point;

  // Closures that travel together.
  struct Sent {
    Batch batch;
    std::shared_ptr<Cancellation> cancellation;
    uint64_t generation;  // of the slot
    bool is_long;         // as far as was known
    Time began;
    Cancellation::Registration asked_to_end{};
  };
  void release(std::shared_ptr<PerWorkerResource> resource);
  void begin_work() { under_way_.fetch_add(1, std::memory_order_relaxed); }
  void end_work() ABSL_LOCKS_EXCLUDED(mu_);
  void in_background(std::function<void()> work);
  // Takes the place of the alarm of this number, which may ring just now.
  void set_alarm(size_t number, absl::Duration after, std::function<void()> then) ABSL_LOCKS_EXCLUDED(mu_);
  // From time to time: workers drop what functions that are gone have left there.
  void tidy_later() ABSL_LOCKS_EXCLUDED(mu_);
  // Once, when the job has run for a while: what limits its rate.
  void tell_limit();

  // Sends what is queued to workers that may get it. Any number of threads may be at it, each with a worker of its own.
  void dispatch();
  // After there may be something for this one alone, or it is ready for more.
  void serve(WorkerSlot& slot);
  void put_for(std::optional<int> tag);
  // Whether all that is queued is so short, and comes so fast, that it is to be sent together.
  bool wait_for_more();
  void dispatch_later() ABSL_LOCKS_EXCLUDED(mu_);
  bool send_to(WorkerSlot& slot);
  void send(WorkerSlot& slot, Batch batch);
  void prepare_and_begin(WorkerSlot& slot, Sent sent);
  void begin(WorkerSlot& slot, Sent sent, std::vector<ProgramRun> runs);
  void ended(WorkerSlot& slot, Sent& sent, const Status& status, std::vector<RunOutcome> outcomes);
  // What the next ones are expected to take.
  static void learn(const Batch& finished, const std::vector<RunOutcome>& outcomes);
  void failed(const WorkerSlot& slot, const std::shared_ptr<ScheduledClosure>& closure, const Status& failure,
              Time began);
  // One that may have run, of which nobody heard.
  void repeat(const std::shared_ptr<ScheduledClosure>& closure);
  // Has the function traced for the elements that a worker has found, and lets the closure be run again.
  void trace_and_put_back(const WorkerSlot& slot, const std::shared_ptr<ScheduledClosure>& closure,
                          const ElementSpecs& found);

  // How a worker is looked for that is not there, or not yet: a timer rings, the worker is asked, and its answer begins
  // to use it or sets the timer again. No thread waits meanwhile.
  struct Search {
    WorkerSlot& slot;
    bool was_there;  // else it is new
    Time began = std::chrono::steady_clock::now();
    bool told = false;                      // that it is waited for
    std::chrono::nanoseconds tell_again{};  // when it has been missing for so long
  };
  // `pause`: until it may be used again.
  void lose(WorkerSlot& slot, uint64_t generation, const Status& why, std::chrono::milliseconds pause = {});
  void look_later(Search search, std::chrono::milliseconds pause) ABSL_LOCKS_EXCLUDED(mu_);
  void look(Search search);
  void use_again(const Search& search);
  void still_missing(Search search, const Status& why);
  void give_up(WorkerSlot& slot, const std::string& what, const Status& why);

  std::unique_ptr<PsJudge> make_judge(const std::vector<std::string>& ps);
  // While no worker is up nobody else would see that a parameter server is lost. Does not wait.
  void watch_parameter_servers(const WorkerSlot& lost);

  const CoordinatorOptions options_;
  const uint64_t id_ = random_id();  // of this coordinator among all that a worker may have
  const std::shared_ptr<Peers> peers_;
  const std::shared_ptr<PsVariables> variables_;
  const PsIncarnations::Known servers_ = variables_->servers();  // for which the workers' programs are made
  Metrics metrics_;
  ClosureQueue queue_;
  SpentClosures spent_;
  const std::shared_ptr<Cancellation> of_tagged_ = std::make_shared<Cancellation>();  // an error does not end them
  const std::shared_ptr<Keeper> keeper_;
  std::vector<std::unique_ptr<WorkerSlot>> workers_;
  std::optional<WorkerLoads> loads_;
  std::unique_ptr<PsJudge> judge_;
  std::atomic<Time::rep> last_put_{0};
  std::atomic<bool> in_burst_{false};          // closures are scheduled one right after the other
  std::atomic<bool> dispatches_later_{false};  // what waits for more of it
  std::atomic<bool> stopping_{false};
  std::atomic<bool> limit_told_{false};
  int tidied_ = 0;       // how often; by the timer alone
  Cancellation ending_;  // cuts off what is under way
  std::optional<Watchdog> watchdog_;

  mutable absl::Mutex mu_;
  absl::flat_hash_map<const Variable::State*, std::shared_ptr<PerWorkerResource>> resources_ ABSL_GUARDED_BY(mu_);
  // What a report is the difference to.
  struct Reported {
    Time when = std::chrono::steady_clock::now();
    double cpu_seconds = used_cpu_seconds();
    int64_t closures = 0;
    std::map<std::string, WorkerStatus> tasks{};
  };
  Reported reported_ ABSL_GUARDED_BY(mu_);
  std::atomic<int> under_way_ = 1;  // messages, tasks of the pool, and until stop()
  bool all_ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::CondVar changed_;
  DeadlineTimer timer_;
  using Alarms = std::map<size_t, std::unique_ptr<DeadlineTimer::Alarm>>;
  Alarms looks_ ABSL_GUARDED_BY(mu_);  // by worker that is looked for, one to tidy up, and one to dispatch

  ElasticPool pool_{"coordinator"};  // last: what it runs uses all of the above
};

}  // namespace muster

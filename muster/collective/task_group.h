// A group of tasks that compute together, each in its own process.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "muster/base/deadline_timer.h"
#include "muster/base/elastic_pool.h"
#include "muster/collective/all_reduce_sizes.h"
#include "muster/collective/far_ranks.h"
#include "muster/collective/gpu_ranks.h"
#include "muster/collective/machines.h"
#include "muster/runtime/worker/collectives.h"
#include "muster/runtime/worker/worker.h"

namespace muster {

// How tensors of a sum in parts get from one process of a machine to another.
enum class NearWay {
  kTrays,    // memory that both see
  kWire,     // TCP, all the same. First messages never do: they are asked for before anybody knows of what
  kReading,  // whoever sums up reads the memory of the others, all of which are of this machine
};

class CollectiveRun;
class NearPost;
class WirePosts;

struct TaskGroupOptions {
  std::vector<std::string> tasks{};                                   // by rank, full names
  std::vector<std::string> addresses{};                               // likewise, for messages; may be left out
  int rank = 0;                                                       // of this one
  std::chrono::milliseconds start_timeout = std::chrono::minutes(5);  // until all are there
  // For one call. What a task waits for is the slowest of the others, which may be saving a checkpoint.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  bool near_memory = true;                     // between processes of one machine; the same at all of them
  bool read_memory = true;                     // whether they may read each other's for a large sum; likewise
  std::vector<int> machines{};                 // by rank, for those that are to be taken for several; may be left out
  GroupSockets sockets = GroupSockets::kNone;  // between the others; likewise
  // Whether the way of a sum is chosen by what each takes when the group is formed, or as usual. The same at all.
  bool measure = true;
  MeetGpus meet_gpus{};     // of all of them, or of none
  bool gpus_alone = false;  // what is on GPUs never goes through the host, however fast that is; the same at all
};

// Tasks leave what they have for others in their own rendezvous, and the others ask for it before it is there: it
// travels as soon as it is made, once, over whatever way the two tasks have. A group is of one generation: the
// processes that were there when it was formed. If one of them is lost, every call fails, at every task, and names it;
// a sum never has parts of two generations. A new group is formed by new calls of the constructor.
class TaskGroup : public Collectives {
 public:
  // Waits until all tasks are there and have called this, too, and says every few seconds for whom it waits. `here` and
  // `peers` outlive the group; what others fetch from this task is left in the rendezvous of `here`, under the
  // `incarnation` that they know it by. Throws Error{kDeadlineExceeded} with the names of those that did not come, and
  // Error{kFailedPrecondition} if the server of one of them has another number of workers in its list, and goes on to:
  // one of an earlier job may be about to end.
  TaskGroup(TaskGroupOptions options, Rendezvous& here, uint64_t incarnation, Peers& peers);
  ~TaskGroup() override;

  int rank() const override { return options_.rank; }
  int size() const override { return static_cast<int>(options_.tasks.size()); }
  std::string described(int rank) const override;
  std::vector<at::Tensor> run(const CollectiveCall& call, std::vector<at::Tensor> values,
                              const Cancellation* cancellation = nullptr) override;
  void start(const CollectiveCall& call, std::vector<at::Tensor> values, const Cancellation* cancellation,
             CollectiveDone done) override;
  void fail(const Status& why) override ABSL_LOCKS_EXCLUDED(mu_);

  // Another one for each set of processes, and each group that they form.
  uint64_t generation() const { return generation_; }

 private:
  friend class CollectiveRun;
  struct Heard {  // of failures of other ranks
    absl::Mutex mu;
    Status failure ABSL_GUARDED_BY(mu);
  };

  static std::string in_words(std::chrono::milliseconds time);
  uint64_t find_generation() const;
  // Sets incarnations_.
  void await_incarnations(std::chrono::steady_clock::time_point deadline);
  // The list of that rank has another number of workers.
  [[noreturn]] void refuse_size(int rank, int theirs) const;
  // Who reaches whom, and how sums are made.
  void form();
  // The next one, with the questions that have been asked ahead.
  std::shared_ptr<CollectiveRun> next_call(bool by_gpus) ABSL_LOCKS_EXCLUDED(mu_);
  bool by_gpus(const CollectiveCall& call, const std::vector<at::Tensor>& values) const;
  std::vector<at::Tensor> run_by_gpus(CollectiveRun& mail, const CollectiveCall& call,
                                      const std::vector<at::Tensor>& values) ABSL_LOCKS_EXCLUDED(mu_);
  bool formed() ABSL_LOCKS_EXCLUDED(mu_);
  void meet_near_ranks();
  void meet_far_ranks();
  void hear_of_failures();
  // The ways that all of them can go between those that share memory; the usual one first.
  std::vector<NearWay> near_ways();
  void leave_wire_nobody_needs();
  // What is faster is found out by trying. They return what was found, for the log.
  std::string choose_near_way(const std::vector<NearWay>& ways);
  std::string choose_way_of_gpus();
  void leave();
  void fetch_for(int rank, int64_t edge);
  void wake_posts() const;
  // Until the group ends: of calls that have failed, others may be reading them.
  void keep(std::vector<at::Tensor> tensors) ABSL_LOCKS_EXCLUDED(mu_);
  // Asks for the first messages of the next call: so it takes one hop, not two.
  void prepare_next() ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<at::Tensor> run_as(CollectiveRun& mail, const CollectiveCall& call, const std::vector<at::Tensor>& values,
                                 const Cancellation* cancellation);
  std::string origin_of(const Status& why) const;  // the task where it began

  const TaskGroupOptions options_;
  Rendezvous& here_;
  const uint64_t incarnation_;
  std::vector<std::shared_ptr<Worker>> workers_;  // by rank; null for this one
  std::vector<uint64_t> incarnations_;            // by rank; 0: not yet known
  uint64_t generation_ = 0;
  // Of calls that have failed. Before the posts: others see that those have ended before this goes.
  std::vector<at::Tensor> kept_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<NearPost>> posts_;  // by rank; null for this one and those of other machines
  std::shared_ptr<WirePosts> wire_;               // to others; null if there are none, or no connections of their own
  std::shared_ptr<Heard> heard_;                  // for wire_ and gpus_
  uint64_t abort_waiter_ = 0;                     // of the rendezvous here, for heard_
  const std::shared_ptr<Cancellation> fetches_;   // ends what is under way to the posts
  Machines machines_;
  NearWay near_way_ = NearWay::kTrays;
  AllReduceSizes sizes_;
  std::unique_ptr<GpuRanks> gpus_;       // null: there are none, or they cannot reach each other
  int64_t gpu_sums_by_host_up_to_ = -1;  // bytes

  absl::Mutex mu_;
  SteadyCondVar gpu_turn_changed_;
  uint64_t calls_ ABSL_GUARDED_BY(mu_) = 0;
  Status failure_ ABSL_GUARDED_BY(mu_);
  bool met_ ABSL_GUARDED_BY(mu_) = false;     // who is near is known: nobody is asked before for what it would send
  bool formed_ ABSL_GUARDED_BY(mu_) = false;  // until then calls may last as long as the start
  // Calls of GPUs are made one after the other, as they are numbered: in the same order at all ranks.
  uint64_t gpu_calls_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t gpu_turn_ ABSL_GUARDED_BY(mu_) = 0;
  std::shared_ptr<CollectiveRun> next_ ABSL_GUARDED_BY(mu_);  // is the call number calls_
  ElasticPool pool_{"collective"};                            // last: what it runs uses all of the above
};

}  // namespace muster

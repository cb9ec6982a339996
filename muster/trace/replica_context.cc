#include "muster/trace/replica_context.h"

#include <ATen/SequenceNumber.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "muster/base/check.h"
#include "muster/base/status.h"
#include "muster/trace/device_scope.h"
#include "muster/trace/replica_turns.h"
#include "muster/trace/thread_state.h"
#include "muster/trace/tracer/tracer.h"

namespace muster {
namespace {

// What a trace has of one replica and keeps for it while another one has its turn. `Gradients`: those that gather in
// modules.
class TracedReplicas {
 public:
  TracedReplicas(Tracer& tracer, int count) : tracer_(tracer), own_(count), outside_(take()) {}
  // Whatever happens, modules have their own memory again.
  ~TracedReplicas() {
    tracer_.show_copies(0);
    go_on_numbering();
    // A replica's gradients by rows concern its own lookups; gradients of what is made of all replicas concern all.
    for (Kept& replica : own_) {
      for (RowLookup& lookup : replica.lookups) outside_.lookups.push_back(std::move(lookup));
    }
    const bool alone = own_.size() == 1;
    put(Kept{std::move(outside_.lookups), std::move(alone ? own_[0].gradients : outside_.gradients)});
  }
  TracedReplicas(const TracedReplicas&) = delete;
  TracedReplicas& operator=(const TracedReplicas&) = delete;

  void leave(int replica) {
    own_[replica] = take();
    nodes_ = at::sequence_number::peek();
  }

  void arrive(int replica) {
    put(std::exchange(own_[replica], {}));
    tracer_.show_copies(replica);
    go_on_numbering();
    tracer_.device_changed(DeviceScope::current());
  }

 private:
  using Gradients = std::vector<std::pair<std::shared_ptr<Variable::State>, at::Tensor>>;
  struct Kept {
    std::vector<RowLookup> lookups{};
    Gradients gradients{};
  };

  // Every thread numbers the nodes of autograd for itself; here they go on, since the trace knows them by number.
  void go_on_numbering() const {
    while (at::sequence_number::peek() < nodes_) at::sequence_number::get_and_increment();
  }
  Kept take() {
    Kept kept{std::exchange(tracer_.lookups, {})};
    for (auto& variable : Variable::State::all_adopted()) {
      if (!variable->adopted.grad().defined()) continue;
      kept.gradients.emplace_back(variable, variable->adopted.grad());
      variable->adopted.mutable_grad().reset();
    }
    return kept;
  }
  void put(Kept kept) {
    tracer_.lookups = std::move(kept.lookups);
    for (auto& [variable, gradient] : kept.gradients) variable->adopted.mutable_grad() = std::move(gradient);
  }

  Tracer& tracer_;
  std::vector<Kept> own_;  // by replica
  Kept outside_;
  uint64_t nodes_ = 0;
};

// Until it ends, this thread is in no replica.
class OutsideOfReplicas {
 public:
  explicit OutsideOfReplicas(const std::string& device)
      : replica_(std::exchange(ThreadState::here().replica, nullptr)),
        device_(std::exchange(ThreadState::here().device, device)) {}
  ~OutsideOfReplicas() {
    ThreadState::here().replica = replica_;
    ThreadState::here().device = device_;
  }
  OutsideOfReplicas(const OutsideOfReplicas&) = delete;
  OutsideOfReplicas& operator=(const OutsideOfReplicas&) = delete;

 private:
  ReplicaContext* const replica_;
  const std::string device_;
};

}  // namespace

ReplicaContext* ReplicaContext::current() { return ThreadState::here().replica; }

int replica_id() { return ReplicaContext::current() == nullptr ? 0 : ReplicaContext::current()->id(); }

void note_alike(const std::vector<at::Tensor>& tensors) {
  Tracer* tracer = Tracer::current();
  if (tracer == nullptr) return;
  for (const at::Tensor& tensor : tensors) tracer->note_alike(tensor);
}

ReplicaContext::ReplicaContext(int here, int num_here, const AcrossWorkers& across, OfAll& all)
    : here_(here), num_here_(num_here), across_(across), all_(all) {
  ThreadState::here().replica = this;
}

ReplicaContext::~ReplicaContext() { ThreadState::here().replica = nullptr; }

void ReplicaContext::refuse(const std::string& what, const std::string* first) const {
  throw failed_precondition("replica ", id(), " comes to ", what, ", replica ", id() - here_, " to ",
                            first == nullptr ? "its end" : *first,
                            "; all replicas do the same things with each other, in the same order");
}

void ReplicaContext::check_end() const {
  auto check = [&](const auto& all, size_t own) {
    if (own == all.size()) return;
    throw failed_precondition("replica ", id(), " ends, but replica ", id() - here_, " came to ", all[own].what,
                              "; all replicas do the same things with each other, in the same order");
  };
  if (num_here_ > 1) check(all_.meetings, met_);
  check(all_.merges, merged_);
}

void ReplicaContext::check_everywhere(const Variable::State& variable) const {
  if (across_.alone() || variable.in_step()) return;
  throw failed_precondition(
      "variable \"", variable.options.name, "\" is written by the replicas of ", across_.size,
      " workers, but was made outside of their strategy, so that each worker has values of its "
      "own; make it, or the module that it belongs to, by strategy.make(), or adopt the module in "
      "strategy.scope()");
}

void ReplicaContext::merge(const std::string& what, const std::vector<Variable>& changed, Tensors values, Merge how) {
  const size_t number = merged_++;
  std::vector<Merging>& merges = all_.merges;
  if (here_ == 0) merges.push_back({what, std::move(how)});
  if (number >= merges.size()) refuse(what, nullptr);
  if (merges[number].what != what) refuse(what, &merges[number].what);
  merges[number].by_replica.push_back(std::move(values));
  for (const Variable& variable : changed) {
    changed_.push_back(variable.state().get());
    for (const Variable& shard : variable.shards()) changed_.push_back(shard.state().get());
    for (const Variable& copy : variable.copies()) changed_.push_back(copy.state().get());
  }
}

ReplicaContext::Met ReplicaContext::meet(const std::string& what, Tensors values,
                                         const std::function<Tensors(const std::vector<Tensors>& by_replica)>& how) {
  if (num_here_ == 1) {
    OutsideOfReplicas outside(all_.device);
    Met met{.what = what, .number = met_++, .by_replica = {std::move(values)}};
    met.result = how(met.by_replica);
    return met;
  }
  if (Tracer::current() != all_.tracer) {
    throw failed_precondition(what, " inside of control flow in replica ", id(), ", where the ", num_here_ - 1,
                              " others of this process cannot come; put the control flow around strategy.run()");
  }
  const size_t number = met_++;
  if (here_ == 0) all_.meetings.push_back({.what = what, .number = number});
  if (number >= all_.meetings.size()) refuse(what, nullptr);
  if (all_.meetings[number].what != what) refuse(what, &all_.meetings[number].what);
  all_.meetings[number].by_replica.push_back(std::move(values));
  if (here_ == num_here_ - 1) {
    OutsideOfReplicas outside(all_.device);
    all_.tracer->show_copies(0);  // as outside; the next one that has its turn shows its own
    Tensors result = how(all_.meetings[number].by_replica);
    all_.meetings[number].result = std::move(result);
  }
  all_.turns.meet(here_);
  return all_.meetings[number];
}

ReplicaContext::Tensors ReplicaContext::once(const std::string& what, const std::function<Tensors()>& make) {
  const size_t number = taken_++;
  std::vector<Made>& made = all_.made;
  if (here_ == 0) made.push_back({what, make()});
  if (number >= made.size()) refuse(what, nullptr);
  if (made[number].what != what) refuse(what, &made[number].what);
  return made[number].tensors;
}

void ReplicaContext::check_readable(const Variable::State& variable) const {
  if (std::find(changed_.begin(), changed_.end(), &variable) == changed_.end()) return;
  throw failed_precondition(
      "variable \"", variable.options.name, "\" is read by replica ", id(), " after it has written to it; what the ",
      num_replicas(),
      " replicas write is put together when all of them have ended: read it after strategy.run(), and for several "
      "steps in one call put the loop around it: repeat(10, [&] { strategy.run(step, it); })",
      variable.own_by_replica()
          ? "; of a variable with Synchronization::kOnRead each replica has a value of its own only "
            "if it is made in the scope of a strategy that gives each a copy"
          : "");
}

void for_each_replica(const std::vector<std::string>& devices, const AcrossWorkers& across,
                      const std::function<void(int replica)>& trace_one) {
  if (const ReplicaContext* outer = ReplicaContext::current()) {
    throw failed_precondition("strategy.run() inside of replica ", outer->id(),
                              ": a replica is one call of a function and has no replicas of its own");
  }
  Tracer* tracer = Tracer::current();
  MUSTER_CHECK(tracer != nullptr) << "replicas are traced";
  const int count = static_cast<int>(devices.size());
  std::vector<ReplicaContext::Merging> merges;
  {
    TracedReplicas traced(*tracer, count);
    ReplicaTurns turns(
        count, [&](int replica) { traced.leave(replica); }, [&](int replica) { traced.arrive(replica); });
    static std::atomic<uint64_t> steps{0};
    ReplicaContext::OfAll all{.step = ++steps, .turns = turns, .tracer = tracer, .device = DeviceScope::current()};
    turns.run([&](int replica) {
      DeviceScope on(devices[replica]);
      ReplicaContext context(replica, count, across, all);
      trace_one(replica);
      context.check_end();
    });
    merges = std::move(all.merges);
  }
  for (const ReplicaContext::Merging& merge : merges) merge.how(merge.by_replica);
}

}  // namespace muster

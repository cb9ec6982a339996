#include "muster/trace/replica_context.h"

#include <algorithm>

#include "muster/base/check.h"
#include "muster/base/status.h"
#include "muster/trace/device_scope.h"
#include "muster/trace/tracer.h"

namespace muster {
namespace {

thread_local ReplicaContext* current_replica = nullptr;

// Whatever happens, modules have their own memory again.
class ShownCopies {
 public:
  explicit ShownCopies(Tracer& tracer) : tracer_(tracer) {}
  ~ShownCopies() { show(0); }
  ShownCopies(const ShownCopies&) = delete;
  ShownCopies& operator=(const ShownCopies&) = delete;
  void show(int replica) const { tracer_.show_copies(replica); }

 private:
  Tracer& tracer_;
};

}  // namespace

ReplicaContext* ReplicaContext::current() { return current_replica; }

int replica_id() { return current_replica == nullptr ? 0 : current_replica->id(); }

ReplicaContext::ReplicaContext(int here, int num_here, const AcrossWorkers& across, OfAll& all)
    : here_(here), num_here_(num_here), across_(across), merges_(all.merges), made_(all.made) {
  current_replica = this;
}

ReplicaContext::~ReplicaContext() { current_replica = nullptr; }

void ReplicaContext::merge(const std::string& what, const std::vector<Variable>& changed, Tensors values, Merge how) {
  const size_t number = merged_++;
  if (here_ == 0) merges_.push_back({what, std::move(how)});
  if (number >= merges_.size() || merges_[number].what != what) {
    throw failed_precondition("replica ", id(), " comes to ", what, ", replica ", id() - here_, " to ",
                              number < merges_.size() ? merges_[number].what : "its end",
                              "; all replicas write the same variables in the same order");
  }
  merges_[number].by_replica.push_back(std::move(values));
  for (const Variable& variable : changed) {
    changed_.push_back(variable.state().get());
    for (const Variable& shard : variable.shards()) changed_.push_back(shard.state().get());
    for (const Variable& copy : variable.copies()) changed_.push_back(copy.state().get());
  }
}

ReplicaContext::Tensors ReplicaContext::once(const std::string& what, const std::function<Tensors()>& make) {
  const size_t number = taken_++;
  if (here_ == 0) made_.push_back({what, make()});
  if (number < made_.size() && made_[number].what == what) return made_[number].tensors;
  throw failed_precondition("replica ", id(), " comes to ", what, ", replica ", id() - here_, " to ",
                            number < made_.size() ? made_[number].what : "its end",
                            "; all replicas take the same things in the same order");
}

void ReplicaContext::check_readable(const Variable::State& variable) const {
  if (std::find(changed_.begin(), changed_.end(), &variable) == changed_.end()) return;
  throw failed_precondition(
      "variable \"", variable.options.name, "\" is read by replica ", id(), " after it has written to it; what the ",
      num_replicas(),
      " replicas write is put together when all of them have ended: read it after strategy.run(), and for several "
      "steps in one call put the loop around it: repeat(10, [&] { strategy.run(step, it); })");
}

void for_each_replica(const std::vector<std::string>& devices, const AcrossWorkers& across,
                      const std::function<void(int replica)>& trace_one) {
  if (current_replica != nullptr) {
    throw failed_precondition("strategy.run() inside of replica ", current_replica->id(),
                              ": a replica is one call of a function and has no replicas of its own");
  }
  Tracer* tracer = Tracer::current();
  MUSTER_CHECK(tracer != nullptr) << "replicas are traced";
  ReplicaContext::OfAll all;
  std::vector<ReplicaContext::Merging>& merges = all.merges;
  // A replica's gradients by rows concern its own lookups; gradients of what is made of all replicas concern all.
  std::vector<RowLookup> lookups = std::exchange(tracer->lookups, {});
  const int count = static_cast<int>(devices.size());
  const ShownCopies shown(*tracer);
  for (int replica = 0; replica < count; ++replica) {
    DeviceScope on(devices[replica]);
    ReplicaContext context(replica, count, across, all);
    shown.show(replica);
    trace_one(replica);
    if (context.merged_ != merges.size()) {
      throw failed_precondition("replica ", context.id(), " ends, but replica ", context.id() - replica, " came to ",
                                merges[context.merged_].what,
                                "; all replicas write the same variables in the same order");
    }
    for (RowLookup& lookup : std::exchange(tracer->lookups, {})) lookups.push_back(std::move(lookup));
  }
  tracer->lookups = std::move(lookups);
  shown.show(0);
  for (const ReplicaContext::Merging& merge : merges) merge.how(merge.by_replica);
}

}  // namespace muster

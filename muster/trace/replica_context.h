// Several replicas of a step, each on a device of its own of one worker.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "muster/trace/across_workers.h"
#include "muster/trace/variable.h"

namespace muster {

class ReplicaTurns;
class Tracer;

// One replica while its function is traced. The replicas of a process are traced one after the other into one program,
// or in turns where they meet, and run side by side; other processes may have more of them, of the same step. What
// concerns all of them, such as a write to a variable, is merged: it happens when the last of them has ended, with what
// each of them gave. Of one thread, the one that traces it.
class ReplicaContext {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Merge = std::function<void(const std::vector<Tensors>& by_replica)>;
  struct Met {
    std::string what;
    size_t number = 0;                  // of those before it in this step
    std::vector<Tensors> by_replica{};  // what each gave
    Tensors result{};                   // what came of it
  };

  static ReplicaContext* current();  // null outside of strategy.run()

  int id() const { return across_.rank * num_here_ + here_; }  // among all
  int num_replicas() const { return across_.size * num_here_; }
  int number_here() const { return here_; }    // among those of this process
  uint64_t step() const { return all_.step; }  // the same for all replicas of a strategy.run(), and for no other
  const AcrossWorkers& across() const { return across_; }

  // Calls `how` once, after all replicas of this process, with the `values` of each of them; what those of others give
  // it gets by across(). `changed` are variables that it writes: until then
  // they have their old values, so reading one is an error. All replicas merge the same things in the same order:
  // Error{kFailedPrecondition} if one does not, which names `what`.
  void merge(const std::string& what, const std::vector<Variable>& changed, Tensors values, Merge how);
  // Waits for the other replicas of this process and calls `how` once, outside of all of them, with what each gave. All
  // replicas meet for the same things in the same order, as with merge(). Throws Error{kFailedPrecondition} inside of
  // control flow, where others cannot come, unless there are none.
  Met meet(const std::string& what, Tensors values,
           const std::function<Tensors(const std::vector<Tensors>& by_replica)>& how);
  // What `make` gives is made once, for all replicas. They ask for the same things in the same order, as with merge().
  Tensors once(const std::string& what, const std::function<Tensors()>& make);
  // Before a write that all make together. Throws Error{kFailedPrecondition} if other processes take the step, too, and
  // have no copy of the variable: each would go on from values of its own.
  void check_everywhere(const Variable::State& variable) const;
  // Throws Error{kFailedPrecondition} if this replica has written to the variable before.
  void check_readable(const Variable::State& variable) const;

 private:
  friend void for_each_replica(const std::vector<std::string>&, const AcrossWorkers&, const std::function<void(int)>&);
  struct Merging {
    std::string what;
    Merge how;
    std::vector<Tensors> by_replica{};
  };

  struct Made {
    std::string what;
    Tensors tensors;
  };
  struct OfAll {
    const uint64_t step;
    ReplicaTurns& turns;
    Tracer* const tracer;      // of all replicas
    const std::string device;  // around them
    std::vector<Merging> merges{};
    std::vector<Met> meetings{};
    std::vector<Made> made{};
  };

  ReplicaContext(int here, int num_here, const AcrossWorkers& across, OfAll& all);
  ~ReplicaContext();
  // REQUIRES: the replica is not the first. The error that it does not do what the first did.
  [[noreturn]] void refuse(const std::string& what, const std::string* first) const;
  void check_end() const;

  const int here_, num_here_;  // among those of this process
  const AcrossWorkers across_;
  OfAll& all_;
  size_t merged_ = 0, met_ = 0, taken_ = 0;  // by this one
  std::vector<const Variable::State*> changed_{};
};

// The number of the replica that is traced; 0 outside of strategy.run().
int replica_id();

// In a traced function: all replicas have the same elements in these tensors, for they were made of what each of them
// gave. Then they may be written to a variable in place.
void note_alike(const std::vector<at::Tensor>& tensors);

// Calls `trace_one(replica)` for each device of this process, in the scope of that device, and then merges. REQUIRES: a
// function is being traced. Throws Error{kFailedPrecondition} inside of a replica.
void for_each_replica(const std::vector<std::string>& devices, const AcrossWorkers& across,
                      const std::function<void(int replica)>& trace_one);

}  // namespace muster

// Variables on parameter servers, steps on workers that come and go.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "muster/cluster/cluster_resolver.h"
#include "muster/distribute/distributed_dataset.h"
#include "muster/distribute/partitioners.h"
#include "muster/distribute/replicas.h"
#include "muster/rpc/credentials.h"
#include "muster/trace/function.h"
#include "muster/trace/module_variables.h"
#include "muster/trace/replica_context.h"
#include "muster/trace/variable_scope.h"

namespace muster {

class CoordinatorCore;
class Peers;
class PsVariables;
class RpcFaults;

struct ParameterServerOptions {
  // Cuts variables into parts; else large ones are, by spread_over(). fixed_size_partitioner(1) leaves all whole.
  Partitioner partitioner{};
  PsPlacement placement = PsPlacement::kRoundRobin;
  // The devices of every worker that take a step together, a replica each: {"/device:GPU:0", "/device:GPU:1"}. None:
  // the GPUs that the resolver knows of, else one replica on the worker's default device.
  std::vector<std::string> replica_devices{};
  Credentials credentials{};
  std::chrono::milliseconds connect_timeout{60'000};  // until a task that does not answer is given up
  int attempts = 2;                                   // to make a call that was cut off
  std::shared_ptr<RpcFaults> faults{};                // for tests
  std::shared_ptr<Peers> peers{};                     // who reaches the tasks; else gRPC at the resolver's addresses
};

// A handle, cheap to copy. The variables that were made in its scope live as long as it, its coordinator or one of
// them does. Thread-safe.
class ParameterServerStrategy {
 public:
  // Throws Error{kInvalidArgument} for a cluster without workers or parameter servers, with more than one chief or
  // evaluator, with other jobs, or whose workers have different numbers of GPUs, and for replica devices that are no
  // devices of a worker; Error{kUnavailable} or {kDeadlineExceeded} if a parameter server cannot be reached.
  // Workers may come later.
  explicit ParameterServerStrategy(const ClusterResolver& cluster, ParameterServerOptions options = {});

  // Until the scope ends, variables made by this thread live on the parameter servers:
  //   auto scope = strategy.scope();
  VariableScope scope() const;
  // Variables made in this scope live, whole, where `other` does.
  VariableScope colocate_with(const Variable& other) const;

  // Makes one thing in the scope. The parameters and buffers of a torch::nn module become variables of the strategy, as
  // if it had been adopted: `auto net = strategy.make<torch::nn::Linear>(2, 3);`. The strategy keeps them as long as
  // the module is there; adopted(net) has them, and adopted(net).write_back() brings trained values home.
  template <class T, class... Args>
  T make(Args&&... args) const {
    VariableScope inside = scope();
    if constexpr (TorchModule<T>) {
      T made(std::forward<Args>(args)...);
      keep(adopt(made, {.keep = true}));
      return made;
    } else {
      return T(std::forward<Args>(args)...);
    }
  }

  // Inside a function that is scheduled: calls `function` once for each replica, on the devices of the worker, side by
  // side, and returns what each returns: PerReplica<Result>, or nothing. An argument that is a PerReplica is dealt out.
  // Variables keep their values until all replicas have ended; then what they have written becomes one write, by the
  // variable's Aggregation. Optimizers sum the gradients of all. replica_id() is the number of the replica.
  // Outside of traced functions it runs the replicas from this process, which is slow, with a warning: variables are
  // where they are, everything else happens here.
  template <class F, class... Args>
  auto run(const Function<F>& function, const Args&... args) const {
    using Result = std::invoke_result_t<F&, typename replicas_internal::ShareOf<Args>::Type&...>;
    if (tracing()) return each_replica<Result>(function, args...);
    warn_outside_of_schedule("run");
    auto from_here = [&](const std::shared_ptr<TracedFunction::Entry>& entry, std::vector<at::Tensor> tensors) {
      return run_from_here(*entry, std::move(tensors));
    };
    if constexpr (std::is_void_v<Result>) {
      if (num_replicas_in_sync() == 1) return function.run_by(from_here, replicas_internal::share(args, 0, 1)...);
      muster::function([&](const Args&... given) {
        each_replica<Result>(function, given...);
      }).run_by(from_here, args...);
    } else {
      if (num_replicas_in_sync() == 1) {
        return PerReplica<Result>{{function.run_by(from_here, replicas_internal::share(args, 0, 1)...)}};
      }
      return muster::function([&](const Args&... given) { return each_replica<Result>(function, given...); })
          .run_by(from_here, args...);
    }
  }
  template <class F, class... Args>
  void run(const F&, const Args&...) const {
    static_assert(sizeof(F) == 0, "strategy.run only accepts a muster::function(lambda)");
  }

  // The values of all replicas as one: their sum or their mean, also over an axis of each. Inside a function that is
  // scheduled, else with a warning.
  template <class T>
  T reduce(ReduceOp op, const PerReplica<T>& values, std::optional<int64_t> axis = {}) const {
    if (!tracing()) warn_outside_of_schedule("reduce");
    return replicas_internal::reduce(op, values, axis);
  }

  int num_replicas_in_sync() const { return static_cast<int>(replica_devices_.size()); }  // of one worker

  // For create_per_worker_dataset: a dataset of batches that the replicas of a worker share, and one of batches of
  // which each replica gets its own.
  DistributedDataset distribute_dataset(Dataset dataset) const {
    return {std::move(dataset), num_replicas_in_sync(), /*global_batches=*/true};
  }
  template <class Make>
  DistributedDataset distribute_datasets_from_function(const Make& make) const {
    return {make(InputContext{.num_replicas_in_sync = num_replicas_in_sync()}), num_replicas_in_sync(),
            /*global_batches=*/false};
  }

  const std::vector<std::string>& workers() const { return workers_; }  // tasks, by full name
  const std::vector<std::string>& worker_addresses() const { return worker_addresses_; }
  const std::vector<std::string>& parameter_servers() const { return ps_; }  // tasks

  // For the coordinator.
  const std::shared_ptr<PsVariables>& variables() const { return variables_; }
  const std::shared_ptr<Peers>& peers() const { return peers_; }
  struct CoordinatorPlace {  // a strategy has one coordinator at a time
    absl::Mutex mu;
    std::weak_ptr<CoordinatorCore> core ABSL_GUARDED_BY(mu);
    std::atomic<bool> warned = false;  // that something runs outside of it
  };
  CoordinatorPlace& coordinator() const { return *coordinator_; }

 private:
  template <class Result, class F, class... Args>
  auto each_replica(const Function<F>& function, const Args&... args) const {
    auto call = [&]([[maybe_unused]] int replica) {
      return function(replicas_internal::share(args, replica, num_replicas_in_sync())...);
    };
    if constexpr (std::is_void_v<Result>) {
      for_each_replica(replica_devices_, call);
    } else {
      PerReplica<Result> results;
      for_each_replica(replica_devices_, [&](int replica) { results.values.push_back(call(replica)); });
      return results;
    }
  }
  std::vector<at::Tensor> run_from_here(const TracedFunction::Entry& entry, std::vector<at::Tensor> tensors) const;
  void warn_outside_of_schedule(const char* method) const;
  // Modules keep plain tensors, so somebody has to hold their variables.
  void keep(ModuleVariables variables) const;
  struct Modules {
    absl::Mutex mu;
    std::vector<ModuleVariables> made ABSL_GUARDED_BY(mu);
  };

  std::vector<std::string> workers_, worker_addresses_, ps_, replica_devices_;
  std::shared_ptr<Peers> peers_;
  std::shared_ptr<PsVariables> variables_;
  std::shared_ptr<Modules> modules_ = std::make_shared<Modules>();
  std::shared_ptr<CoordinatorPlace> coordinator_ = std::make_shared<CoordinatorPlace>();
};

}  // namespace muster

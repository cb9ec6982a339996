// One program under any strategy.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/data/dataset.h"
#include "muster/distribute/distributed_dataset.h"
#include "muster/distribute/replicas.h"
#include "muster/distribute/strategy_parts.h"
#include "muster/trace/function.h"
#include "muster/trace/module_variables.h"
#include "muster/trace/replica_context.h"
#include "muster/trace/variable_scope.h"

namespace muster {

// Where variables live and which devices take a step together. This one changes nothing: one replica, variables as
// without it; the others choose. A handle, cheap to copy. The variables that were made in its scope live as long as it
// or one of them does. Thread-safe.
class Strategy {
 public:
  Strategy() : Strategy(StrategyParts{}) {}
  // That which has made this module by make(), or in whose scope this is called; else one that changes nothing.
  static Strategy of(const ModuleVariables& module);

  // Until the scope ends, variables made by this thread are the strategy's:
  //   auto scope = strategy.scope();
  VariableScope scope() const { return VariableScope(parts_->variables); }

  // Makes one thing in the scope. The parameters and buffers of a torch::nn module become variables of the strategy, as
  // if it had been adopted: `auto net = strategy.make<torch::nn::Linear>(2, 3);`. The strategy keeps them as long as
  // the module is there; adopted(net) has them, and adopted(net).write_back() brings trained values home.
  template <class T, class... Args>
  T make(Args&&... args) const {
    VariableScope inside = scope();
    if constexpr (TorchModule<T>) {
      drop_gone_modules();  // and with them the names of their variables
      T made(std::forward<Args>(args)...);
      keep(adopt(made, {.keep = true}));
      return made;
    } else {
      return T(std::forward<Args>(args)...);
    }
  }

  // Calls `function` once for each replica, on the devices of the strategy, side by side, and returns what each
  // returns: PerReplica<Result>, or nothing. An argument that is a PerReplica is dealt out, and so are the elements of
  // what distribute() gave. Variables keep their values until all replicas have ended; then what they have written
  // becomes one write, by the variable's Aggregation. Optimizers take the mean of the gradients of all. replica_id() is
  // the number of the replica.
  template <class F, class... Args>
  auto run(const Function<F>& function, const Args&... args) const {
    static_assert(
        std::is_invocable_v<F&, typename replicas_internal::ShareOf<Args>::Type&...>,
        "the traced function cannot take these arguments; a dataset goes in as what strategy.distribute(dataset) "
        "returns");
    using Result = std::invoke_result_t<F&, typename replicas_internal::ShareOf<Args>::Type&...>;
    auto each = [&](const Args&... given) { return each_replica<Result>(function, given...); };
    if (tracing()) return each(args...);
    parts_->runner->called_outside("run");
    auto by_runner = [&](const std::shared_ptr<TracedFunction::Entry>& entry, std::vector<at::Tensor> tensors) {
      return parts_->runner->run(*entry, std::move(tensors));
    };
    return function.run_as(each, parts_->key, by_runner, args...);
  }
  template <class F, class... Args>
  void run(const F&, const Args&...) const {
    static_assert(sizeof(F) == 0, "strategy.run only accepts a muster::function(lambda)");
  }

  // Calls `function` once, in this process, with the strategy's variables wherever they are. For what is not worth a
  // place of its own, such as a few predictions.
  template <class F, class... Args>
  auto run_here(const Function<F>& function, const Args&... args) const {
    auto by_runner = [&](const std::shared_ptr<TracedFunction::Entry>& entry, std::vector<at::Tensor> tensors) {
      return parts_->runner->run(*entry, std::move(tensors));
    };
    return function.run_by(by_runner, args...);
  }

  // The values of all replicas as one: their sum, their mean, the least or the most, also over an axis of each. Throws
  // Error{kInvalidArgument} for values of different types or shapes; along the axis they may have different numbers.
  // There is one value for each replica of this process.
  template <class T>
  T reduce(ReduceOp op, const PerReplica<T>& values, std::optional<int64_t> axis = {}) const {
    check_one_of_each("reduce", values.values.size());
    if (!tracing()) parts_->runner->called_outside("reduce");
    return replicas_internal::reduce(op, values, axis, parts_->across);
  }
  // Those of all replicas after each other, along an axis that they have; likewise.
  at::Tensor gather(const PerReplica<at::Tensor>& values, int64_t axis = 0) const;

  // Returns when all processes that take steps together have called it, for the same purpose; at once where there is
  // one. What it is for: the others read a file that the chief has written before. Throws Error{kFailedPrecondition} in
  // a traced function, where nothing waits, and Error with the name of a process that has failed or did not come.
  void barrier(const std::string& purpose) const;

  // Whether this is the process that prints and writes for all.
  bool is_chief() const { return parts_->across.rank == 0; }
  int num_replicas_in_sync() const { return num_replicas_here() * parts_->across.size; }

  // Begins a sequence of batches here, for run(): all replicas share each batch, by rows. What each worker reads of it
  // is chosen by TensorFlow's rules, see Dataset::shard, and said in the log if MUSTER_LOG is debug: every n-th file,
  // of which it takes as many rows in each step as its replicas need; or all, of which each replica takes its rows.
  // kOff: each worker reads all for itself, in such steps. Throws Error{kFailedPrecondition} under
  // ParameterServerStrategy, where a ClusterCoordinator has data read.
  Iterator distribute(const Dataset& dataset, ShardPolicy policy = ShardPolicy::kAuto) const;
  // The same, with a batch for each replica from what `make` returns for an InputContext.
  template <class Make>
    requires std::is_invocable_r_v<Dataset, Make&, InputContext>
  Iterator distribute(Make&& make) const {
    return distribute_own(make(input_context()));
  }
  // Both end when all workers have nothing left: until then one that has none takes batches without rows. Where workers
  // may have different numbers of batches, they tell each other before each step if there is more; not after repeat()
  // without a count, which has no end.

  // The same, to be begun later, and again: by iterator(), or where data is read at workers by
  // ClusterCoordinator::create_per_worker_dataset.
  DistributedDataset distribute_dataset(Dataset dataset) const;
  template <class Make>
  DistributedDataset distribute_datasets_from_function(const Make& make) const {
    return distributed_own(make(input_context()));
  }

  // For Checkpoints: without the variables of modules that are gone by now.
  const std::shared_ptr<SavedVariables>& saved() const {
    drop_gone_modules();
    return parts_->saved;
  }
  const AcrossWorkers& across() const { return parts_->across; }
  // For those who choose between run() and a coordinator.
  const std::shared_ptr<ParameterServerTasks>& servers() const { return parts_->servers; }

 protected:
  explicit Strategy(StrategyParts parts);

 private:
  struct Parts : StrategyParts {
    uint64_t key;  // of this strategy among all
    absl::Mutex mu;
    std::vector<ModuleVariables> modules ABSL_GUARDED_BY(mu);
    std::string said ABSL_GUARDED_BY(mu);  // last, of who reads what
  };
  struct AllParts {  // of the strategies of this process
    absl::Mutex mu;
    std::vector<std::weak_ptr<Parts>> parts ABSL_GUARDED_BY(mu);
  };
  static AllParts& all();
  explicit Strategy(std::shared_ptr<Parts> parts) : parts_(std::move(parts)) {}
  bool has_made(const ModuleVariables& module) const;

  template <class Result, class F, class... Args>
  auto each_replica(const Function<F>& function, const Args&... args) const {
    auto call = [&]([[maybe_unused]] int replica) {
      return function(replicas_internal::share(args, replica, num_replicas_here())...);
    };
    if constexpr (std::is_void_v<Result>) {
      for_each_replica(parts_->replica_devices, parts_->across, call);
    } else {
      PerReplica<Result> results;
      for_each_replica(parts_->replica_devices, parts_->across,
                       [&](int replica) { results.values.push_back(call(replica)); });
      return results;
    }
  }
  int num_replicas_here() const { return static_cast<int>(parts_->replica_devices.size()); }
  InputContext input_context() const {
    return {.num_input_pipelines = parts_->across.size,
            .input_pipeline_id = parts_->across.rank,
            .num_replicas_in_sync = num_replicas_in_sync()};
  }
  void check_takes_steps_here() const;
  void check_one_of_each(const char* what, size_t values) const;
  // Begins a sequence of elements that are for one replica each.
  Iterator distribute_own(const Dataset& dataset) const;
  DistributedDataset distributed_own(Dataset dataset) const;
  void say_once(std::string line) const;
  // Modules keep plain tensors, so somebody has to hold their variables.
  void keep(ModuleVariables variables) const;
  void drop_gone_modules() const;

  std::shared_ptr<Parts> parts_;
};

}  // namespace muster

// Schedules functions on the workers of a cluster.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/distribute/coordinator/coordinator_options.h"
#include "muster/distribute/coordinator/coordinator_report.h"
#include "muster/distribute/coordinator/metrics.h"
#include "muster/distribute/coordinator/per_worker.h"
#include "muster/distribute/coordinator/remote_value.h"
#include "muster/distribute/servers/parameter_server_strategy.h"
#include "muster/trace/device_scope.h"

namespace muster {

class CoordinatorCore;

// Runs functions on whichever worker is free, in no particular order and at least once: a closure whose worker is lost
// is run by another one, and the worker is used again when it is back. A worker runs one closure at a time. A function
// that fails makes the next call of schedule(), join() or done() throw its error, once, when nothing runs any more;
// what was waiting is cancelled. A parameter server that is lost takes its variables with it: Error{kUnavailable} that
// names it, at every call; a coordinator that is made after Checkpoints::restore() has given it its values goes on.
// Thread-safe. The destructor cancels what is under way and waits for it.
class ClusterCoordinator {
 public:
  explicit ClusterCoordinator(const ParameterServerStrategy& strategy, CoordinatorOptions options = {});
  ~ClusterCoordinator();
  ClusterCoordinator(const ClusterCoordinator&) = delete;
  ClusterCoordinator& operator=(const ClusterCoordinator&) = delete;

  // Does not wait, unless the queue is full. Arguments are those of the function, as they are now: whoever writes to a
  // tensor later does not change what was scheduled. Where it takes an Iterator&, give a PerWorkerDataset. When that
  // gives an element of another shape, the function is traced for it then, on a thread of the coordinator: what it
  // captures lives until it has run.
  template <class F, class... Args>
  auto schedule(const Function<F>& function, const Args&... args) {
    return schedule_on(std::nullopt, function, args...);
  }
  // On this worker and no other one.
  template <class F, class... Args>
  auto schedule_on(std::optional<int> worker, const Function<F>& function, const Args&... args) {
    using Result = std::invoke_result_t<F&, std::remove_const_t<std::remove_reference_t<decltype(plain(args))>>&...>;
    std::vector<std::shared_ptr<PerWorkerResource>> resources;
    std::vector<std::shared_ptr<void>> holds;
    (note_resource(resources, holds, args), ...);
    std::vector<at::Tensor> tensors;
    auto bind = [&] { return function.bind(tensors, plain(args)...); };
    const int64_t misses = function.stats().misses;
    const auto begin = std::chrono::steady_clock::now();
    std::shared_ptr<TracedFunction::Entry> entry = bind();
    if (function.stats().misses != misses) traced(std::chrono::steady_clock::now() - begin);
    take_now(tensors);
    TracedFunction::TraceForElements trace;
    if (!entry->elements.empty()) {
      trace = [function, device = DeviceScope::current(),
               given = with_tensors(std::make_tuple(plain(args)...), tensors)](const ElementSpecs& elements) {
        const DeviceScope as_scheduled(device);
        return std::apply([&](const auto&... each) { return function.bind_for(elements, each...); }, given);
      };
    }
    return RemoteValue<Result>(
        entry, put(entry, std::move(trace), std::move(tensors), std::move(resources), std::move(holds), worker));
  }
  template <class F, class... Args>
  void schedule(const F&, const Args&...) {
    static_assert(sizeof(F) == 0, "schedule only accepts a muster::function(lambda)");
  }

  // Waits until all that was scheduled for any worker has run; what schedule_on() has asked for is waited for by
  // fetch(). Throws the error of a function that failed.
  void join();
  // False when the time is over first.
  bool join(std::chrono::milliseconds timeout);
  // Whether all that join() waits for has run. Throws as join() does.
  bool done();

  template <class T>
  T fetch(const RemoteValue<T>& value) {
    ScopedTimer timer(metrics().remote_value_fetch);
    return value.fetch();
  }
  template <class T>
  std::vector<T> fetch(const std::vector<RemoteValue<T>>& values) {
    std::vector<T> fetched;
    for (const RemoteValue<T>& value : values) fetched.push_back(fetch(value));
    return fetched;
  }

  // Every worker reads the dataset for itself. `make` is called here: once if it takes nothing, and once for each
  // worker if it takes an InputContext. What it makes is a Dataset, or a DistributedDataset of the strategy. Throws
  // Error{kInvalidArgument} for a dataset with a generator in it, and if `make` makes a variable.
  // `position`: what position() of such a dataset gave, of as many workers; it goes on there.
  template <class Make>
  PerWorkerDataset create_per_worker_dataset(const Make& make, const std::string& position = {}) {
    if constexpr (std::is_same_v<Make, Dataset> || std::is_same_v<Make, DistributedDataset>) {
      return per_worker_dataset(std::vector<Make>{make}, position);
    } else if constexpr (std::is_invocable_v<Make, InputContext>) {
      const VariableScope scope = without_variables();
      std::vector<std::invoke_result_t<Make, InputContext>> datasets;
      for (const InputContext& context : input_contexts()) datasets.push_back(make(context));
      return per_worker_dataset(datasets, position);
    } else {
      static_assert(std::is_invocable_v<Make>,
                    "create_per_worker_dataset takes a Dataset, or a function that returns one and takes nothing or an "
                    "InputContext");
      const VariableScope scope = without_variables();
      return per_worker_dataset(std::vector<std::invoke_result_t<Make>>{make()}, position);
    }
  }

  // Has the workers that are there open it now, and not when a closure first needs it. Does not wait: what fails is
  // told by the closures that need it.
  void open(const PerWorkerDataset& dataset);

  // Where the workers are in it, as text: to be saved with a checkpoint (the metadata of Checkpoints::save), so that a
  // job that is started again does not see what it has seen. join() first: what is under way counts as taken.
  std::string position(const PerWorkerDataset& dataset);

  // A variable of which every worker has its own.
  PerWorkerVariable create_per_worker_variable(const InitialValue& initial, const std::string& name = "variable");
  // Its value at each worker, in the order of the workers; a worker that was restarted has its initial value again.
  // Throws Error for a worker that is not there.
  std::vector<at::Tensor> values(const PerWorkerVariable& variable);

  // ok for each task that answers, workers first, then parameter servers; else why it does not.
  std::vector<Status> task_states();
  Metrics& metrics();
  size_t workers_up() const;

  // What the job has spent its time on since the last report, or since it began, and what limits its rate: print
  // to_string(). Asks all tasks, and waits for a few seconds for those that do not answer. The log has its first
  // sentence once, when the job has run for a while.
  CoordinatorReport report();

 private:
  template <class T>
  static const T& plain(const T& argument) {
    return argument;
  }
  static const Iterator& plain(const PerWorkerDataset& dataset) { return dataset.argument(); }
  template <class T>
  static void plain(const RemoteValue<T>&) {
    static_assert(sizeof(T) == 0, "a RemoteValue cannot be an argument of schedule(); fetch it first");
  }

  // The arguments with these tensors in place of their own, one for each.
  template <class Arguments>
  static Arguments with_tensors(Arguments arguments, const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor*> own;
    for_each_leaf(arguments, [&]<class Leaf>(Leaf& leaf) {
      if constexpr (std::same_as<Leaf, at::Tensor>) own.push_back(&leaf);
    });
    for (size_t i = 0; i < own.size() && own.size() == tensors.size(); ++i) *own[i] = tensors[i];
    return arguments;
  }

  template <class T>
  static void note_resource(std::vector<std::shared_ptr<PerWorkerResource>>& resources,
                            std::vector<std::shared_ptr<void>>& holds, const T& argument) {
    if constexpr (std::is_same_v<T, PerWorkerDataset>) {
      resources.push_back(argument.resource());
      holds.push_back(argument.hold());
    }
  }

  std::shared_ptr<RemoteResult> put(std::shared_ptr<TracedFunction::Entry> entry,
                                    TracedFunction::TraceForElements trace, std::vector<at::Tensor> tensors,
                                    std::vector<std::shared_ptr<PerWorkerResource>> resources,
                                    std::vector<std::shared_ptr<void>> holds, std::optional<int> worker);
  static void take_now(std::vector<at::Tensor>& tensors);  // copies them
  [[noreturn]] static void refuse_variable(const Variable::State& variable, const std::string& function);
  static void check_workers_of(const Program& program, std::optional<int> worker);
  void traced(std::chrono::nanoseconds took);
  PerWorkerDataset per_worker_dataset(const std::vector<Dataset>& datasets, const std::string& position,
                                      SharedBy shared_by = SharedBy::kNobody);
  PerWorkerDataset per_worker_dataset(const std::vector<DistributedDataset>& datasets, const std::string& position);
  static VariableScope without_variables();
  std::vector<InputContext> input_contexts() const;

  const ParameterServerStrategy strategy_;
  const std::shared_ptr<CoordinatorCore> core_;
};

}  // namespace muster

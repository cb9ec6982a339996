// Variables on parameter servers, steps on workers that come and go.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "muster/cluster/cluster_resolver.h"
#include "muster/distribute/partitioners.h"
#include "muster/distribute/ps_variables.h"
#include "muster/rpc/credentials.h"
#include "muster/rpc/rpc_faults.h"
#include "muster/trace/function.h"

namespace muster {

class CoordinatorCore;

struct ParameterServerOptions {
  Partitioner partitioner{};  // cuts variables into parts; without one every variable is whole
  PsPlacement placement = PsPlacement::kRoundRobin;
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
  // evaluator, or with other jobs; Error{kUnavailable} or {kDeadlineExceeded} if a parameter server cannot be reached.
  // Workers may come later.
  explicit ParameterServerStrategy(const ClusterResolver& cluster, ParameterServerOptions options = {});

  // Until the scope ends, variables made by this thread live on the parameter servers:
  //   auto scope = strategy.scope();
  VariableScope scope() const { return VariableScope(variables_); }
  // Variables made in this scope live, whole, where `other` does.
  VariableScope colocate_with(const Variable& other) const;

  // Makes one thing in the scope.
  template <class T, class... Args>
  T make(Args&&... args) const {
    VariableScope inside = scope();
    return T(std::forward<Args>(args)...);
  }

  // Runs a function from this process: its variables are where they are, everything else happens here.
  template <class F, class... Args>
  std::invoke_result_t<F&, Args&...> run(const Function<F>& function, const Args&... args) const {
    return function.run_by(
        [&](const std::shared_ptr<TracedFunction::Entry>& entry, std::vector<at::Tensor> tensors) {
          return variables_->run(entry->traced.program, std::move(tensors));
        },
        args...);
  }

  const std::vector<std::string>& workers() const { return workers_; }       // tasks, by full name
  const std::vector<std::string>& parameter_servers() const { return ps_; }  // likewise

  // For the coordinator.
  const std::shared_ptr<PsVariables>& variables() const { return variables_; }
  const std::shared_ptr<Peers>& peers() const { return peers_; }
  struct CoordinatorPlace {  // a strategy has one coordinator at a time
    absl::Mutex mu;
    std::weak_ptr<CoordinatorCore> core ABSL_GUARDED_BY(mu);
  };
  CoordinatorPlace& coordinator() const { return *coordinator_; }

 private:
  std::vector<std::string> workers_, ps_;
  std::shared_ptr<Peers> peers_;
  std::shared_ptr<PsVariables> variables_;
  std::shared_ptr<CoordinatorPlace> coordinator_ = std::make_shared<CoordinatorPlace>();
};

}  // namespace muster

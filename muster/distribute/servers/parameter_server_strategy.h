// Variables on parameter servers, steps on workers that come and go.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "muster/cluster/resolvers/cluster_resolver.h"
#include "muster/distribute/servers/partitioners.h"
#include "muster/distribute/strategy.h"
#include "muster/rpc/credentials/credentials.h"

namespace muster {

class CoordinatorCore;
class Peers;
class PsVariables;

struct ParameterServerOptions {
  // Cuts variables into parts; else large ones are, by spread_over(). fixed_size_partitioner(1) leaves all whole.
  Partitioner partitioner{};
  PsPlacement placement = PsPlacement::kRoundRobin;
  // How pulls and pushes of a variable look between machines, unless VariableOptions::wire says so: none is changed
  // without one. Asked about whole variables, those of a model and of its tables, too.
  WireChoice wire{};
  // The devices of every worker that take a step together, a replica each: {"/device:GPU:0", "/device:GPU:1"}. None:
  // the GPUs that the resolver knows of, else one replica on the worker's default device.
  std::vector<std::string> replica_devices{};
  Credentials credentials{};
  std::chrono::milliseconds connect_timeout{60'000};  // until a task that does not answer is given up
  int attempts = 2;                                   // to make a call that was cut off
};

// What the handles of one strategy share.
struct ParameterServerTasks {
  std::vector<std::string> workers{}, worker_addresses{}, ps{};  // by full name
  std::vector<std::string> replica_devices{};
  std::shared_ptr<Peers> peers{};
  std::shared_ptr<PsVariables> variables{};
  absl::Mutex mu{};
  std::weak_ptr<CoordinatorCore> coordinator ABSL_GUARDED_BY(mu){};  // one at a time, but for those that have ended
  // Whoever goes through data until it ends has it meanwhile: that end is a failure, which cancels all that is
  // scheduled.
  absl::Mutex one_loop{};
};

// The variables that were made in its scope live as long as it, its coordinator or one of them does. A replica is one
// device of a worker. Outside of functions that a coordinator schedules, run(), reduce() and gather() do their work in
// this process, which is slow, with a warning: variables are where they are, everything else happens here. Data is read
// by workers only: distribute() is an error that says so, and what distribute_dataset() returns is for
// ClusterCoordinator::create_per_worker_dataset. Thread-safe.
class ParameterServerStrategy : public Strategy {
 public:
  // Throws Error{kInvalidArgument} for a cluster without workers or parameter servers, with more than one chief or
  // evaluator, with other jobs, or whose workers have different numbers of GPUs, and for replica devices that are no
  // devices of a worker; Error{kUnavailable} or {kDeadlineExceeded} if a parameter server cannot be reached.
  // Workers may come later.
  explicit ParameterServerStrategy(const ClusterResolver& cluster, ParameterServerOptions options = {});
  // The same with tasks that are reached otherwise than by gRPC at the resolver's addresses.
  ParameterServerStrategy(const ClusterResolver& cluster, std::shared_ptr<Peers> peers,
                          ParameterServerOptions options = {});

  // Variables made in this scope live, whole, where `other` does.
  VariableScope colocate_with(const Variable& other) const;

  // The one that a strategy is. REQUIRES: strategy.servers().
  explicit ParameterServerStrategy(const Strategy& strategy) : Strategy(strategy), tasks_(strategy.servers()) {}

  const std::vector<std::string>& workers() const { return tasks_->workers; }
  const std::vector<std::string>& worker_addresses() const { return tasks_->worker_addresses; }
  const std::vector<std::string>& parameter_servers() const { return tasks_->ps; }

  // For the coordinator.
  const std::shared_ptr<PsVariables>& variables() const { return tasks_->variables; }
  const std::shared_ptr<Peers>& peers() const { return tasks_->peers; }

 private:
  using Tasks = ParameterServerTasks;
  static std::shared_ptr<Tasks> tasks_of(const ClusterResolver& resolver, std::shared_ptr<Peers> peers,
                                         ParameterServerOptions options);
  explicit ParameterServerStrategy(std::shared_ptr<Tasks> tasks);

  std::shared_ptr<Tasks> tasks_;
};

}  // namespace muster

// The variables of a cluster's parameter servers, as one process that uses them sees them.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <memory>
#include <string>
#include <vector>

#include "muster/distribute/servers/partitioners.h"
#include "muster/distribute/servers/ps_checkpoints.h"
#include "muster/distribute/servers/ps_incarnations.h"
#include "muster/distribute/servers/ps_places.h"
#include "muster/distribute/servers/ps_runner.h"
#include "muster/runtime/worker/lease_holder.h"
#include "muster/trace/variable_programs.h"
#include "muster/trace/variable_scope.h"

namespace muster {

struct PsVariablesOptions {
  std::vector<std::string> ps_tasks;     // full names
  std::vector<std::string> other_tasks;  // that functions run by `run` may use
  std::shared_ptr<Peers> peers;          // reaches all of them
  Partitioner partitioner{};
  PsPlacement placement = PsPlacement::kRoundRobin;
  WireChoice wire{};  // of variables that say nothing themselves
};

// Makes variables on the parameter servers, whole or in parts, and reads and writes them there. They have a container
// of their own, which ends with this object, or when it is not heard of for long (lease_holder.h). A parameter server
// that was restarted since has lost them and is never taken for the one that it was: the error restarted() names it.
// Thread-safe.
class PsVariables : public VariableHome, public VariableCreator, public std::enable_shared_from_this<PsVariables> {
 public:
  // Waits for the parameter servers. Throws Error{kUnavailable} or {kDeadlineExceeded} for one that does not come.
  explicit PsVariables(PsVariablesOptions options);
  ~PsVariables() override;

  Authority authority() const override { return Authority::kStrategy; }
  std::shared_ptr<Variable::State> create(const InitialValue& initial, VariableOptions options,
                                          bool may_split) override;
  std::shared_ptr<Variable::State> create_beside(const Variable::State& other, const InitialValue& initial,
                                                 VariableOptions options) override;
  void fill(const std::vector<std::shared_ptr<Variable::State>>& parts) override { saved_.fill(parts); }
  at::Tensor read(const Variable::State& variable) override;
  void write(const Variable::State& variable, Write how, const at::Tensor& value) override;

  const std::string& container() const { return container_; }
  // Whose the variables are, and all else that is left at tasks for this strategy. Before the first of it is left at
  // another task than a parameter server, the lease begins there: hold_at.
  LeaseHolder& leases() { return leases_; }
  // See PsIncarnations.
  void check_alive(const std::string& task) const { incarnations_.check_alive(task); }
  void check_alive(const Program& program) const { incarnations_.check_alive(program); }
  PsIncarnations::Known servers() const { return incarnations_.known(); }
  // For checkpoints.
  std::shared_ptr<SavedVariables> saved() { return {shared_from_this(), &saved_}; }
  // All that were made and still have handles, parts by themselves.
  std::vector<std::shared_ptr<Variable::State>> all() const ABSL_LOCKS_EXCLUDED(mu_);

  // Runs a program from this process: one that has variables on the parameter servers.
  std::vector<at::Tensor> run(const Program& program, std::vector<at::Tensor> arguments) {
    return runner_.run(program, std::move(arguments));
  }

 private:
  std::shared_ptr<Variable::State> create_on(const std::string& device, const InitialValue& initial,
                                             VariableOptions options) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<at::Tensor> run(VariableProgram made);

  const PsVariablesOptions options_;
  const std::string container_;
  LeaseHolder leases_;
  PsIncarnations incarnations_;
  PsRunner runner_;
  PsCheckpoints saved_;
  PsPlaces places_;

  mutable absl::Mutex mu_;
  std::vector<std::weak_ptr<Variable::State>> made_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster

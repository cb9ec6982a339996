// The variables of a cluster's parameter servers, as one process that uses them sees them.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "muster/distribute/delayed_restore.h"
#include "muster/distribute/partitioners.h"
#include "muster/distribute/saved_variables.h"
#include "muster/runtime/local_worker.h"
#include "muster/session/local_master.h"
#include "muster/trace/variable_programs.h"
#include "muster/trace/variable_scope.h"

namespace muster {

struct PsVariablesOptions {
  std::vector<std::string> ps_tasks;     // full names
  std::vector<std::string> other_tasks;  // that functions run by `run` may use
  std::shared_ptr<Peers> peers;          // reaches all of them
  Partitioner partitioner{};
  PsPlacement placement = PsPlacement::kRoundRobin;
};

// Makes variables on the parameter servers, whole or in parts, and reads and writes them there. They have a container
// of their own, which ends with this object, or when it is not heard of for long (lease_holder.h). A parameter server
// that was restarted since has lost them and is never taken for the one that it was: the error restarted() names it.
// Thread-safe.
class PsVariables : public VariableHome,
                    public VariableCreator,
                    public SavedVariables,
                    public std::enable_shared_from_this<PsVariables> {
 public:
  // Waits for the parameter servers. Throws Error{kUnavailable} or {kDeadlineExceeded} for one that does not come.
  explicit PsVariables(PsVariablesOptions options);
  ~PsVariables() override;

  Authority authority() const override { return Authority::kStrategy; }
  std::shared_ptr<Variable::State> create(const InitialValue& initial, VariableOptions options,
                                          bool may_split) override;
  std::shared_ptr<Variable::State> create_beside(const Variable::State& other, const InitialValue& initial,
                                                 VariableOptions options) override;
  void fill(const std::vector<std::shared_ptr<Variable::State>>& parts) override;
  at::Tensor read(const Variable::State& variable) override;
  void write(const Variable::State& variable, Write how, const at::Tensor& value) override;

  const std::string& container() const { return container_; }
  // Whose the variables are, and all else that is left at tasks for this strategy. Before the first of it is left at
  // another task than a parameter server, the lease begins there: hold_at.
  LeaseHolder& leases() { return leases_; }
  // Asks a parameter server, or all where a program has variables, whether it is the one that it was. Throws
  // the error restarted() or, if it cannot be reached, Error{kUnavailable}, which names it. Asked after a program was
  // registered, it tells that this was done with the right ones.
  void check_alive(const std::string& task) const ABSL_LOCKS_EXCLUDED(mu_);
  void check_alive(const Program& program) const;
  // Has every parameter server write its variables into this directory, all at once.
  std::vector<ShardEntry> save(const std::string& directory, const Request& request) const override;
  bool saves_beside_steps() const override { return true; }
  // All or none: every parameter server first looks whether it can (RestoreStage). Waits for those that are being
  // restarted, and takes them for what they are from now on.
  void restore(Source source) override ABSL_LOCKS_EXCLUDED(mu_);
  void check_held() const override;
  void check_all_used() const override { later_.check_all_used(); }
  void end_filling() override { later_.end(); }
  // All that were made and still have handles, parts by themselves.
  std::vector<std::shared_ptr<Variable::State>> all() const ABSL_LOCKS_EXCLUDED(mu_);

  // Runs a program from this process: one that has variables on the parameter servers.
  std::vector<at::Tensor> run(const Program& program, std::vector<at::Tensor> arguments);

 private:
  std::string next_device(int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  std::string take_name(const std::string& wish) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<Variable::State> create_on(const std::string& device, const InitialValue& initial,
                                             VariableOptions options) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<at::Tensor> run(VariableProgram made);
  // How a variable or part is stored in checkpoints.
  StoredVariable stored(const Variable::State& state) const;
  using StoredByTask = std::map<std::string, std::vector<StoredVariable>>;
  void restore(const std::string& checkpoint, const StoredByTask& by_task, RestoreStage stage) const;

  const PsVariablesOptions options_;
  const std::string container_;
  LeaseHolder leases_;
  LocalWorker worker_;  // this process, as a task of the cluster
  LocalMaster master_;
  const std::string session_;
  DelayedRestore later_;

  mutable absl::Mutex mu_;
  std::map<std::string, uint64_t> incarnations_ ABSL_GUARDED_BY(mu_);  // by parameter server; the keys do not change
  size_t next_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<int64_t> bytes_ ABSL_GUARDED_BY(mu_);  // by parameter server
  std::set<std::string> names_ ABSL_GUARDED_BY(mu_);
  std::vector<std::weak_ptr<Variable::State>> made_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster

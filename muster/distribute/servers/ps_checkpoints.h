#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "muster/distribute/saved_variables.h"
#include "muster/distribute/servers/delayed_restore.h"
#include "muster/distribute/servers/ps_incarnations.h"
#include "muster/trace/variable.h"

namespace muster {

struct PsCheckpointsOptions {
  std::string container;         // of the variables
  std::shared_ptr<Peers> peers;  // reaches the parameter servers
  // Those that there are, parts by themselves.
  std::function<std::vector<std::shared_ptr<Variable::State>>()> all;
};

// Has the parameter servers of a job write and read its variables, each its own. Thread-safe.
class PsCheckpoints : public SavedVariables {
 public:
  PsCheckpoints(PsCheckpointsOptions options, PsIncarnations& incarnations)
      : options_(std::move(options)), incarnations_(incarnations) {}

  // Has every parameter server write its variables into the directory, all at once.
  Write begin_save(const Only& only) const override;
  bool in_step() const override { return false; }
  void check_directory(const std::string& directory) const override;
  // All or none: every parameter server first looks whether it can (RestoreStage). Waits for those that are being
  // restarted, and takes them for what they are from now on.
  void restore(Source source) override;
  void check_held() const override;
  void check_all_used() const override { later_.check_all_used(); }
  void end_filling() override { later_.end(); }

  // Gives a variable that was just made, or all parts of one, what the checkpoint has that was restored before.
  void fill(const std::vector<std::shared_ptr<Variable::State>>& parts);

 private:
  using StoredByTask = std::map<std::string, std::vector<StoredVariable>>;

  // How a variable or part is stored in checkpoints.
  StoredVariable stored(const Variable::State& state) const;
  void restore(const std::string& checkpoint, const StoredByTask& by_task, RestoreStage stage) const;
  // What tasks have read in vain, as others could not: a restore of nothing lets go of it. `nothing`: of each of them.
  void drop_staged(const std::string& checkpoint, const StoredByTask& nothing) const;

  const PsCheckpointsOptions options_;
  PsIncarnations& incarnations_;
  DelayedRestore later_;
};

}  // namespace muster

#include "muster/distribute/servers/ps_incarnations.h"

#include <algorithm>
#include <set>

#include "muster/base/status.h"
#include "muster/graph/device_spec.h"
#include "muster/graph/placement/split.h"
#include "muster/runtime/worker/restart.h"

namespace muster {

PsIncarnations::PsIncarnations(std::vector<std::string> tasks, std::shared_ptr<Peers> peers)
    : tasks_(std::move(tasks)), peers_(std::move(peers)), known_(ask()) {}

void PsIncarnations::check_alive(const std::string& task) const {
  uint64_t incarnation = 0;
  try {
    incarnation = peers_->worker(task)->status().incarnation;
  } catch (const Error& error) {
    if (is_restart(error.status())) throw Error(error.status().from(task));
    throw Error(Status(StatusCode::kUnavailable, error.status().message(), task, error.status().detail()));
  }
  {
    absl::MutexLock lock(&mu_);
    if (incarnation == known_.at(task)) return;
  }
  throw Error(restarted(task, str_cat(task, " was restarted and has lost its variables")));
}

void PsIncarnations::check_alive(const Program& program) const {
  std::set<std::string> tasks;
  for (const VariableRef& variable : program.variables) {
    const std::string task = task_of_device(program.devices[variable.device]);
    if (std::find(tasks_.begin(), tasks_.end(), task) != tasks_.end()) tasks.insert(task);
  }
  for (const std::string& task : tasks) check_alive(task);
}

PsIncarnations::Known PsIncarnations::ask() const {
  Known known;
  for (const std::string& task : tasks_) known[task] = peers_->worker(task)->status(/*wait=*/true).incarnation;
  return known;
}

void PsIncarnations::take(Known known) {
  absl::MutexLock lock(&mu_);
  known_ = std::move(known);
}

PsIncarnations::Known PsIncarnations::known() const {
  absl::MutexLock lock(&mu_);
  return known_;
}

}  // namespace muster

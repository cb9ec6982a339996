#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "muster/graph/program.h"
#include "muster/runtime/worker/worker.h"

namespace muster {

// Which processes the parameter servers of a job are. One that was restarted has lost its variables, and is never taken
// for the one that it was. Thread-safe.
class PsIncarnations {
 public:
  using Known = std::map<std::string, uint64_t>;  // by task

  // Waits for them. Throws Error{kUnavailable} or {kDeadlineExceeded} for one that does not come.
  PsIncarnations(std::vector<std::string> tasks, std::shared_ptr<Peers> peers);

  // Asks a parameter server, or all where a program has variables, whether it is the one that it was. Throws
  // the error restarted() or, if it cannot be reached, Error{kUnavailable}, which names it. Asked after a program was
  // registered, it tells that this was done with the right ones.
  void check_alive(const std::string& task) const ABSL_LOCKS_EXCLUDED(mu_);
  void check_alive(const Program& program) const;

  // As they are now; waits for those that are being restarted, and throws as the constructor does.
  Known ask() const;
  // From now on they are taken for these.
  void take(Known known) ABSL_LOCKS_EXCLUDED(mu_);
  // What they are taken for.
  Known known() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const std::vector<std::string> tasks_;
  const std::shared_ptr<Peers> peers_;

  mutable absl::Mutex mu_;
  Known known_ ABSL_GUARDED_BY(mu_);  // the keys do not change
};

}  // namespace muster

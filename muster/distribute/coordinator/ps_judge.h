#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/status.h"

namespace muster {

// What tells of a task that is gone or was restarted, and nothing of what it was asked to do.
bool tells_of_loss(const Status& status);
// What happened, for a sentence that has named the task.
std::string_view without_task(const Status& failure);

struct PsJudgeOptions {
  std::set<std::string> ps;  // full names
  size_t workers;
  int transient_failures;  // of one parameter server, that are put up with
  // Asks a parameter server whether it is the one that it was; throws what PsVariables::check_alive() does.
  std::function<void(const std::string& task)> check_alive;
  std::function<std::vector<size_t>()> workers_up;  // by index
  std::function<void(size_t worker, const Status& why)> do_without;
  std::function<void(const Status& why)> end;  // of the job
  std::function<void(std::function<void()>)> in_background;
  std::function<bool(std::chrono::milliseconds)> pause;  // false: the job ends meanwhile
};

// Decides what it means that parameter servers are not reached: a moment that passes, workers that are cut off from
// them and are done without, or the end, since a parameter server that is gone has taken its variables along. One that
// a worker has not reached, and whose port goes on to refuse this process, is gone; all else may be a cut, and is put
// up with.
// Calls its options with no lock held. Thread-safe.
class PsJudge {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit PsJudge(PsJudgeOptions options) : options_(std::move(options)) {}

  // Whether this failure is of a parameter server that is gone, cut off or late, and not of what it was asked to do.
  bool concerns(const Status& failure) const;
  bool is_ps(const std::string& task) const { return ps().contains(task); }
  const std::set<std::string>& ps() const { return options_.ps; }

  // What began then at a worker has met this failure. REQUIRES: concerns(failure).
  void met(size_t worker, const Status& failure, Time began) ABSL_LOCKS_EXCLUDED(mu_);
  // The worker has run something to its end: it reaches them.
  void reached(size_t worker) ABSL_LOCKS_EXCLUDED(mu_);
  // For when no worker is up, and nobody else would see that a parameter server is lost. Does not wait.
  void ask_all() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // How often parameter servers were not reached: one of them, or by one worker since it last ran something.
  struct Trouble {
    int times = 0;
    Time first{}, last{};
    // False if what failed began before it was last counted: all that was under way when the network was cut tells of
    // one and the same cut.
    bool count(Time began);
  };

  // Whether this failure, met by what began then, may pass; and whether it is a new one.
  struct Met {
    bool tolerated, anew;
  };
  Met note(const Status& failure, Time began) ABSL_LOCKS_EXCLUDED(mu_);
  // The same for one that has not answered in time: once for every ten workers.
  bool tolerate_late(const Status& failure) ABSL_LOCKS_EXCLUDED(mu_);
  // Of a worker that did not reach one. False if it was noted already, for what was under way at the same time.
  bool note_trouble(size_t worker, Time began) ABSL_LOCKS_EXCLUDED(mu_);
  // Workers do not reach a parameter server: is it gone, or are they cut off? Asks it, and gives up the one or others.
  void judge(const Status& failure) ABSL_LOCKS_EXCLUDED(mu_);
  // After a failure that may pass. If the process itself is gone, which its machine says at once to whoever connects,
  // there is nothing to wait for. Others may say it for a moment, too: a gateway that is set up anew, a service whose
  // only pod is not ready. So it is to be said again and again, as often as failures are put up with.
  void look_whether_gone(const Status& failure) ABSL_LOCKS_EXCLUDED(mu_);
  // Why it is.
  std::optional<Status> found_gone(const std::string& task) const;
  // What asking it comes to, if that is an error for longer than a short cut.
  std::optional<Status> found_unreachable(const std::string& task) const;
  // Does without the workers that have been in trouble. False if all have, too often.
  bool do_without_cut_off(const Status& failure) ABSL_LOCKS_EXCLUDED(mu_);
  void end_without(const Status& failure, const std::string& why);

  const PsJudgeOptions options_;
  std::atomic<bool> any_worker_trouble_{false};
  std::atomic<bool> asking_{false};

  absl::Mutex mu_;
  std::map<std::string, Trouble> ps_trouble_ ABSL_GUARDED_BY(mu_);  // by task
  std::map<size_t, Trouble> worker_trouble_ ABSL_GUARDED_BY(mu_);   // by index
  int late_ ABSL_GUARDED_BY(mu_) = 0;                               // answers of parameter servers
  std::set<std::string> judged_ ABSL_GUARDED_BY(mu_);               // parameter servers that are being asked
  std::set<std::string> looked_at_ ABSL_GUARDED_BY(mu_);            // the same, by look_whether_gone()
};

}  // namespace muster

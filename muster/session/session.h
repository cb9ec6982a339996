// Runs functions over a cluster, or in this process.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_map.h>
#include <absl/synchronization/mutex.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "muster/rpc/credentials/credentials.h"
#include "muster/runtime/worker/run_options.h"
#include "muster/runtime/worker/worker.h"
#include "muster/trace/function.h"
#include "muster/trace/variable.h"

namespace muster {

class Master;

struct SessionOptions {
  std::string target{};     // "grpc://host:port" of any task, which is the session's master; empty: this process
  std::string container{};  // of its variables; empty: those that all sessions share
  bool isolated = false;    // has variables of its own, which end with it
  std::vector<std::string> device_filters{};  // it uses the devices that one of these matches; none: all
  bool soft_placement = true;
  bool log_device_placement = false;
  Credentials credentials{};
  std::chrono::milliseconds connect_timeout{60'000};
  std::optional<std::chrono::milliseconds> run_timeout{};  // of every run that names none
  int attempts = 2;                                        // to make a call that was cut off
  size_t max_programs = 1'000;  // that its master keeps ready; those that were not used for longest give way
};

// The program that gives variables their initial values, and those values.
struct Initializer {
  Program program{};
  std::vector<at::Tensor> values{};
};
Initializer make_initializer(const std::vector<Variable>& variables);
template <class... Variables>
Initializer initializer(const Variables&... variables) {
  return make_initializer({variables...});
}
inline Initializer initializer(const std::vector<Variable>& variables) { return make_initializer(variables); }

// Feeds are arguments, fetches are results, in the CPU's memory wherever they were computed. Variables live at the
// tasks and outlive the session. Thread-safe: runs may overlap. The destructor closes the session.
class Session {
 public:
  // Throws Error{kUnavailable} or Error{kDeadlineExceeded} if the target does not answer within `connect_timeout`.
  explicit Session(SessionOptions options = {});
  // With a master of this process, whatever the target.
  Session(std::shared_ptr<Master> master, SessionOptions options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  template <class F, class... Args>
  std::invoke_result_t<F&, Args&...> run(const Function<F>& function, const Args&... args) {
    return run_with({}, function, args...);
  }

  // With a timeout, a way to cancel, a step number.
  template <class F, class... Args>
  std::invoke_result_t<F&, Args&...> run_with(const RunOptions& options, const Function<F>& function,
                                              const Args&... args) {
    return function.run_by(
        [&](const std::shared_ptr<TracedFunction::Entry>& entry, std::vector<at::Tensor> tensors) {
          return run_traced(entry, std::move(tensors), options);
        },
        args...);
  }

  void run(const Initializer& initializer);
  // The value where it lives.
  at::Tensor value(const Variable& variable);

  // All devices of the cluster, as its tasks tell; a task that cannot be reached is left out and logged.
  std::vector<std::string> list_devices();
  // Runs that are under way end with Error{kCancelled}; later ones too. A second call does nothing.
  void close();

  // Drops the variables of these containers (none: of those without one) and ends all sessions of the target.
  static void reset(const SessionOptions& target, const std::vector<std::string>& containers = {});

 private:
  std::vector<at::Tensor> run_traced(const std::shared_ptr<TracedFunction::Entry>& entry,
                                     std::vector<at::Tensor> tensors, const RunOptions& options)
      ABSL_LOCKS_EXCLUDED(mu_);
  RunOptions with_defaults(RunOptions options) const;
  class Renewal;
  // Drops the programs of functions that are gone, and those over the limit. Now and then: looking through all of them
  // takes a while.
  void release_unused() ABSL_LOCKS_EXCLUDED(mu_);
  // Runs a program once. Whatever comes of it, it does not stay with the master.
  std::vector<at::Tensor> run_once(const Program& program, std::vector<at::Tensor> arguments);
  // A run that the end of the session has cut off says so.
  std::vector<at::Tensor> run_program(ProgramHandle handle, std::vector<at::Tensor> tensors, const RunOptions& options)
      ABSL_LOCKS_EXCLUDED(mu_);
  void refuse_if_closed() ABSL_LOCKS_EXCLUDED(mu_);

  const SessionOptions options_;
  const std::shared_ptr<Master> master_;
  const std::string id_;

  absl::Mutex mu_;
  struct Ready {
    ProgramHandle handle{};
    uint64_t used = 0;  // guarded by mu_
  };
  // The entries are held, so that no other one gets the address, and given up once nobody else holds them. Who runs a
  // program holds what is ready of it.
  absl::flat_hash_map<std::shared_ptr<TracedFunction::Entry>, std::shared_ptr<Ready>> programs_ ABSL_GUARDED_BY(mu_);
  uint64_t runs_ ABSL_GUARDED_BY(mu_) = 0;
  size_t look_again_at_ ABSL_GUARDED_BY(mu_) = 1;  // so many programs
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<Renewal> renewal_ ABSL_GUARDED_BY(mu_);  // until it is closed
};

}  // namespace muster

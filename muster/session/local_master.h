#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_map.h>
#include <absl/synchronization/mutex.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "muster/base/deadline_timer.h"
#include "muster/base/elastic_pool.h"
#include "muster/runtime/worker/lease_holder.h"
#include "muster/runtime/worker/local_worker.h"
#include "muster/runtime/worker/master.h"

namespace muster {

struct LocalMasterOptions {
  // All tasks of the cluster but that of the worker. They need not be up until a program uses them.
  std::vector<std::string> tasks{};
  Peers* peers = nullptr;        // where they are found; outlives the master
  size_t max_sessions = 10'000;  // open at the same time
  // One with a lease whose client was not heard of for so long ends: the client has died.
  std::chrono::milliseconds lease = kUsualLease;
};

// The master of this task: it drives the steps of its sessions on its own worker, which has others run their parts.
// Thread-safe.
class LocalMaster : public Master {
 public:
  // `worker` outlives the master.
  LocalMaster(LocalWorker& worker, LocalMasterOptions options);
  ~LocalMaster() override;

  std::string create_session(const SessionConfig& config) override ABSL_LOCKS_EXCLUDED(mu_);
  ProgramHandle extend(const std::string& session, const Program& program) override ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<at::Tensor> run(const std::string& session, ProgramHandle handle, std::vector<at::Tensor> arguments,
                              const RunOptions& options = {}) override ABSL_LOCKS_EXCLUDED(mu_);
  void release(const std::string& session, ProgramHandle handle) override ABSL_LOCKS_EXCLUDED(mu_);
  void close_session(const std::string& session) override ABSL_LOCKS_EXCLUDED(mu_);
  void renew(const std::string& session, RenewDone done) override ABSL_LOCKS_EXCLUDED(mu_);
  ClusterDevices list_devices() override ABSL_LOCKS_EXCLUDED(mu_);
  void reset(const std::vector<std::string>& containers) override ABSL_LOCKS_EXCLUDED(mu_);

  // Of a cluster that has changed.
  void set_tasks(std::vector<std::string> tasks) ABSL_LOCKS_EXCLUDED(mu_);
  size_t sessions() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct SessionState;

  // What the timer does a few times in the length of a lease.
  void end_abandoned() ABSL_LOCKS_EXCLUDED(mu_);
  void wait_for_tick() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<SessionState> find(const std::string& session) const ABSL_LOCKS_EXCLUDED(mu_);
  void end(SessionState& session, const Status& why);
  // The other tasks that the program names, whether they exist or not.
  std::set<std::string> tasks_of(const Program& program) const;
  // The devices of the tasks that the program names, and their default devices; asks those that are not known yet.
  std::vector<std::string> devices_for(const Program& program, const SessionConfig& config) ABSL_LOCKS_EXCLUDED(mu_);
  WorkerStatus ask(const std::string& task, bool wait);
  std::vector<std::string> tasks() const ABSL_LOCKS_EXCLUDED(mu_);

  LocalWorker& worker_;
  const LocalMasterOptions options_;

  mutable absl::Mutex mu_;
  absl::flat_hash_map<std::string, std::shared_ptr<SessionState>> sessions_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> tasks_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::vector<std::string>> devices_ ABSL_GUARDED_BY(mu_);  // by task, of those that answered
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<DeadlineTimer::Alarm> tick_ ABSL_GUARDED_BY(mu_);
  ElasticPool pool_{"master"};  // what it runs uses all of the above
  DeadlineTimer timer_;         // last: it gives the pool work
};

}  // namespace muster

#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_set.h>
#include <absl/synchronization/mutex.h>

#include <memory>

#include "muster/rpc/rpc_channel.h"
#include "muster/runtime/worker/master.h"

namespace muster {

// The master of another task. Thread-safe.
class RemoteMaster : public Master {
 public:
  explicit RemoteMaster(std::shared_ptr<RpcChannel> channel) : channel_(std::move(channel)) {}

  std::string create_session(const SessionConfig& config) override;
  ProgramHandle extend(const std::string& session, const Program& program) override;
  std::vector<at::Tensor> run(const std::string& session, ProgramHandle handle, std::vector<at::Tensor> arguments,
                              const RunOptions& options = {}) override;
  void release(const std::string& session, ProgramHandle handle) override;
  void close_session(const std::string& session) override;
  void renew(const std::string& session, RenewDone done) override;
  ClusterDevices list_devices() override;
  void reset(const std::vector<std::string>& containers) override;

 private:
  const std::shared_ptr<RpcChannel> channel_;

  absl::Mutex mu_;
  absl::flat_hash_set<uint64_t> once_ ABSL_GUARDED_BY(mu_);  // programs that are not repeatable
};

}  // namespace muster

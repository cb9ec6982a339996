// Whoever runs programs over the workers of a cluster, as steps of a session: in this process or behind a wire.
#pragma once

#include <string>
#include <vector>

#include "muster/runtime/worker/worker.h"

namespace muster {

struct SessionConfig {
  std::string container{};                    // of its variables; empty: those that all sessions share
  bool isolated = false;                      // has variables of its own, which end with it
  std::vector<std::string> device_filters{};  // it uses the devices that one of these matches; none: all
  bool soft_placement = true;
  bool log_device_placement = false;
  bool leased = false;  // ends when its client is not heard of for as long as the master says
};

struct ClusterDevices {
  std::vector<std::string> devices{};
  std::vector<Status> unreachable{};  // one per task that did not answer, with its name
};

// Thread-safe. Every method throws Error; for a session that is not known, kAborted.
class Master {
 public:
  virtual ~Master() = default;

  virtual std::string create_session(const SessionConfig& config) = 0;
  // Makes a program ready for the session: pruned, placed, split and registered with the tasks that it needs.
  virtual ProgramHandle extend(const std::string& session, const Program& program) = 0;
  virtual std::vector<at::Tensor> run(const std::string& session, ProgramHandle handle,
                                      std::vector<at::Tensor> arguments, const RunOptions& options = {}) = 0;
  virtual void release(const std::string& session, ProgramHandle handle) = 0;
  virtual void close_session(const std::string& session) = 0;
  // Says that its client is there, as every other call of the session does. Throws nothing, waits for nothing.
  virtual void renew(const std::string& session, RenewDone done) = 0;

  virtual ClusterDevices list_devices() = 0;
  // Drops the variables of these containers at all tasks and ends all sessions. None given: those without a container.
  virtual void reset(const std::vector<std::string>& containers) = 0;
};

}  // namespace muster

// Where variables and everything else go, as TensorFlow's replica_device_setter decides it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "muster/cluster/cluster_spec.h"
#include "muster/graph/program.h"

namespace muster {

// Chooses the ps task of the next variable. A policy with a memory: one object for all variables of a model.
using PsStrategy = std::function<int(const TensorSpec& variable)>;

PsStrategy round_robin(int ps_tasks);
// To the task with the fewest bytes so far.
PsStrategy balanced_by_bytes(int ps_tasks);

struct ReplicaDeviceSetterOptions {
  int ps_tasks = 0;                           // 0 without a cluster: nothing is decided, what is asked for stays
  std::string ps_device = "/job:ps";          // of variables; "": they go where everything else goes
  std::string worker_device = "/job:worker";  // of everything else; "": anywhere
  bool merge_devices = true;                  // false: a device that is asked for is taken as it is
  std::optional<ClusterSpec> cluster{};       // ps_tasks is the number of its tasks in the job of ps_device
  PsStrategy ps_strategy{};                   // round robin if not given
};

// Hands out devices by the rules of TensorFlow's function: `variable(spec)` for a new variable, `worker_device()` for a
// DeviceScope around the rest. A device that the caller asks for wins part by part. The next task is chosen, and put in
// the place of whatever task ps_device names, for every variable that goes to the job of ps_device; one that is asked
// to go to another job, or for which ps_device names no job, gets none. TensorFlow's ps_ops has no counterpart: what
// has a state here is a variable. Not thread-safe.
class ReplicaDeviceSetter {
 public:
  // Throws Error{kInvalidArgument} for a negative number of tasks and for devices that are none.
  explicit ReplicaDeviceSetter(ReplicaDeviceSetterOptions options);

  // `wish` is what the variable's maker asks for. Throws Error{kInvalidArgument} if the strategy chooses a task that is
  // not there.
  std::string variable(const TensorSpec& spec, const std::string& wish = "");
  // Of anything else for which `wish` is asked.
  std::string other(const std::string& wish = "") const;
  std::string worker_device() const { return other(); }

 private:
  ReplicaDeviceSetterOptions options_;
};

}  // namespace muster

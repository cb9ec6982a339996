// Where variables and everything else go, as TensorFlow's replica_device_setter decides it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "muster/graph/program.h"

namespace muster {

// Chooses the ps task of the next variable. A policy with a memory: one object for all variables of a model.
using PsStrategy = std::function<int(const TensorSpec& variable)>;

PsStrategy round_robin(int ps_tasks);
// To the task with the fewest bytes so far.
PsStrategy balanced_by_bytes(int ps_tasks);

struct ReplicaDeviceSetterOptions {
  int ps_tasks = 0;                           // 0: variables stay with the worker
  std::string ps_device = "/job:ps";          // of variables; the task is filled in
  std::string worker_device = "/job:worker";  // of everything else
  PsStrategy ps_strategy{};                   // round robin if not given
};

// Hands out devices: `variable(spec)` for a new variable, `worker_device()` for a DeviceScope around the rest.
// A device that the caller names wins part by part. Not thread-safe.
class ReplicaDeviceSetter {
 public:
  explicit ReplicaDeviceSetter(ReplicaDeviceSetterOptions options);

  // `wish` is what the variable's maker asks for; its parts win.
  std::string variable(const TensorSpec& spec, const std::string& wish = "");
  const std::string& worker_device() const { return options_.worker_device; }

 private:
  ReplicaDeviceSetterOptions options_;
};

}  // namespace muster

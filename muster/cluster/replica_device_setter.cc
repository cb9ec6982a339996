#include "muster/cluster/replica_device_setter.h"

#include <algorithm>
#include <vector>

#include "muster/base/status.h"
#include "muster/graph/device_spec.h"

namespace muster {
namespace {

void check_tasks(int ps_tasks) {
  if (ps_tasks <= 0) throw invalid_argument("a strategy for ", ps_tasks, " ps tasks; there must be at least one");
}

}  // namespace

PsStrategy round_robin(int ps_tasks) {
  check_tasks(ps_tasks);
  return [ps_tasks, next = 0](const TensorSpec&) mutable {
    const int task = next;
    next = (next + 1) % ps_tasks;
    return task;
  };
}

PsStrategy balanced_by_bytes(int ps_tasks) {
  check_tasks(ps_tasks);
  return [bytes = std::vector<int64_t>(ps_tasks)](const TensorSpec& variable) mutable {
    const auto least = std::min_element(bytes.begin(), bytes.end());
    *least += variable.bytes();
    return static_cast<int>(least - bytes.begin());
  };
}

ReplicaDeviceSetter::ReplicaDeviceSetter(ReplicaDeviceSetterOptions options) : options_(std::move(options)) {
  const DeviceSpec ps = DeviceSpec::parse(options_.ps_device);
  DeviceSpec::parse(options_.worker_device);
  if (options_.cluster) {
    options_.ps_tasks = ps.job && options_.cluster->contains(*ps.job) ? options_.cluster->num_tasks(*ps.job) : 0;
  }
  if (options_.ps_tasks < 0) throw invalid_argument("ps_tasks is ", options_.ps_tasks, "; it cannot be negative");
  if (options_.ps_tasks > 0 && !options_.ps_strategy) options_.ps_strategy = round_robin(options_.ps_tasks);
}

std::string ReplicaDeviceSetter::variable(const TensorSpec& spec, const std::string& wish) {
  const DeviceSpec asked = DeviceSpec::parse(wish);
  if (options_.ps_tasks == 0 || options_.ps_device.empty() || (!options_.merge_devices && !wish.empty())) {
    return other(wish);
  }
  DeviceSpec device = DeviceSpec::parse(options_.ps_device);
  if (device.job && (!asked.job || asked.job == device.job)) {
    device.task = options_.ps_strategy(spec);
    if (*device.task < 0 || *device.task >= options_.ps_tasks) {
      throw invalid_argument("the ps strategy chose task ", *device.task, " of ", options_.ps_tasks);
    }
  }
  return device.merged_with(asked).to_string();
}

std::string ReplicaDeviceSetter::other(const std::string& wish) const {
  const DeviceSpec asked = DeviceSpec::parse(wish);
  if (options_.ps_tasks == 0 || (!options_.merge_devices && !wish.empty())) return asked.to_string();
  return DeviceSpec::parse(options_.worker_device).merged_with(asked).to_string();
}

}  // namespace muster

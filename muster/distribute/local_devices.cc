#include "muster/distribute/local_devices.h"

#include <absl/strings/str_join.h>

#include <algorithm>

#include "muster/base/status.h"
#include "muster/graph/device_set.h"
#include "muster/runtime/worker/local_worker.h"

namespace muster {

std::string known_device(const std::string& device) {
  const auto& devices = local_worker().devices();
  return DeviceSet(devices.names(), devices.default_name(), /*soft_placement=*/false)
      .resolve(device, devices.default_name(), "strategy");
}

std::string device_like(const std::string& wish) {
  const auto& devices = local_worker().devices();
  return DeviceSet(devices.names(), devices.default_name(), /*soft_placement=*/true)
      .resolve(wish, devices.default_name(), "strategy");
}

std::vector<std::string> known_devices(const std::vector<std::string>& wanted) {
  std::vector<std::string> known;
  for (const std::string& device : wanted) {
    std::string name = known_device(device);
    if (std::find(known.begin(), known.end(), name) != known.end()) {
      throw invalid_argument("strategy: device \"", device, "\" is there twice in ", absl::StrJoin(wanted, ", "));
    }
    known.push_back(std::move(name));
  }
  if (!known.empty()) return known;
  for (const char* type : {"GPU", "CPU"}) {
    for (const std::string& name : local_worker().devices().names()) {
      if (DeviceSpec::parse(name).type == type) known.push_back(name);
    }
    if (!known.empty()) break;
  }
  return known;
}

}  // namespace muster

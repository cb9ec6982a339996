#include "muster/distribute/local_devices.h"

#include <absl/strings/str_join.h>

#include <algorithm>

#include "muster/base/status.h"
#include "muster/base/strings.h"
#include "muster/graph/device_set.h"
#include "muster/runtime/worker/local_worker.h"

namespace muster {
namespace {

constexpr const char* kHowToHaveMore =
    "; muster::set_local_options({.devices = {.cpus = n}}), called before any device "
    "is used, makes n logical devices of the CPU";

}  // namespace

std::string known_device(const std::string& device) {
  const auto& devices = local_worker().devices();
  const std::vector<std::string> names = devices.names();
  try {
    return DeviceSet(names, devices.default_name(), /*soft_placement=*/false)
        .resolve(device, devices.default_name(), "strategy");
  } catch (const Error& error) {
    if (DeviceSpec::parse(device).type != "CPU") throw;
    throw Error(Status(error.code(), str_cat(error.status().message(), kHowToHaveMore)));
  }
}

std::string device_like(const std::string& wish) {
  const LocalWorker& worker = local_worker();
  const auto& devices = worker.devices();
  return DeviceSet(devices.names(), devices.default_name(), worker.soft_placement())
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

std::string replicas_in_words(const std::string& strategy, const std::vector<std::string>& devices) {
  std::vector<std::string> names;
  bool one_cpu = devices.size() == 1;
  for (const std::string& device : devices) {
    const DeviceSpec spec = DeviceSpec::parse(device);
    names.push_back(str_cat(spec.type.value_or("*"), ":", spec.index.value_or(0)));
    one_cpu = one_cpu && spec.type == "CPU";
  }
  return str_cat(strategy, ": ", names.size(), names.size() == 1 ? " replica, on " : " replicas, on ",
                 absl::StrJoin(names, ", "), one_cpu ? kHowToHaveMore : "");
}

}  // namespace muster

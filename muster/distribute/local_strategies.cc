#include "muster/distribute/local_strategies.h"

#include <absl/strings/str_join.h>

#include <algorithm>

#include "muster/base/status.h"
#include "muster/graph/device_set.h"
#include "muster/graph/device_spec.h"
#include "muster/runtime/local_worker.h"

namespace muster {
namespace {

std::string known_device(const std::string& device) {
  const auto& devices = local_worker().devices();
  return DeviceSet(devices.names(), devices.default_name(), /*soft_placement=*/false)
      .resolve(device, devices.default_name(), "strategy");
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

// Makes variables on one device.
class OnOneDevice : public VariableCreator {
 public:
  explicit OnOneDevice(std::string device) : device_(std::move(device)) {}
  Authority authority() const override { return Authority::kStrategy; }
  std::shared_ptr<Variable::State> create(const InitialValue& initial, VariableOptions options, bool) override {
    options.device = device_;
    return std::make_shared<Variable::State>(initial, std::move(options));
  }

 private:
  const std::string device_;
};

// Makes a copy on each device.
class OnEachDevice : public VariableCreator {
 public:
  explicit OnEachDevice(std::vector<std::string> devices) : devices_(std::move(devices)) {}
  Authority authority() const override { return Authority::kStrategy; }
  std::shared_ptr<Variable::State> create(const InitialValue& initial, VariableOptions options, bool) override {
    // What is random is drawn once. Rows that are made on demand follow a rule, which is the same for all.
    const InitialValue value = initial.rows_on_demand() ? initial : InitialValue(initial.tensor());
    std::vector<Variable> copies;
    for (const std::string& device : devices_) {
      options.device = device;
      if (!copies.empty()) options.name = str_cat(copies[0].name(), "/copy_", copies.size());
      copies.emplace_back(std::make_shared<Variable::State>(value, options));
    }
    options.device = devices_[0];
    return Variable::State::mirrored(std::move(copies), std::move(options));
  }

 private:
  const std::vector<std::string> devices_;
};

StrategyParts mirrored(const std::vector<std::string>& devices) {
  return {.variables = std::make_shared<OnEachDevice>(devices), .replica_devices = devices};
}

StrategyParts central(const std::vector<std::string>& devices, const std::string& parameter_device) {
  std::string at = parameter_device;
  if (at.empty()) at = devices.size() == 1 ? devices[0] : "/device:CPU:0";
  return {.variables = std::make_shared<OnOneDevice>(known_device(at)), .replica_devices = devices};
}

}  // namespace

OneDeviceStrategy::OneDeviceStrategy(const std::string& device)
    : Strategy(central({known_device(device)}, /*parameter_device=*/"")) {}

MirroredStrategy::MirroredStrategy(const std::vector<std::string>& devices)
    : Strategy(mirrored(known_devices(devices))) {}

CentralStorageStrategy::CentralStorageStrategy(const std::vector<std::string>& compute_devices,
                                               const std::string& parameter_device)
    : Strategy(central(known_devices(compute_devices), parameter_device)) {}

}  // namespace muster

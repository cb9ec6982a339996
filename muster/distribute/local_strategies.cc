#include "muster/distribute/local_strategies.h"

#include "muster/base/log.h"
#include "muster/distribute/local_devices.h"
#include "muster/distribute/mirrored_variables.h"

namespace muster {
namespace {

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

// Where nobody has said which, the log does: what was meant to be many may be one.
std::vector<std::string> replica_devices(const char* strategy, const std::vector<std::string>& wanted) {
  std::vector<std::string> devices = known_devices(wanted);
  if (wanted.empty()) MUSTER_LOG(info) << replicas_in_words(strategy, devices);
  return devices;
}

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
    : Strategy(mirrored(replica_devices("MirroredStrategy", devices))) {}

CentralStorageStrategy::CentralStorageStrategy(const std::vector<std::string>& compute_devices,
                                               const std::string& parameter_device)
    : Strategy(central(replica_devices("CentralStorageStrategy", compute_devices), parameter_device)) {}

}  // namespace muster

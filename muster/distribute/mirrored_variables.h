#pragma once

#include <memory>
#include <string>
#include <vector>

#include "muster/trace/variable_scope.h"

namespace muster {

// Makes a copy of each variable on each device. A single replica may have its variables on several devices: then a
// DeviceScope, or VariableOptions::device, says on which one. Of several, each has all of its own on its own device.
class OnEachDevice : public VariableCreator {
 public:
  explicit OnEachDevice(std::vector<std::string> devices) : devices_(std::move(devices)) {}
  Authority authority() const override { return Authority::kStrategy; }
  std::shared_ptr<Variable::State> create(const InitialValue& initial, VariableOptions options, bool split) override;

 private:
  std::string device_of_one(const VariableOptions& options) const;

  const std::vector<std::string> devices_;
};

}  // namespace muster

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "muster/trace/variable_scope.h"

namespace muster {

// Makes a copy of each variable on each device.
class OnEachDevice : public VariableCreator {
 public:
  explicit OnEachDevice(std::vector<std::string> devices) : devices_(std::move(devices)) {}
  Authority authority() const override { return Authority::kStrategy; }
  std::shared_ptr<Variable::State> create(const InitialValue& initial, VariableOptions options, bool split) override;

 private:
  const std::vector<std::string> devices_;
};

}  // namespace muster

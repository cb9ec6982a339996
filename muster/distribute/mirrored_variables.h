#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "muster/trace/variable_scope.h"

namespace muster {

// Makes a copy of each variable on each device. A single replica may have its variables on several devices: then a
// DeviceScope, or VariableOptions::device, says on which one. Of several, each has all of its own on its own device.
class OnEachDevice : public VariableCreator {
 public:
  // `task`: a name that this process has beside that of its local worker, "/job:worker/replica:0/task:1".
  explicit OnEachDevice(std::vector<std::string> devices, std::string task = "")
      : devices_(std::move(devices)), task_(std::move(task)) {}
  Authority authority() const override { return Authority::kStrategy; }
  std::shared_ptr<Variable::State> create(const InitialValue& initial, VariableOptions options, bool split) override;

 private:
  // Throws Error{kInvalidArgument} for a device of another task.
  std::string device_of_one(const VariableOptions& options) const;

  const std::vector<std::string> devices_;
  const std::string task_;
};

// Once it is known who has copies: if a sum of them is read, the first has the initial value and the others 0.
void give_shares(const std::shared_ptr<Variable::State>& made, const InitialValue& initial);

}  // namespace muster

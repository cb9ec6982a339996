#include "muster/distribute/mirrored_variables.h"

#include "muster/base/status.h"
#include "muster/distribute/local_devices.h"
#include "muster/graph/device_spec.h"
#include "muster/trace/device_scope.h"

namespace muster {

void give_shares(const std::shared_ptr<Variable::State>& made, const InitialValue& initial) {
  if (!made->is_put_together()) return;
  if (initial.rows_on_demand()) {
    throw invalid_argument("variable \"", made->options.name,
                           "\": rows that are made on demand are alike in all copies, "
                           "expected whole values with Synchronization::kOnRead");
  }
  Variable(made).assign(made->copies[0].value());
}

std::shared_ptr<Variable::State> OnEachDevice::create(const InitialValue& initial, VariableOptions options, bool) {
  // What is random is drawn once. Rows that are made on demand follow a rule, which is the same for all.
  const InitialValue value = initial.rows_on_demand() ? initial : InitialValue(initial.tensor());
  const std::vector<std::string> devices = devices_.size() == 1 ? std::vector{device_of_one(options)} : devices_;
  std::vector<Variable> copies;
  for (const std::string& device : devices) {
    options.device = device;
    if (!copies.empty()) options.name = str_cat(copies[0].name(), "/copy_", copies.size());
    copies.emplace_back(std::make_shared<Variable::State>(value, options));
  }
  options.device = devices[0];
  auto made = Variable::State::mirrored(std::move(copies), std::move(options));
  give_shares(made, initial);
  return made;
}

std::string OnEachDevice::device_of_one(const VariableOptions& options) const {
  const std::string wish = options.device.empty() ? DeviceScope::current() : options.device;
  const DeviceSpec asked = DeviceSpec::parse(wish), here = DeviceSpec::parse(devices_[0]);
  const DeviceSpec of_task{.job = asked.job, .replica = asked.replica, .task = asked.task};
  if (!of_task.matches(here) && (task_.empty() || !of_task.matches(DeviceSpec::parse(task_)))) {
    throw invalid_argument("variable \"", options.name, "\": device \"", wish, "\" is one of another task; ",
                           "the strategy makes variables in this process, whose devices are like ", devices_[0]);
  }
  if (!asked.type) return devices_[0];
  return device_like(DeviceSpec{.type = asked.type, .index = asked.index}.to_string());
}

}  // namespace muster

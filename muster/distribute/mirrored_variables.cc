#include "muster/distribute/mirrored_variables.h"

#include "muster/base/status.h"

namespace muster {

std::shared_ptr<Variable::State> OnEachDevice::create(const InitialValue& initial, VariableOptions options, bool) {
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

}  // namespace muster

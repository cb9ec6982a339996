#include "muster/graph/program.h"

#include <absl/strings/str_join.h>

#include "muster/base/strings.h"

namespace muster {

int64_t TensorSpec::elements() const {
  int64_t count = 1;
  for (int64_t size : sizes) count *= size;
  return count;
}

std::string TensorSpec::to_string() const { return str_cat(name_of(dtype), "[", absl::StrJoin(sizes, ", "), "]"); }

bool Argument::operator==(const Argument& other) const { return value == other.value; }

int32_t Program::intern_device(const std::string& device) {
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i] == device) return static_cast<int32_t>(i);
  }
  devices.push_back(device);
  return static_cast<int32_t>(devices.size() - 1);
}

int32_t Program::intern_op(const std::string& name, const std::string& schema) {
  for (size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].name == name && ops[i].schema == schema) return static_cast<int32_t>(i);
  }
  ops.push_back({name, schema});
  return static_cast<int32_t>(ops.size() - 1);
}

}  // namespace muster

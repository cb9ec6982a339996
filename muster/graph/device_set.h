#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "muster/graph/device_spec.h"

namespace muster {

// The devices that exist, and what a wish for one of them means there. Part of the placer.
// Not thread-safe: it remembers what it has complained about.
class DeviceSet {
 public:
  // Full names. `default_device` may be empty, and so may `devices`, but it is an error if the one is not among the
  // other.
  DeviceSet(const std::vector<std::string>& devices, const std::string& default_device, bool soft_placement);

  const std::string& default_device() const { return default_device_; }

  // The full name for the wish `request` of `who`, made where `here` (a full name) is the default device.
  // Throws Error{kInvalidArgument} if there is none.
  std::string resolve(const std::string& request, const std::string& here, const std::string& who);

 private:
  // Its first GPU, else its first CPU, else whatever it has; null for a task without devices.
  const DeviceSpec* default_of(const DeviceSpec& task) const;
  // The first one of this type.
  const DeviceSpec* first_of(const DeviceSpec& task, const std::string& type) const;
  std::string names() const;

  std::vector<DeviceSpec> devices_;  // sorted by index
  std::set<std::string> names_;
  std::string default_device_;
  const bool soft_placement_;
  std::set<std::string> reported_;
  std::map<std::pair<std::string, std::string>, std::string> resolved_;  // by request and default
};

}  // namespace muster

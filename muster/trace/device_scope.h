// Where the ops that follow want to run.
#pragma once

#include <string>
#include <string_view>

namespace muster {

// Until the scope ends, ops traced and variables made by this thread ask for `device`. Any part may be missing: scopes
// nest, the inner one wins part by part, and the placer fills in the rest. Backward ops follow the forward op that they
// belong to. A device that is not there is found out where an op runs or a variable is made, and goes by soft_placement
// of LocalWorkerOptions, or of the session.
//   DeviceScope on("/job:worker/task:0");  { DeviceScope inner("/device:CPU:1"); … }   //
//   "/job:worker/task:0/device:CPU:1"
class [[nodiscard]] DeviceScope {
 public:
  explicit DeviceScope(std::string_view device);  // throws Error{kInvalidArgument} for what is no device
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  static const std::string& current();  // "" outside of every scope

 private:
  const std::string outer_;
};

}  // namespace muster

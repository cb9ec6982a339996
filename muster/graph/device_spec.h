#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace muster {

// The name of a device, or a wish for one: any part may be missing.
// "/job:ps/replica:0/task:1/device:CPU:0" names one device; "/job:ps" means any device of that job. A value.
struct DeviceSpec {
  std::optional<std::string> job{};
  std::optional<int> replica{}, task{};
  std::optional<std::string> type{};  // "CPU", "GPU", or a name of the user's own
  std::optional<int> index{};

  // Parts in any order, "/cpu:0" as in the old days, "*" for a missing number, and no leading slash in "CPU:1".
  // Throws Error{kInvalidArgument}.
  static DeviceSpec parse(std::string_view text);

  // Always in the order job, replica, task, device. A type without an index is printed as "GPU:*".
  std::string to_string() const;

  // What a scope inside of this one means: the parts of `inner`, and of this one what `inner` leaves open. The index
  // belongs to its type: "/device:CPU" inside of "/device:GPU:2" is CPU:*, not CPU:2.
  DeviceSpec merged_with(const DeviceSpec& inner) const;

  // Whether `full` has every part that is set here.
  bool matches(const DeviceSpec& full) const;

  bool complete() const { return job && replica && task && type && index; }
  bool operator==(const DeviceSpec&) const = default;
};

// The full name for `device`; what it leaves open comes from `default_device`, and then from
// "/job:localhost/replica:0/task:0/device:CPU:0". Throws Error{kInvalidArgument}.
std::string canonical_device(std::string_view device, std::string_view default_device = "");

}  // namespace muster

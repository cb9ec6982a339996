// The devices of one task: logical devices, each a name for a CPU or GPU of the machine. Several may share one GPU, and
// any number of CPU devices share the CPU, so that whatever runs on many devices can be tried on one machine.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

namespace muster {

struct LocalDevicesOptions {
  std::string task = "/job:localhost/replica:0/task:0";
  int cpus = 1;
  int per_gpu = 1;   // logical devices on each GPU
  bool gpus = true;  // false: leave the machine's GPUs alone
};

// Immutable, so free to share between threads.
class LocalDevices {
 public:
  explicit LocalDevices(const LocalDevicesOptions& options = {});

  const std::string& task() const { return task_; }
  const std::vector<std::string>& names() const { return names_; }
  const std::string& default_name() const { return default_name_; }  // the first GPU, else CPU:0

  // Throws Error{kInvalidArgument} that lists the devices if there is none of this full name.
  c10::Device device(const std::string& name) const;

 private:
  std::string task_;
  std::vector<std::string> names_;
  std::vector<c10::Device> devices_;
  std::string default_name_;
};

}  // namespace muster

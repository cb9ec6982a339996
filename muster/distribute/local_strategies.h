// Strategies for the devices of one process.
#pragma once

#include <string>
#include <vector>

#include "muster/distribute/strategy.h"

namespace muster {

// Everything on one device: "/device:GPU:0".
class OneDeviceStrategy : public Strategy {
 public:
  // Throws Error{kInvalidArgument} for a device that this process has not.
  explicit OneDeviceStrategy(const std::string& device);
};

// A copy of every variable on each device, and a replica of the step beside it. What the replicas write becomes one
// write to all copies, so they stay equal, bit for bit. But what a module writes to its buffers in place, such as the
// running statistics of batch norm, each replica writes to its own copy; the first one is read and saved. With one
// device, a DeviceScope or VariableOptions::device says where else a variable is; with several, each replica has all of
// them on its own.
class MirroredStrategy : public Strategy {
 public:
  // Without devices: all GPUs of this process, else all its CPU devices, which are one unless set_local_options() says
  // otherwise; the log names them. Throws Error{kInvalidArgument} for a device that it has not, or that is there twice.
  explicit MirroredStrategy(const std::vector<std::string>& devices = {});
};

// Variables on one device, and a replica of the step on each of several, which read them there. What a module writes to
// its buffers in place every replica writes, one after the other: the running statistics of batch norm move once for
// each of them.
class CentralStorageStrategy : public Strategy {
 public:
  // Without compute devices: as with MirroredStrategy. Without a parameter device: the CPU; if there is only one
  // compute device, that.
  explicit CentralStorageStrategy(const std::vector<std::string>& compute_devices = {},
                                  const std::string& parameter_device = "");
};

}  // namespace muster

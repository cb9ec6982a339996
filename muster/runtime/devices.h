// The devices of one task: logical devices, each a name for a CPU or GPU of the machine. Several may share one GPU, and
// any number of CPU devices share the CPU, so that whatever runs on many devices can be tried on one machine.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace muster {

// Which of the tasks of a machine that share out its GPUs one is. Each has as many GPUs as the others, for itself;
// where there are fewer than tasks, one that others have, too.
struct GpuShare {
  int place = 0;  // from 0
  int tasks = 1;

  bool operator==(const GpuShare&) const = default;
};

// The numbers of those that it has of so many.
std::vector<int> own_gpus(int gpus, const GpuShare& share);
// The environment has CUDA_VISIBLE_DEVICES: whoever has set that has shared out the GPUs, and left this process those
// that are its own.
bool gpus_were_chosen();

struct LocalDevicesOptions {
  std::string task = "/job:localhost/replica:0/task:0";
  int cpus = 1;
  int per_gpu = 1;  // logical devices on each GPU
  // Bytes that the tensors on one logical device of a GPU may have, so that tasks which share a GPU leave each other
  // room; 0: all there is. libtorch counts for the whole process: the last limit that one of its workers sets counts,
  // and logical devices of one GPU may lend each other theirs.
  int64_t gpu_memory = 0;
  // Whether it uses the machine's GPUs. If nothing is said, a parameter server leaves them alone and all others use
  // them, unless the environment has MUSTER_GPUS=off.
  std::optional<bool> gpus{};
  // Which of them, unless they were chosen. None: all, together with whoever else uses them.
  std::optional<GpuShare> gpu_share{};
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
  // The first of the names of a device: several may share one. Empty if it is none of these.
  std::string name(const c10::Device& device) const;

 private:
  std::string task_;
  std::vector<std::string> names_;
  std::vector<c10::Device> devices_;
  std::string default_name_;
};

}  // namespace muster

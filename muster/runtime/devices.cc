#include "muster/runtime/devices.h"

#include <ATen/Context.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "muster/base/status.h"
#include "muster/runtime/gpu/gpu_memory.h"

namespace muster {
namespace {

int gpu_count() {
  const auto* guard = c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)].load();
  return guard == nullptr || !at::hasCUDA() ? 0 : guard->deviceCount();
}

bool uses_gpus(const LocalDevicesOptions& options) {
  if (options.gpus) return *options.gpus;
  const char* setting = std::getenv("MUSTER_GPUS");
  if (setting != nullptr && std::string_view(setting) == "off") return false;
  if (setting != nullptr && std::string_view(setting) != "on") {
    throw invalid_argument("MUSTER_GPUS is \"", setting, "\", expected on or off");
  }
  return !options.task.starts_with("/job:ps/");
}

// Of the GPUs that this process sees.
GpuShare share_of(const LocalDevicesOptions& options) {
  return gpus_were_chosen() ? GpuShare{} : options.gpu_share.value_or(GpuShare{});
}

}  // namespace

bool gpus_were_chosen() { return std::getenv("CUDA_VISIBLE_DEVICES") != nullptr; }

std::vector<int> own_gpus(int gpus, const GpuShare& share) {
  if (share.tasks < 1 || share.place < 0 || share.place >= share.tasks) {
    throw invalid_argument("gpu_share: place ", share.place, " of ", share.tasks,
                           " tasks; expected one from 0 to the number of tasks less one");
  }
  if (gpus == 0) return {};
  const int each = std::max(1, gpus / share.tasks);
  const int first = gpus < share.tasks ? share.place * gpus / share.tasks : share.place * each;
  std::vector<int> own;
  for (int i = 0; i < each; ++i) own.push_back(first + i);
  return own;
}

LocalDevices::LocalDevices(const LocalDevicesOptions& options) : task_(options.task) {
  if (options.cpus < 1) throw invalid_argument("logical devices: ", options.cpus, " CPU devices; at least 1 is needed");
  if (options.per_gpu < 1)
    throw invalid_argument("logical devices: ", options.per_gpu, " per GPU; at least 1 is needed");
  if (options.gpu_memory < 0)
    throw invalid_argument("logical devices: ", options.gpu_memory, " bytes of a GPU's memory; expected 0 or more");
  for (int i = 0; i < options.cpus; ++i) {
    names_.push_back(absl::StrCat(task_, "/device:CPU:", i));
    devices_.emplace_back(c10::DeviceType::CPU);
  }
  default_name_ = names_[0];
  int logical = 0;
  for (int gpu : own_gpus(uses_gpus(options) ? gpu_count() : 0, share_of(options))) {
    const c10::Device device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(gpu));
    if (options.gpu_memory > 0) limit_gpu_memory(device, options.gpu_memory * options.per_gpu);
    for (int i = 0; i < options.per_gpu; ++i, ++logical) {
      names_.push_back(absl::StrCat(task_, "/device:GPU:", logical));
      devices_.push_back(device);
      if (logical == 0) default_name_ = names_.back();
    }
  }
}

c10::Device LocalDevices::device(const std::string& name) const {
  for (size_t i = 0; i < names_.size(); ++i) {
    if (names_[i] == name) return devices_[i];
  }
  throw invalid_argument("device \"", name, "\" does not exist here; there are ", absl::StrJoin(names_, ", "));
}

std::string LocalDevices::name(const c10::Device& device) const {
  const auto found = std::find(devices_.begin(), devices_.end(), device);
  return found == devices_.end() ? "" : names_[static_cast<size_t>(found - devices_.begin())];
}

}  // namespace muster

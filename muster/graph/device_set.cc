#include "muster/graph/device_set.h"

#include <algorithm>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/graph/placement/placer.h"

namespace muster {
namespace {

bool same_task(const DeviceSpec& a, const DeviceSpec& b) {
  return a.job == b.job && a.replica == b.replica && a.task == b.task;
}

// "and 7 more" keeps the message of a large cluster readable.
constexpr size_t kMostNames = 16;

}  // namespace

DeviceSet::DeviceSet(const std::vector<std::string>& devices, const std::string& default_device, bool soft_placement)
    : soft_placement_(soft_placement) {
  for (const std::string& device : devices) {
    DeviceSpec spec = DeviceSpec::parse(device);
    if (!spec.complete()) throw invalid_argument("device \"", device, "\": not the full name of a device");
    devices_.push_back(std::move(spec));
  }
  if (devices_.empty()) devices_.push_back(DeviceSpec::parse(canonical_device(default_device)));
  const DeviceSpec first = devices_.front();
  std::stable_sort(devices_.begin(), devices_.end(),
                   [](const DeviceSpec& a, const DeviceSpec& b) { return *a.index < *b.index; });
  for (const DeviceSpec& device : devices_) names_.insert(device.to_string());

  default_device_ =
      default_device.empty() ? default_of(first)->to_string() : DeviceSpec::parse(default_device).to_string();
  if (!names_.contains(default_device_)) {
    throw invalid_argument("default device \"", default_device_, "\" does not exist; there are: ", names());
  }
}

const DeviceSpec* DeviceSet::first_of(const DeviceSpec& task, const std::string& type) const {
  for (const DeviceSpec& device : devices_) {
    if (same_task(device, task) && device.type == type) return &device;
  }
  return nullptr;
}

const DeviceSpec* DeviceSet::default_of(const DeviceSpec& task) const {
  for (const char* type : {"GPU", "CPU"}) {
    if (const DeviceSpec* device = first_of(task, type)) return device;
  }
  for (const DeviceSpec& device : devices_) {
    if (same_task(device, task)) return &device;
  }
  return nullptr;
}

std::string DeviceSet::names() const {
  std::string text;
  size_t count = 0;
  for (const std::string& name : names_) {
    if (count == kMostNames) {
      str_append(text, " and ", names_.size() - kMostNames, " more");
      break;
    }
    str_append(text, count++ ? ", " : "", name);
  }
  return text;
}

std::string DeviceSet::resolve(const std::string& request, const std::string& here, const std::string& who) {
  if (request.empty()) return here;
  auto [memory, is_new] = resolved_.try_emplace({request, here});
  if (!is_new) return memory->second;

  const DeviceSpec wish = DeviceSpec::parse(request);
  const DeviceSpec base = DeviceSpec::parse(here);
  DeviceSpec full = wish;
  if (!full.job && !full.task) full.task = base.task;
  if (!full.job) full.job = base.job;
  if (!full.task) full.task = 0;
  const bool elsewhere = wish.job || wish.task;
  if (!full.replica) full.replica = elsewhere && base.replica == kApart ? 0 : base.replica;
  const DeviceSpec* fallback = same_task(full, base) ? &base : default_of(full);
  if (!full.type && fallback) {
    full.type = fallback->type;
    if (!full.index) full.index = fallback->index;
  }
  if (full.type && !full.index) {
    const DeviceSpec* first = first_of(full, *full.type);
    full.index = first ? first->index : 0;
  }

  std::string name = full.to_string();
  if (!names_.contains(name)) {
    fallback = default_of(full);
    if (!fallback || !soft_placement_) {
      resolved_.erase(memory);
      throw invalid_argument("device \"", name, "\" (", who, " asked for \"", request, "\") does not exist",
                             fallback ? "" : ", nor does any other of its task", "; there are: ", names());
    }
    if (reported_.insert(name).second) {
      MUSTER_LOG(warning) << "placer: device " << name << " does not exist; " << who << " and whoever else asked for it"
                          << " runs on " << fallback->to_string();
    }
    name = fallback->to_string();
  }
  return memory->second = name;
}

}  // namespace muster

#include "muster/distribute/servers/ps_places.h"

#include <algorithm>

#include "muster/base/strings.h"

namespace muster {

PsPlaces::PsPlaces(std::vector<std::string> tasks, PsPlacement placement)
    : tasks_(std::move(tasks)), placement_(placement), bytes_(tasks_.size()) {}

std::string PsPlaces::device_for(int64_t bytes) {
  absl::MutexLock lock(&mu_);
  size_t chosen = next_++ % tasks_.size();
  if (placement_ == PsPlacement::kBalancedByBytes) {
    chosen = static_cast<size_t>(std::min_element(bytes_.begin(), bytes_.end()) - bytes_.begin());
  }
  bytes_[chosen] += bytes;
  return tasks_[chosen] + "/device:CPU:0";
}

std::string PsPlaces::take_name(const std::string& wish) {
  absl::MutexLock lock(&mu_);
  std::string name = wish;
  for (int suffix = 1; !names_.insert(name).second; ++suffix) name = str_cat(wish, "_", suffix);
  return name;
}

}  // namespace muster

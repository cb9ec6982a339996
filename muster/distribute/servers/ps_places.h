#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <set>
#include <string>
#include <vector>

#include "muster/distribute/servers/partitioners.h"

namespace muster {

// Which parameter server keeps the next variable, or part of one, and under which name. Thread-safe.
class PsPlaces {
 public:
  PsPlaces(std::vector<std::string> tasks, PsPlacement placement);

  // In turn, or where the fewest bytes are.
  std::string device_for(int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // The wish, with a number behind it if it was taken before: a parameter server keeps a variable to the end, so that
  // no name is used again.
  std::string take_name(const std::string& wish) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const std::vector<std::string> tasks_;
  const PsPlacement placement_;

  absl::Mutex mu_;
  size_t next_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<int64_t> bytes_ ABSL_GUARDED_BY(mu_);  // by task
  std::set<std::string> names_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster

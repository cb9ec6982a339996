// Memory of what a restore has replaced, for the next one.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <cstdint>
#include <map>

#include "muster/graph/program.h"

namespace muster {

// A restore needs as much memory as there is in variables, all of it new, until it has replaced them. New pages take
// longer than reading does: the system makes zeros of each, and a virtual machine first gets it from its host. So what
// was replaced stays here for those who restore again and again, as evaluators do. The system may take it back whenever
// it needs it (MADV_FREE), and it is never more than kMost. Thread-safe.
class SpareMemory {
 public:
  static constexpr int64_t kMost = int64_t{1} << 30;  // bytes

  static SpareMemory& instance();  // of this process

  // With any values, at the edge of a page; comes back here when nobody has it any more. REQUIRES: a spec of some
  // bytes.
  at::Tensor empty(const TensorSpec& spec) ABSL_LOCKS_EXCLUDED(mu_);

  int64_t kept() const ABSL_LOCKS_EXCLUDED(mu_);  // bytes
  void let_go() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  SpareMemory() = default;
  void* take(size_t bytes) ABSL_LOCKS_EXCLUDED(mu_);  // null: there is none
  void give_back(void* memory, size_t bytes) ABSL_LOCKS_EXCLUDED(mu_);

  mutable absl::Mutex mu_;
  std::multimap<size_t, void*> blocks_ ABSL_GUARDED_BY(mu_);  // by size
  int64_t kept_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace muster

#pragma once

#include <ATen/core/Tensor.h>
#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_map.h>
#include <absl/synchronization/mutex.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace muster {

class ProgramRunner;
class RemoteParts;

// What runs that come one after the other read for each other. A step begins with reading the variables of other tasks
// and ends with writing them. Where it is known by then which step comes next, the call that writes reads for that one,
// too: one call per task and step instead of two, and the next step sees what it would have seen.
// Thread-safe: the calls of a run end on any thread, but all of them before the run does.
class ReadAhead {
 public:
  using Parts = std::shared_ptr<const RemoteParts>;
  // A program that only reads: who runs it, and its handle there.
  using Key = std::pair<const ProgramRunner*, uint64_t>;

  // The next run begins: it finds what the last one has read for it, and nothing older. `after` finds next().
  void begin(std::function<Parts()> after) ABSL_LOCKS_EXCLUDED(mu_);
  // The run has failed: the one after it reads for itself.
  void fail() ABSL_LOCKS_EXCLUDED(mu_);
  // What was read for this run is old by now: it reads for itself.
  void forget() ABSL_LOCKS_EXCLUDED(mu_);

  // What other tasks do for the run that comes after this one; null if that is not known yet. It lives as long as this
  // run: whoever lets go of it last deregisters it, which those who bring answers have no time for.
  const RemoteParts* next() ABSL_LOCKS_EXCLUDED(mu_);
  // For the run that comes next.
  void put(const Key& read, std::vector<at::Tensor> outputs) ABSL_LOCKS_EXCLUDED(mu_);
  // What was read for this run, once.
  std::optional<std::vector<at::Tensor>> take(const Key& read) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Reads = absl::flat_hash_map<Key, std::vector<at::Tensor>>;

  std::function<Parts()> after_;  // changes between runs only

  absl::Mutex mu_;
  Parts next_ ABSL_GUARDED_BY(mu_);
  Reads for_this_ ABSL_GUARDED_BY(mu_), for_next_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster

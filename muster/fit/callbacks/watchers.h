// Callbacks beside the training.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <cstdint>
#include <exception>
#include <functional>

#include "muster/base/elastic_pool.h"

namespace muster {

// Runs what fit() would call of callbacks that only watch, one call after the other and in their order, on a thread of
// its own: nobody waits for it. After a call that has thrown there are no more. The destructor waits for those that
// were added, and logs an error that nobody was told of. Thread-safe.
class Watchers {
 public:
  Watchers() = default;
  ~Watchers();
  Watchers(const Watchers&) = delete;
  Watchers& operator=(const Watchers&) = delete;

  void add(std::function<void()> call) ABSL_LOCKS_EXCLUDED(mu_);
  // Throws what a call has thrown, once.
  void check() ABSL_LOCKS_EXCLUDED(mu_);
  // The same, when all that was added has run.
  void wait() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void run(const std::function<void()>& call) ABSL_LOCKS_EXCLUDED(mu_);
  void wait_until_idle() ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  int64_t waiting_ ABSL_GUARDED_BY(mu_) = 0;  // calls, with that which runs
  bool failed_ ABSL_GUARDED_BY(mu_) = false;
  std::exception_ptr error_ ABSL_GUARDED_BY(mu_);  // not thrown yet
  ElasticPool thread_{"fit-watchers", /*most=*/1};
};

}  // namespace muster

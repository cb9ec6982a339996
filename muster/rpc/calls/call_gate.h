#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <chrono>
#include <deque>
#include <functional>

#include "muster/base/elastic_pool.h"

namespace muster {

// How many calls a server works on at the same time. Those that wait for others (base/blocking.h) do not count, and a
// call that was kept back for longer than a moment is let in, since those before it may wait without saying so: nobody
// who waits can keep others from being answered. Thread-safe.
class CallGate {
 public:
  explicit CallGate(int most) : most_(most) {}

  using Work = std::function<void()>;
  // Runs it on this thread, and then what was kept back meanwhile; or on a thread of its own, if as many as may work
  // are inside of this, working or waiting; or keeps it back.
  void run(Work work) ABSL_LOCKS_EXCLUDED(mu_);
  // The same, never on this thread.
  void run_later(Work work) ABSL_LOCKS_EXCLUDED(mu_);
  // To be called now and then: lets those in that were kept back for long.
  void look() ABSL_LOCKS_EXCLUDED(mu_);

  static constexpr std::chrono::milliseconds kPatience{50};

 private:
  struct KeptBack {
    Work work;
    std::chrono::steady_clock::time_point since;
  };

  void run_elsewhere(Work work);
  // On a thread that is counted; until nobody is kept back.
  void run_all(Work work) ABSL_LOCKS_EXCLUDED(mu_);
  void wait_begins() ABSL_LOCKS_EXCLUDED(mu_);
  void wait_ends() ABSL_LOCKS_EXCLUDED(mu_);
  // The next one that was kept back, to be run by whoever is counted; else nobody is counted in its place.
  Work next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int most_;
  absl::Mutex mu_;
  int working_ ABSL_GUARDED_BY(mu_) = 0;
  int lent_ ABSL_GUARDED_BY(mu_) = 0;  // threads that others have lent by run()
  std::deque<KeptBack> kept_back_ ABSL_GUARDED_BY(mu_);
  ElasticPool pool_{"calls", 4'096};  // last: what it runs uses all of the above
};

}  // namespace muster

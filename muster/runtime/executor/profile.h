// When each instruction of a run began and ended, on which device.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <chrono>
#include <string>
#include <vector>

#include "muster/runtime/executor/input_timing.h"

namespace muster {

// Collects the events of any number of runs. Thread-safe: the lanes of a run add to it at the same time.
class Profile {
 public:
  using Clock = std::chrono::steady_clock;

  // The device of calls to other tasks, from their begin until their answer is here: what runs meanwhile hides them.
  static constexpr const char* kOtherTasks = "other tasks";

  struct Event {
    std::string op;
    std::string device;
    Clock::time_point begin;
    Clock::time_point end;
  };

  void add(Event event) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<Event> events() const ABSL_LOCKS_EXCLUDED(mu_);
  // What a sequence of examples did while a run waited for one of its elements.
  void add_input(const InputTiming& during) ABSL_LOCKS_EXCLUDED(mu_);
  InputTiming input() const ABSL_LOCKS_EXCLUDED(mu_);  // the sum of them

  // The Chrome trace format, which Perfetto and chrome://tracing open: one row per device, and as many for other tasks
  // as there are calls at the same time.
  std::string chrome_trace() const ABSL_LOCKS_EXCLUDED(mu_);
  // Time by op, most expensive first, the same for calls to other tasks, and what was waited for when there was no
  // element yet: for a look in the terminal.
  std::string summary() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable absl::Mutex mu_;
  std::vector<Event> events_ ABSL_GUARDED_BY(mu_);
  InputTiming input_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster

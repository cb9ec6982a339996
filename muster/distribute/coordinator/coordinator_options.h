#pragma once

#include <chrono>
#include <cstddef>
#include <optional>

namespace muster {

struct CoordinatorOptions {
  size_t queue_capacity = 256 * 1024;  // closures that wait for a worker; schedule() blocks beyond. 0: no limit
  int depth =
      2;  // messages under way per worker, each with one or more closures, so that it need not wait for the next
  // The messages of one worker run at the same time, instead of one closure after the other. A worker that waits for
  // parameter servers does something else meanwhile, but what a closure reads may be overwritten before it writes:
  // `v.assign(v + 1)` counts less than it should, and training takes steps by gradients of older weights.
  bool overlap = false;
  std::chrono::milliseconds worker_recovery_limit{3'600'000};  // until a lost worker is given up
  // Of one parameter server, that are taken for a short cut of the network. Calls count that did not reach it, once for
  // all that were under way at the same time. Of one whose port refuses connections, which mostly means that it is
  // gone, so does every 50 ms for which that goes on; the second refusal decides at the earliest.
  int transient_ps_failures = 3;
  std::chrono::milliseconds tidy_every{10'000};  // programs of functions that are gone are dropped at the workers
  // Stacks of all threads are logged when no closure ends for so long. Else $MUSTER_COORDINATOR_WATCHDOG_TIMEOUT.
  std::optional<std::chrono::milliseconds> watchdog{};
};

}  // namespace muster

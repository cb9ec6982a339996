// How one run of a program differs from the next.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "muster/base/cancellation.h"
#include "muster/graph/wire_form.h"
#include "muster/runtime/executor/profile.h"
#include "muster/runtime/executor/run_times.h"

namespace muster {

class ReadAhead;

struct RunOptions {
  std::optional<uint64_t> step{};  // of the random ops; the next one if not given
  uint64_t replica = 0;            // replicas of one step draw different numbers
  const Cancellation* cancellation = nullptr;
  Profile* profile = nullptr;
  // Of the whole run, over all tasks. Not given: as long as it takes, and those that it needs are alive.
  std::optional<std::chrono::milliseconds> timeout{};
  uint64_t meeting = 0;  // of the parts of one step: names the values that they hand to each other
  // Worker::start_runs: what has the same number here runs one after the other, also over several messages. 0: at once.
  uint64_t sequence = 0;
  // The handle of a program without arguments that runs right after this one has ended well; 0: none. Its outputs
  // follow those of this one; they are missing if it fails. For what only reads: it may be run again, or for nothing.
  uint64_t then = 0;
  ReadAhead* ahead = nullptr;  // what the run before has read for this one, and this one for the next
  RunTimes* times = nullptr;   // of the worker that runs it
  WireForm form{};             // of what receive() fetches
  uint64_t owner = 0;          // of the program, and of what it leaves for other parts; the worker knows it
};

// The seed of the random ops of one run. `lane` numbers the devices of a program in the order in which it uses them.
uint64_t step_seed(uint64_t program_seed, uint64_t step, uint64_t replica, uint64_t lane = 0);

// From the system's random source, never 0: who knows some of them cannot tell the others. Thread-safe.
uint64_t random_id();

}  // namespace muster

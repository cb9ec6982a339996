// Who has left something at a task.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "muster/base/status.h"

namespace muster {

// A strategy, a session, or another task for which this one runs parts. What it leaves at a task is kept for as long as
// it renews its lease there.
struct Owner {
  uint64_t id = 0;     // drawn at random, so of this one only; 0: nobody, and what is left stays until it is dropped
  std::string name{};  // for messages
};

struct Lease {
  Owner owner{};
  std::vector<std::string> containers{};  // whose variables end with it
};

// What a task answers to a renewal.
struct LeaseTerms {
  std::chrono::milliseconds length{};  // that it waits for the next one
  bool lapsed = false;                 // it had a lease before, and has dropped what that was for
};
using RenewDone = std::function<void(const Status&, const LeaseTerms&)>;

}  // namespace muster

// Waiting for a condition, for tests. Not part of the library.
#pragma once

#include <chrono>
#include <thread>

namespace muster::testing_support {

inline constexpr std::chrono::seconds kPatience(60);  // of a test that would else wait for ever

// Whether the condition comes true while anybody has patience.
template <class Condition>
bool eventually(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace muster::testing_support

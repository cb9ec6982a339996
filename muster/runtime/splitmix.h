#pragma once

#include <cstdint>

namespace muster {

// SplitMix64, a stream of numbers: fast, good from any seed, and the same on every machine.
struct SplitMix {
  static constexpr uint64_t kStep = 0x9e3779b97f4a7c15;

  uint64_t state;
  constexpr uint64_t operator()() {
    state += kStep;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
};

}  // namespace muster

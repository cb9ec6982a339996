#include "muster/runtime/run_options.h"

#include <atomic>
#include <random>

namespace muster {
namespace {

uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t random_id() {
  static std::atomic<uint64_t> next = [] {
    std::random_device device;
    return (uint64_t{device()} << 32) ^ device();
  }();
  const uint64_t id = mix(next.fetch_add(1, std::memory_order_relaxed));
  return id != 0 ? id : random_id();
}

uint64_t step_seed(uint64_t program_seed, uint64_t step, uint64_t replica, uint64_t lane) {
  return mix(mix(mix(mix(program_seed) ^ step) ^ replica) ^ lane);
}

}  // namespace muster

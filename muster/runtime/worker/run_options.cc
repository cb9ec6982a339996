#include "muster/runtime/worker/run_options.h"

#include <pthread.h>
#include <sys/random.h>

#include <array>
#include <atomic>
#include <cerrno>

#include "muster/base/status.h"
#include "muster/runtime/splitmix.h"

namespace muster {
namespace {

uint64_t mix(uint64_t x) { return SplitMix{x}(); }

}  // namespace

uint64_t random_id() {
  // Drawn in advance, so that an id rarely costs a system call. A process that was forked must not give out what its
  // parent has drawn.
  struct Drawn {
    std::array<uint64_t, 32> ids{};
    size_t left = 0;
    uint64_t forks = 0;
  };
  static std::atomic<uint64_t> forks = 0;
  [[maybe_unused]] static const int registered =
      pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  thread_local Drawn drawn;
  if (const uint64_t now = forks.load(std::memory_order_relaxed); drawn.forks != now) {
    drawn.left = 0;
    drawn.forks = now;
  }
  while (true) {
    if (drawn.left == 0) {
      const ssize_t got = ::getrandom(drawn.ids.data(), sizeof drawn.ids, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got != sizeof drawn.ids) throw internal("the system gives no random numbers (errno ", errno, ")");
      drawn.left = drawn.ids.size();
    }
    if (const uint64_t id = drawn.ids[--drawn.left]; id != 0) return id;
  }
}

uint64_t step_seed(uint64_t program_seed, uint64_t step, uint64_t replica, uint64_t lane) {
  return mix(mix(mix(mix(program_seed) ^ step) ^ replica) ^ lane);
}

}  // namespace muster

// What the time of a worker's runs is spent on.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace muster {

// Sums, in nanoseconds. Where a run waits in several lanes at once, each of them counts. Thread-safe.
struct RunTimes {
  std::atomic<int64_t> running = 0;  // what coordinators have sent, with all that it waits for
  std::atomic<int64_t> input = 0;    // waiting for elements of sequences
  std::atomic<int64_t> peers = 0;    // waiting for other tasks
};

// Of all threads of this process, since its start.
double used_cpu_seconds();

// Adds the time from its construction to its destruction, if there is something to add it to.
class [[nodiscard]] AddTime {
 public:
  explicit AddTime(std::atomic<int64_t>* sum) : sum_(sum) {
    if (sum_ != nullptr) begin_ = Clock::now();
  }
  ~AddTime() {
    if (sum_ != nullptr)
      sum_->fetch_add((Clock::now() - begin_) / std::chrono::nanoseconds(1), std::memory_order_relaxed);
  }
  AddTime(const AddTime&) = delete;
  AddTime& operator=(const AddTime&) = delete;

 private:
  using Clock = std::chrono::steady_clock;

  std::atomic<int64_t>* const sum_;
  Clock::time_point begin_{};
};

}  // namespace muster

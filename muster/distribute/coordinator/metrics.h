#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace muster {

struct HistogramSnapshot {
  int64_t count = 0;
  double sum = 0;                 // seconds
  std::vector<double> limits{};   // seconds; bucket i counts what lies below limits[i] and in no earlier bucket
  std::vector<int64_t> counts{};  // one more than limits: the last bucket has no limit

  bool operator==(const HistogramSnapshot&) const = default;
};

// How often something took how long. Thread-safe; recording takes two atomic additions.
// Limit: a snapshot taken while others record may have a sum that is ahead of its counts, or behind.
class Histogram {
 public:
  // Limits as TensorFlow's ExponentialBuckets has them: scale, then each `growth` times the one before.
  // REQUIRES: buckets is at most kMostLimits.
  Histogram(double scale, double growth, int buckets);

  void record(std::chrono::nanoseconds time);
  void record(std::chrono::nanoseconds time, int64_t times);  // so many that took so long each
  HistogramSnapshot snapshot() const;

 private:
  static constexpr size_t kMostLimits = 7;

  const std::vector<double> limits_;
  std::array<std::atomic<int64_t>, kMostLimits + 1> counts_{};
  std::atomic<int64_t> nanoseconds_ = 0;
};

struct MetricsSnapshot {
  int64_t queued_closures = 0;
  int64_t inflight_closures = 0;
  int64_t worker_failures = 0;
  int64_t repeated_closures = 0;
  int64_t looks_for_workers = 0;
  HistogramSnapshot function_tracing{};
  HistogramSnapshot closure_execution{};
  HistogramSnapshot remote_value_fetch{};
  HistogramSnapshot server_def_update{};

  bool operator==(const MetricsSnapshot&) const = default;
};

// What a coordinator counts, under the names and with the buckets that TensorFlow has, where it has them.
// Thread-safe: each member is changed for itself, by whoever does what it measures.
class Metrics {
 public:
  std::atomic<int64_t> queued_closures = 0;    // now
  std::atomic<int64_t> inflight_closures = 0;  // now
  std::atomic<int64_t> worker_failures = 0;    // since the start
  // Since the start: run again because nobody could tell whether they had run, so each may have been applied twice.
  std::atomic<int64_t> repeated_closures = 0;
  std::atomic<int64_t> looks_for_workers = 0;  // since the start: calls of workers that were not there
  Histogram function_tracing{0.1, 10, 6};
  Histogram closure_execution{0.1, 10, 6};
  Histogram remote_value_fetch{0.001, 10, 7};
  Histogram server_def_update{1, 10, 5};

  MetricsSnapshot snapshot() const;

  // {"queued_closures": 3, …, "closure_execution": {"num": 2, "sum": 0.7, "histogram": [{"below": 0.1, "num": 0}, …]}};
  // "below" is null for the last bucket.
  std::string to_json() const;
};

// Records the time from its construction to its destruction, however the scope is left.
class [[nodiscard]] ScopedTimer {
 public:
  explicit ScopedTimer(Histogram& histogram) : histogram_(histogram) {}
  ~ScopedTimer() { histogram_.record(std::chrono::steady_clock::now() - start_); }
  ScopedTimer(const ScopedTimer&) = delete;
  ScopedTimer& operator=(const ScopedTimer&) = delete;

 private:
  Histogram& histogram_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace muster

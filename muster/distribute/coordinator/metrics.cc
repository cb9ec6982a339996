#include "muster/distribute/coordinator/metrics.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "muster/base/check.h"

namespace muster {
namespace {

std::vector<double> exponential(double scale, double growth, int count) {
  std::vector<double> limits;
  for (double limit = scale; static_cast<int>(limits.size()) < count; limit *= growth) limits.push_back(limit);
  return limits;
}

nlohmann::json json_of(const HistogramSnapshot& histogram) {
  nlohmann::json buckets = nlohmann::json::array();
  for (size_t i = 0; i < histogram.counts.size(); ++i) {
    nlohmann::json below;
    if (i < histogram.limits.size()) below = histogram.limits[i];
    buckets.push_back({{"below", below}, {"num", histogram.counts[i]}});
  }
  return {{"num", histogram.count}, {"sum", histogram.sum}, {"histogram", buckets}};
}

}  // namespace

Histogram::Histogram(double scale, double growth, int buckets) : limits_(exponential(scale, growth, buckets)) {
  MUSTER_CHECK(limits_.size() <= kMostLimits);
}

void Histogram::record(std::chrono::nanoseconds time) { record(time, 1); }

void Histogram::record(std::chrono::nanoseconds time, int64_t times) {
  const double seconds = std::chrono::duration<double>(time).count();
  const auto bucket = std::ranges::upper_bound(limits_, seconds) - limits_.begin();
  counts_[bucket].fetch_add(times, std::memory_order_relaxed);
  nanoseconds_.fetch_add(time.count() * times, std::memory_order_relaxed);
}

HistogramSnapshot Histogram::snapshot() const {
  HistogramSnapshot snapshot{.limits = limits_};
  for (size_t i = 0; i <= limits_.size(); ++i) snapshot.counts.push_back(counts_[i].load(std::memory_order_relaxed));
  snapshot.count = std::accumulate(snapshot.counts.begin(), snapshot.counts.end(), int64_t{0});
  snapshot.sum = static_cast<double>(nanoseconds_.load(std::memory_order_relaxed)) * 1e-9;
  return snapshot;
}

MetricsSnapshot Metrics::snapshot() const {
  return {.queued_closures = queued_closures,
          .inflight_closures = inflight_closures,
          .worker_failures = worker_failures,
          .repeated_closures = repeated_closures,
          .looks_for_workers = looks_for_workers,
          .function_tracing = function_tracing.snapshot(),
          .closure_execution = closure_execution.snapshot(),
          .remote_value_fetch = remote_value_fetch.snapshot(),
          .server_def_update = server_def_update.snapshot()};
}

std::string Metrics::to_json() const {
  const MetricsSnapshot now = snapshot();
  return nlohmann::json{{"queued_closures", now.queued_closures},
                        {"inflight_closures", now.inflight_closures},
                        {"worker_failures", now.worker_failures},
                        {"repeated_closures", now.repeated_closures},
                        {"looks_for_workers", now.looks_for_workers},
                        {"function_tracing", json_of(now.function_tracing)},
                        {"closure_execution", json_of(now.closure_execution)},
                        {"remote_value_fetch", json_of(now.remote_value_fetch)},
                        {"server_def_update", json_of(now.server_def_update)}}
      .dump();
}

}  // namespace muster

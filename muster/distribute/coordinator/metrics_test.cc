#include "muster/distribute/coordinator/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

namespace muster {
namespace {

using namespace std::chrono_literals;
using testing::DoubleEq;
using testing::ElementsAre;
using testing::Pointwise;

TEST(Metrics, StartsAtZero) {
  const Metrics metrics;

  const MetricsSnapshot snapshot = metrics.snapshot();

  EXPECT_EQ(snapshot.queued_closures, 0);
  EXPECT_EQ(snapshot.inflight_closures, 0);
  EXPECT_EQ(snapshot.worker_failures, 0);
  EXPECT_EQ(snapshot.closure_execution.count, 0);
  EXPECT_EQ(snapshot.closure_execution.sum, 0);
}

TEST(Metrics, HasTensorFlowsBuckets) {
  const MetricsSnapshot snapshot = Metrics().snapshot();
  const auto are = [](std::vector<double> limits) { return Pointwise(DoubleEq(), limits); };

  EXPECT_THAT(snapshot.function_tracing.limits, are({0.1, 1, 10, 100, 1e3, 1e4}));
  EXPECT_THAT(snapshot.closure_execution.limits, are({0.1, 1, 10, 100, 1e3, 1e4}));
  EXPECT_THAT(snapshot.remote_value_fetch.limits, are({0.001, 0.01, 0.1, 1, 10, 100, 1e3}));
  EXPECT_THAT(snapshot.server_def_update.limits, are({1, 10, 100, 1e3, 1e4}));
}

TEST(Metrics, CountsEachTimeInItsBucket) {
  Metrics metrics;

  metrics.closure_execution.record(50ms);
  metrics.closure_execution.record(500ms);
  metrics.closure_execution.record(900ms);
  metrics.closure_execution.record(24h);

  const HistogramSnapshot snapshot = metrics.snapshot().closure_execution;
  EXPECT_EQ(snapshot.count, 4);
  EXPECT_DOUBLE_EQ(snapshot.sum, 1.45 + 24 * 3600);
  EXPECT_THAT(snapshot.counts, ElementsAre(1, 2, 0, 0, 0, 0, 1));
}

TEST(Metrics, CountsALimitItselfInTheBucketAboveIt) {
  Metrics metrics;

  metrics.server_def_update.record(1s);

  EXPECT_THAT(metrics.snapshot().server_def_update.counts, ElementsAre(0, 1, 0, 0, 0, 0));
}

TEST(Metrics, LosesNothingThatManyThreadsRecord) {
  Metrics metrics;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&metrics] {
        for (int n = 0; n < 1000; ++n) {
          metrics.remote_value_fetch.record(1us);
          ++metrics.worker_failures;
        }
      });
    }
  }

  const MetricsSnapshot snapshot = metrics.snapshot();
  EXPECT_EQ(snapshot.remote_value_fetch.count, 4000);
  EXPECT_DOUBLE_EQ(snapshot.remote_value_fetch.sum, 0.004);
  EXPECT_EQ(snapshot.worker_failures, 4000);
}

TEST(Metrics, AreWrittenAsJsonUnderTensorFlowsNamesWhereItHasThem) {
  Metrics metrics;
  metrics.queued_closures = 3;
  metrics.inflight_closures = 2;
  ++metrics.worker_failures;
  metrics.function_tracing.record(500ms);

  const auto json = nlohmann::json::parse(metrics.to_json());

  EXPECT_EQ(json.size(), 9u);
  EXPECT_EQ(json.at("queued_closures"), 3);
  EXPECT_EQ(json.at("inflight_closures"), 2);
  EXPECT_EQ(json.at("worker_failures"), 1);
  EXPECT_EQ(json.at("repeated_closures"), 0);
  EXPECT_EQ(json.at("function_tracing").at("num"), 1);
  EXPECT_EQ(json.at("function_tracing").at("sum"), 0.5);
  EXPECT_EQ(json.at("function_tracing").at("histogram").size(), 7u);
  EXPECT_EQ(json.at("function_tracing").at("histogram")[1].at("num"), 1);
  EXPECT_EQ(json.at("function_tracing").at("histogram")[1].at("below"), 1.0);
  EXPECT_TRUE(json.at("function_tracing").at("histogram")[6].at("below").is_null());
  EXPECT_EQ(json.at("closure_execution").at("num"), 0);
  EXPECT_EQ(json.at("remote_value_fetch").at("histogram").size(), 8u);
  EXPECT_EQ(json.at("server_def_update").at("histogram").size(), 6u);
}

TEST(ScopedTimer, RecordsAlsoWhenTheScopeThrows) {
  Metrics metrics;

  try {
    const ScopedTimer timer(metrics.function_tracing);
    throw std::runtime_error("no");
  } catch (const std::runtime_error&) {
  }

  EXPECT_EQ(metrics.snapshot().function_tracing.count, 1);
}

}  // namespace
}  // namespace muster

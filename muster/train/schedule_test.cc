#include "muster/train/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "muster/base/status.h"

namespace muster::schedule_test {
namespace {

std::vector<double> rates(const Schedule& schedule, const std::vector<int64_t>& steps) {
  std::vector<double> all;
  for (const int64_t step : steps) all.push_back(schedule.at(step));
  return all;
}

auto near(const std::vector<double>& expected) { return ::testing::Pointwise(::testing::DoubleNear(1e-9), expected); }

double half_cosine(double done) { return 0.5 * (1 + std::cos(std::numbers::pi * done)); }

TEST(Schedule, IsANumber) {
  const Schedule schedule = 0.25;
  EXPECT_TRUE(schedule.is_constant());
  EXPECT_THAT(rates(schedule, {0, 1000}), near({0.25, 0.25}));
}

TEST(Schedule, DecaysExponentially) {
  EXPECT_THAT(rates(exponential_decay(0.1, 10, 0.5), {0, 5, 10, 30}), near({0.1, 0.1 * std::sqrt(0.5), 0.05, 0.0125}));
  EXPECT_THAT(rates(exponential_decay(0.1, 10, 0.5, /*staircase=*/true), {0, 9, 10, 19}), near({0.1, 0.1, 0.05, 0.05}));
  EXPECT_THAT(rates(inverse_time_decay(0.1, 10, 2), {0, 5, 10}), near({0.1, 0.05, 0.1 / 3}));
}

TEST(Schedule, DecaysAsAPolynomialAndStaysThere) {
  EXPECT_THAT(rates(polynomial_decay(0.1, 10, 0.02), {0, 5, 10, 99}), near({0.1, 0.06, 0.02, 0.02}));
  EXPECT_THAT(rates(polynomial_decay(0.1, 10, 0, 2), {0, 5, 10}), near({0.1, 0.025, 0}));
}

// keras.optimizers.schedules.PolynomialDecay(0.1, 10, 0.02, cycle=True).
TEST(Schedule, DecaysAsAPolynomialAgainAndAgain) {
  EXPECT_THAT(rates(polynomial_decay(0.1, 10, 0.02, 1, /*cycle=*/true), {0, 5, 10, 15, 20, 24, 30}),
              near({0.1, 0.06, 0.02, 0.04, 0.02, 0.036, 0.02}));
}

TEST(Schedule, RisesAsAPolynomialFromNothing) {
  EXPECT_THAT(rates(polynomial_decay(0, 10, 0.1), {0, 1, 5, 10, 99}), near({0, 0.01, 0.05, 0.1, 0.1}));
  EXPECT_THAT(rates(polynomial_decay(0, 10, 0.1, 2), {0, 5, 10}), near({0, 0.075, 0.1}));
  EXPECT_THAT(rates(warm_up(4, polynomial_decay(0, 10, 0.1)), {2, 4, 9, 14}), near({0, 0, 0.05, 0.1}));
  EXPECT_THAT(rates(polynomial_decay(0, 10, 0), {0, 5, 10}), near({0, 0, 0}));
}

TEST(Schedule, DecaysAlongACosine) {
  EXPECT_THAT(rates(cosine_decay(0.2, 8), {0, 2, 4, 8, 50}), near({0.2, 0.2 * half_cosine(0.25), 0.1, 0, 0}));
  EXPECT_THAT(rates(cosine_decay(0.2, 8, 0.5), {0, 4, 8}), near({0.2, 0.15, 0.1}));
}

TEST(Schedule, BeginsAgainWithLongerAndLowerPeriods) {
  // Periods of 4, 8 and 16 steps: from 0, 4 and 12 on.
  const Schedule schedule = cosine_restarts(1, {.first_steps = 4, .longer = 2, .lower = 0.5});
  EXPECT_THAT(rates(schedule, {0, 2, 4, 8, 12, 20}), near({1, 0.5, 0.5, 0.25, 0.25, 0.125}));
  EXPECT_THAT(rates(cosine_restarts(1, {.first_steps = 4, .longer = 1, .end = 0.2}), {0, 2, 4, 6, 8}),
              near({1, 0.6, 1, 0.6, 1}));
}

TEST(Schedule, TakesValuesByPieces) {
  const Schedule schedule = piecewise_constant({10, 20}, {1, 0.5, 0.1});
  EXPECT_THAT(rates(schedule, {0, 10, 11, 20, 21, 500}), near({1, 1, 0.5, 0.5, 0.1, 0.1}));
}

TEST(Schedule, WarmsUpBeforeAnother) {
  EXPECT_THAT(rates(warm_up(4, 0.8), {0, 1, 2, 4, 100}), near({0, 0.2, 0.4, 0.8, 0.8}));
  EXPECT_THAT(rates(warm_up(4, cosine_decay(0.8, 8)), {2, 4, 8, 12}), near({0.4, 0.8, 0.4, 0}));
}

// torch.optim.lr_scheduler.OneCycleLR(max_lr=1, total_steps=10): what it had after 0, 1, … steps.
TEST(Schedule, GoesUpAndDownOnceAsPyTorchDoes) {
  const Schedule schedule = one_cycle(1, 10);
  const double begin = 0.04, end = begin / 1e4;
  EXPECT_THAT(rates(schedule, {0, 1, 2, 9, 50}), near({begin, 0.52, 1, end, end}));
  EXPECT_NEAR(schedule.at(5), end + (1 - end) * half_cosine(3.0 / 7), 1e-9);
}

TEST(Schedule, IsRefusedWithoutSteps) {
  EXPECT_THROW(exponential_decay(0.1, 0, 0.5), Error);
  EXPECT_THROW(cosine_decay(0.1, -1), Error);
  EXPECT_THROW(warm_up(0, 0.1), Error);
  EXPECT_THROW(one_cycle(0.1, 1), Error);
  EXPECT_THROW(piecewise_constant({1, 2}, {0.1, 0.2}), Error);
  EXPECT_THROW(piecewise_constant({2, 1}, {0.1, 0.2, 0.3}), Error);
  EXPECT_THROW(Schedule(0.1, nullptr), Error);
}

}  // namespace
}  // namespace muster::schedule_test

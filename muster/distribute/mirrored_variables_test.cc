#include "muster/distribute/mirrored_variables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/distribute/local_strategies.h"
#include "muster/trace/rows.h"

namespace muster {
namespace {

using ::muster::testing_support::caught;
using ::testing::AllOf;
using ::testing::HasSubstr;

// local_strategies_test.cc gives this program four devices.
const std::vector<std::string> kTwoCopies{"/device:CPU:1", "/device:CPU:2"};

TEST(MirroredStrategy, PutsTogetherWhatReplicasHaveWhenItIsRead) {
  const MirroredStrategy strategy(kTwoCopies);
  auto make = [&](Aggregation aggregation) {
    return strategy.make<Variable>(
        torch::full({}, 1.0F),
        VariableOptions{.name = "seen", .aggregation = aggregation, .synchronization = Synchronization::kOnRead});
  };
  Variable sum = make(Aggregation::kSum), mean = make(Aggregation::kMean), first = make(Aggregation::kOnlyFirstReplica),
           none = make(Aggregation::kNone);
  auto count = function([&] {
    for (Variable* each : {&sum, &mean, &first, &none}) each->assign_add(torch::full({}, replica_id() + 1));
    return sum.value() + 10 * none.value();
  });
  auto outside = function([&] { return sum.value() * 2; });
  EXPECT_EQ(sum.value().item<float>(), 1) << "what it was made with";

  const PerReplica<at::Tensor> own = strategy.run(count);

  EXPECT_EQ(own.values[0].item<float>(), 22) << "its own, after it was written";
  EXPECT_EQ(own.values[1].item<float>(), 32);
  EXPECT_EQ(sum.value().item<float>(), 4);
  EXPECT_EQ(outside().item<float>(), 8);
  EXPECT_EQ(mean.value().item<float>(), 2.5F);
  EXPECT_EQ(first.value().item<float>(), 2);
  EXPECT_THAT(caught([&] { (void)none.value(); }).message(),
              AllOf(HasSubstr("read outside of 2 replicas"), HasSubstr("VariableOptions::aggregation")));
  EXPECT_FALSE(sum.trainable());
}

TEST(MirroredStrategy, ReadsWhatWasAssignedToAValueOfEachReplica) {
  const MirroredStrategy strategy(kTwoCopies);
  auto make = [&](Aggregation aggregation, at::ScalarType dtype) {
    return strategy.make<Variable>(
        torch::zeros({2}, dtype),
        VariableOptions{.name = "seen", .aggregation = aggregation, .synchronization = Synchronization::kOnRead});
  };
  Variable sum = make(Aggregation::kSum, torch::kLong), mean = make(Aggregation::kMean, torch::kFloat);
  auto count = function([&] { sum.assign_add(torch::ones({2}, torch::kLong)); });
  auto again = function([&] { sum.assign(torch::zeros({2}, torch::kLong)); });

  sum.assign(torch::tensor({7, 8}));
  mean.assign(torch::tensor({3.0F, 4.0F}));
  strategy.run(count);
  sum.assign_sub(torch::tensor({1, 0}));
  const at::Tensor counted = sum.value();
  again();

  EXPECT_TRUE(counted.equal(torch::tensor({8, 10}))) << counted;
  EXPECT_TRUE(mean.value().equal(torch::tensor({3.0F, 4.0F})));
  EXPECT_TRUE(sum.value().equal(torch::zeros({2}, torch::kLong))) << "in a function, too";
}

TEST(MirroredStrategy, TakesNoRowsOutsideOfReplicasThatEachHasForItself) {
  const MirroredStrategy strategy(kTwoCopies);
  auto seen = strategy.make<Variable>(
      torch::zeros({4, 2}),
      VariableOptions{.aggregation = Aggregation::kSum, .synchronization = Synchronization::kOnRead});
  const at::Tensor ids = torch::tensor({1});
  auto inside = function([&] { return lookup(seen, ids) + seen.value().index_select(0, ids); });
  auto looks = function([&] { return lookup(seen, ids); });
  auto writes = function([&] { scatter(seen, Scatter::kAdd, ids, torch::ones({1, 2})); });
  auto by_memory = function([&] { seen.memory().add_(1); });

  EXPECT_NO_THROW(strategy.run(inside));
  for (const Status& refused : {caught([&] { looks(); }), caught([&] { writes(); }), caught([&] { by_memory(); })}) {
    EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition) << refused;
    EXPECT_THAT(refused.message(), HasSubstr("Synchronization::kOnRead"));
  }
}

TEST(MirroredStrategy, TakesTheMeanOfNumbersWhoseSumHasNoRoom) {
  const MirroredStrategy strategy(kTwoCopies);
  for (const auto& [dtype, number] : {std::pair(torch::kInt8, 100.0), std::pair(torch::kUInt8, 200.0),
                                      std::pair(torch::kInt, 2e9), std::pair(torch::kHalf, 60000.0)}) {
    for (const Synchronization when : {Synchronization::kOnRead, Synchronization::kOnWrite}) {
      auto mean = strategy.make<Variable>(torch::zeros({}, dtype),
                                          VariableOptions{.aggregation = Aggregation::kMean, .synchronization = when});
      auto write = function([&] { mean.assign(torch::full({}, number, dtype)); });

      strategy.run(write);

      EXPECT_EQ(mean.value().item<double>(), number) << dtype;
      EXPECT_EQ(mean.value().scalar_type(), dtype);
    }
  }
}

TEST(MirroredStrategy, RefusesToPutBoolsTogether) {
  const MirroredStrategy strategy(kTwoCopies);
  auto flag = strategy.make<Variable>(
      torch::zeros({}, torch::kBool),
      VariableOptions{.aggregation = Aggregation::kMean, .synchronization = Synchronization::kOnRead});

  EXPECT_THAT(caught([&] { (void)flag.value(); }).message(), HasSubstr("is bool and read outside of 2 replicas"));
}

TEST(MirroredStrategy, SlicesWhatReplicasHaveTogether) {
  const MirroredStrategy strategy(kTwoCopies);
  auto seen = strategy.make<Variable>(torch::zeros({4}), VariableOptions{.aggregation = Aggregation::kSum,
                                                                         .synchronization = Synchronization::kOnRead});
  auto count = function([&] { seen.assign_add(torch::arange(4, torch::kFloat) * (replica_id() + 1)); });
  auto outside = function([&] { return slice(seen, {.first = 1, .end = 3}); });

  strategy.run(count);

  EXPECT_TRUE(slice(seen, {.first = 1}).equal(torch::tensor({3.0F, 6.0F, 9.0F})));
  EXPECT_TRUE(slice(seen, {.step = -2}).equal(torch::tensor({9.0F, 3.0F})));
  EXPECT_EQ(slice(seen, {.first = 3, .end = 1}).numel(), 0);
  EXPECT_EQ(row(seen, -1).item<float>(), 9);
  EXPECT_TRUE(outside().equal(torch::tensor({3.0F, 6.0F})));
}

TEST(MirroredStrategy, WritesWhatReplicasHaveTogetherToAVariableInPlace) {
  const MirroredStrategy strategy(kTwoCopies);
  auto seen = strategy.make<Variable>(torch::zeros({2}), VariableOptions{.aggregation = Aggregation::kSum,
                                                                         .synchronization = Synchronization::kOnRead});
  auto total = strategy.make<Variable>(torch::zeros({2}), VariableOptions{.trainable = false});
  auto count = function([&] { seen.assign_add(torch::ones({2})); });
  auto keep = function([&] { total.assign_add(seen.value()); });

  strategy.run(count);
  keep();

  for (const Variable& copy : total.copies()) EXPECT_TRUE(copy.value().equal(torch::full({2}, 2.0F)));
}

}  // namespace
}  // namespace muster

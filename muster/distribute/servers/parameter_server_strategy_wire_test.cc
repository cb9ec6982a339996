#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/test_errors.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/trace/rows.h"
#include "muster/trace/variable_scope.h"

namespace muster::parameter_server_strategy_wire_test {
namespace {

using namespace ::muster::testing_support;
using ::testing::HasSubstr;

// All tasks are in this process, so forms are asked for on the same machine, too.
constexpr WireForm kRounded{.type = WireType::kBFloat16, .deflate = true, .same_machine = true};

at::Tensor rounded(const at::Tensor& tensor) { return tensor.to(torch::kBFloat16).to(torch::kFloat); }

class VariablesOnTheWire : public ::testing::Test {
 protected:
  InProcessCluster cluster_{{.workers = 1, .ps = 2}};
  ParameterServerStrategy strategy_{cluster_.resolver(), {.partitioner = FixedShardsPartitioner{2}}};
  ClusterCoordinator coordinator_{strategy_};
};

TEST_F(VariablesOnTheWire, AreRoundedWherePulledAndPushedAndExactWhereTheyAre) {
  const at::Tensor start = torch::randn({64, 32}), delta = torch::randn({64, 32});
  Variable w = strategy_.make<Variable>(start, VariableOptions{.name = "w", .wire = kRounded});
  Variable exact = strategy_.make<Variable>(start, VariableOptions{.name = "exact"});
  auto step = function([&](at::Tensor by) {
    const std::vector<at::Tensor> read = {w.value(), exact.value()};
    w.assign_add(by);
    exact.assign_add(by);
    return torch::stack(read);
  });
  EXPECT_TRUE(torch::equal(w.value(), start)) << "what is read outside of functions is exact";

  const at::Tensor read = coordinator_.schedule(step, delta).fetch();

  EXPECT_TRUE(torch::equal(read[0], rounded(start)));
  EXPECT_TRUE(torch::equal(read[1], start));
  EXPECT_TRUE(torch::equal(w.value(), start + rounded(delta)));
  EXPECT_TRUE(torch::equal(exact.value(), start + delta));
}

TEST_F(VariablesOnTheWire, AreRoundedAlsoWhereAWorkersOwnVariableIsPushed) {
  const at::Tensor delta = torch::randn({64, 32});
  Variable w = strategy_.make<Variable>(torch::zeros({64, 32}), VariableOptions{.name = "w", .wire = kRounded});
  const PerWorkerVariable own = coordinator_.create_per_worker_variable(delta);

  coordinator_.schedule(function([&] { w.assign_add(own.variable().value()); }));
  coordinator_.join();

  EXPECT_TRUE(torch::equal(w.value(), rounded(delta)));
}

TEST_F(VariablesOnTheWire, HaveRowsThatAreRoundedAndIdsThatAreNot) {
  const at::Tensor start = torch::randn({100'000, 4}), ids = torch::randint(100'000, {500}, torch::kLong);
  Variable table = strategy_.make<Variable>(start, VariableOptions{.name = "table", .wire = kRounded});
  auto look_up = function([&](at::Tensor at) { return lookup(table, at); });
  auto add = function([&](at::Tensor at, at::Tensor rows) { scatter(table, Scatter::kUpdate, at, rows); });

  const at::Tensor read = coordinator_.schedule(look_up, ids).fetch();
  const at::Tensor few = torch::arange(0, 100'000, 100), rows = torch::randn({1'000, 4});
  coordinator_.schedule(add, few, rows);
  coordinator_.join();

  EXPECT_TRUE(torch::equal(read, rounded(start.index({ids}))));
  EXPECT_TRUE(torch::equal(table.value().index({few}), rounded(rows)));
}

TEST_F(VariablesOnTheWire, HandTheirFormToWhatIsKeptBesideThem) {
  Variable w = strategy_.make<Variable>(torch::zeros({64, 32}), VariableOptions{.wire = kRounded});

  const Variable slot = make_beside(w, "slot", [](const auto& sizes) { return InitialValue::constant(sizes, 0); });
  const Variable count =
      make_beside(w, "count", [](const auto& sizes) { return InitialValue::constant(sizes, 0, at::kLong); });

  EXPECT_EQ(slot.shards().at(0).state()->options.wire, kRounded);
  EXPECT_EQ(count.shards().at(0).state()->options.wire.type, WireType::kAsIs);
}

TEST_F(VariablesOnTheWire, HaveTheFormThatTheirStrategyChoosesUnlessTheySay) {
  auto choose = [](const std::string& name, const TensorSpec&) { return name == "w" ? kRounded : WireForm{}; };
  ParameterServerStrategy strategy(cluster_.resolver(), {.wire = choose});

  EXPECT_EQ(strategy.make<Variable>(torch::zeros({4}), VariableOptions{.name = "w"}).state()->options.wire, kRounded);
  EXPECT_EQ(strategy.make<Variable>(torch::zeros({4}), VariableOptions{.name = "v"}).state()->options.wire, WireForm{});
  const WireForm own{.deflate = true};
  EXPECT_EQ(strategy.make<Variable>(torch::zeros({4}), VariableOptions{.name = "w", .wire = own}).state()->options.wire,
            own);
}

TEST_F(VariablesOnTheWire, AreRefusedIfTheyCannotBeRounded) {
  const VariableOptions options{.name = "ids", .wire = {.type = WireType::kBFloat16}};

  const std::string on_ps = error_of([&] { strategy_.make<Variable>(torch::zeros({4}, torch::kLong), options); });
  const std::string here = error_of([&] { Variable(torch::zeros({4}, torch::kDouble), options); });

  EXPECT_THAT(on_ps, HasSubstr("int64[2], which cannot be sent as bfloat16; expected float32"));
  EXPECT_THAT(here, HasSubstr("variable \"ids\" is float64[4], which cannot be sent as bfloat16; expected float32"));
}

}  // namespace
}  // namespace muster::parameter_server_strategy_wire_test

// The means of what variables were, which take the place of the variables and give it back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "muster/base/status.h"
#include "muster/cluster/in_process_cluster.h"
#include "muster/distribute/coordinator/cluster_coordinator.h"
#include "muster/distribute/local_strategies.h"
#include "muster/distribute/servers/parameter_server_strategy.h"
#include "muster/graph/program.h"
#include "muster/runtime/worker/owner.h"
#include "muster/session/step_program.h"
#include "muster/trace/function.h"
#include "muster/train/adaptive_optimizers.h"
#include "muster/train/checkpoints.h"
#include "muster/train/optimizers.h"

namespace muster::optimizer_averages_test {
namespace {

// A place for variables, and what keeps it alive.
struct Place {
  std::shared_ptr<InProcessCluster> cluster{};
  Strategy strategy{};
};

Place here() { return {}; }
Place mirrored() { return {.strategy = MirroredStrategy({"/device:CPU:0", "/device:CPU:1"})}; }
Place parameter_servers() {
  auto cluster = std::make_shared<InProcessCluster>(
      InProcessClusterOptions{.workers = 1, .ps = 2, .worker = {.storage = {testing::TempDir()}}});
  const ParameterServerStrategy strategy(cluster->resolver(), {.partitioner = FixedShardsPartitioner{2}});
  return {.cluster = cluster, .strategy = strategy};
}

class AveragesAnywhere : public ::testing::TestWithParam<std::function<Place()>> {
 protected:
  ~AveragesAnywhere() override { std::filesystem::remove_all(directory); }

  const std::string directory = testing::TempDir() + "averages-" + std::to_string(random_id());
  Place place = GetParam()();

  Variable make(const InitialValue& initial, const std::string& name = "variable") {
    return place.strategy.make<Variable>(initial, VariableOptions{.name = name});
  }
};
std::string name_of_place(const testing::TestParamInfo<std::function<Place()>>& info) {
  return std::vector<std::string>{"Here", "Mirrored", "ParameterServers"}[info.index];
}
INSTANTIATE_TEST_SUITE_P(Places, AveragesAnywhere,
                         ::testing::Values(std::function(here), std::function(mirrored),
                                           std::function(parameter_servers)),
                         name_of_place);

at::Tensor column(std::initializer_list<float> values) {
  return torch::tensor(at::ArrayRef<float>(values)).unsqueeze(1);
}

TEST_P(AveragesAnywhere, AreThoseOfPyTorch) {
  torch::manual_seed(3);
  const at::Tensor start = torch::randn({4, 3}), target = torch::randn({4, 3});
  const Variable w = make(start), scale = make(torch::ones({}));
  const Adam adam({w, scale}, {.learning_rate = 0.1, .all = {.average = 0.9}});
  auto step = function([&] { adam.minimize((w.value() * scale.value() - target).square().sum()); });

  at::Tensor mean, mean_of_scale;
  for (int i = 0; i < 5; ++i) {
    place.strategy.run(step);
    mean = i == 0 ? w.value().clone() : mean.lerp(w.value(), 0.1);
    mean_of_scale = i == 0 ? scale.value().clone() : mean_of_scale.lerp(scale.value(), 0.1);
  }
  adam.take_averages();

  EXPECT_TRUE(torch::allclose(w.value(), mean, 1e-5, 1e-6)) << w.value() << "\ninstead of\n" << mean;
  EXPECT_TRUE(torch::allclose(scale.value(), mean_of_scale, 1e-5, 1e-6));
  EXPECT_EQ(scale.value().dim(), 0);
}

TEST_P(AveragesAnywhere, OfRowsBeginWithWhatTheRowsWere) {
  for (const bool on_demand : {false, true}) {
    SCOPED_TRACE(on_demand ? "on demand" : "whole");
    const InitialValue ones = InitialValue::constant({4, 1}, 1);
    const Variable table = make(on_demand ? ones.on_demand() : ones);
    const Sgd sgd({table}, {.learning_rate = 1, .all = {.average = 0.5}});
    auto step = function([&](at::Tensor ids) { sgd.minimize(lookup(table, ids).sum()); });

    for (const int64_t id : {1, 1, 2}) place.strategy.run(step, torch::tensor({id}));  // nobody looks at 0 and 3
    EXPECT_TRUE(torch::equal(table.value(), column({1, -1, 0, 1})));
    sgd.take_averages();

    EXPECT_TRUE(torch::equal(table.value(), column({1, -0.5, 0.5, 1}))) << table.value();
  }
}

TEST_P(AveragesAnywhere, OfWhatIsNotTrainedAreItsValue) {
  const at::Tensor threes = torch::full({4, 1}, 3.0F);
  const Variable w = make(threes, "w"), late = make(threes, "late"), frozen = make(threes, "frozen");
  const Sgd sgd({w, late, frozen},
                {.learning_rate = 1, .all = {.groups = {{.names = "^frozen", .rate_factor = 0}}, .average = 0.5}});
  auto step = function([&](bool all) {
    const at::Tensor loss = w.value().sum() + frozen.value().sum();
    sgd.minimize(all ? loss + late.value().sum() : loss);
  });

  for (const bool all : {false, false, true}) place.strategy.run(step, all);
  sgd.take_averages();

  EXPECT_TRUE(torch::equal(w.value(), threes - 2.25)) << w.value();  // of 1, 2 and 3 less
  EXPECT_TRUE(torch::equal(late.value(), threes - 0.5)) << late.value();
  EXPECT_TRUE(torch::equal(frozen.value(), threes)) << frozen.value();
}

TEST_P(AveragesAnywhere, ChangePlacesWithTheVariablesAndBack) {
  torch::manual_seed(4);
  const Variable w = make(torch::randn({6, 2})), twin = make(w.value());
  auto rule = [](const Variable& of) {
    return std::make_shared<AdamW>(std::vector{of}, AdamWOptions{.learning_rate = 0.01, .all = {.average = 0.9}});
  };
  const std::shared_ptr<Optimizer> disturbed = rule(w), left_alone = rule(twin);
  auto step_of = [](const Variable& of, const Optimizer& optimizer) {
    return function([&] { optimizer.minimize((of.value() - 1).square().sum()); });
  };
  auto step = step_of(w, *disturbed), other_step = step_of(twin, *left_alone);

  for (int i = 0; i < 4; ++i) {
    place.strategy.run(step);
    place.strategy.run(other_step);
    const at::Tensor value = w.value().clone();
    disturbed->swap_averages();
    EXPECT_EQ(torch::equal(w.value(), value), i == 0) << "only the first step is its own mean";
    disturbed->swap_averages();
    EXPECT_TRUE(torch::allclose(w.value(), value, 1e-6, 1e-7));
  }
  disturbed->take_averages();
  left_alone->take_averages();

  EXPECT_TRUE(torch::allclose(w.value(), twin.value(), 1e-5, 1e-6));
  EXPECT_TRUE(!w.copies().empty() ? torch::equal(w.copies()[0].value(), w.copies()[1].value()) : true);
}

// The value has few digits, and a share such as 0.999 would be 1 with as few.
TEST_P(AveragesAnywhere, OfBfloat16AreThoseOfExactArithmetic) {
  const Variable w = make(torch::zeros({4, 3}, torch::kBFloat16));
  const Sgd sgd({w}, {.learning_rate = 1, .all = {.average = 0.999}});
  auto step = function([&] { sgd.minimize(w.value().sum()); });
  double mean = -1;  // after the first step

  for (int i = 1; i <= 200; ++i) {
    place.strategy.run(step);
    if (i > 1) mean = 0.999 * mean + 0.001 * -i;
  }
  const at::Tensor value = w.value().clone(), expected = torch::full({4, 3}, mean, torch::kDouble);
  EXPECT_TRUE(torch::equal(value.to(torch::kDouble), torch::full({4, 3}, -200.0, torch::kDouble))) << value;
  sgd.swap_averages();
  EXPECT_TRUE(torch::allclose(w.value().to(torch::kDouble), expected, 0.005)) << w.value() << "\nnot " << mean;
  EXPECT_EQ(w.value().scalar_type(), torch::kBFloat16);
  sgd.swap_averages();
  EXPECT_TRUE(torch::equal(w.value(), value)) << w.value();
  sgd.take_averages();

  EXPECT_TRUE(torch::allclose(w.value().to(torch::kDouble), expected, 0.005)) << w.value() << "\nnot " << mean;
}

TEST_P(AveragesAnywhere, GoOnAfterARestore) {
  auto train = [&](bool first) {
    const Variable table = make(torch::ones({4, 1}));
    const Sgd sgd({table}, {.learning_rate = 1, .all = {.average = 0.5}});
    Checkpoints checkpoints(place.strategy, {.directory = directory, .objects = {{"table", table}, {"sgd", sgd}}});
    if (!first) checkpoints.restore();
    auto step = function([&](at::Tensor ids) { sgd.minimize(lookup(table, ids).sum()); });
    place.strategy.run(step, torch::tensor({1}));
    place.strategy.run(step, torch::tensor({first ? 1 : 3}));
    if (first) checkpoints.save(1);
    sgd.take_averages();
    return table.value().clone();
  };

  EXPECT_TRUE(torch::equal(train(true), column({1, -0.5, 1, 1})));
  EXPECT_TRUE(torch::equal(train(false), column({1, -1.25, 1, 0.5})));
}

TEST_P(AveragesAnywhere, BeginWithWhatACheckpointWithoutThemHas) {
  const Variable old = make(torch::full({4, 1}, 5.0F)), table = make(torch::zeros({4, 1}));
  const Sgd without({old}, {.learning_rate = 1}), sgd({table}, {.learning_rate = 1, .all = {.average = 0.5}});
  auto old_step = function([&](at::Tensor ids) { without.minimize(lookup(old, ids).sum()); });
  auto step = function([&](at::Tensor ids) { sgd.minimize(lookup(table, ids).sum()); });
  place.strategy.run(old_step, torch::tensor({0, 1}));
  Checkpoints(place.strategy, {.directory = directory, .objects = {{"table", old}, {"sgd", without}}}).save(1);

  Checkpoints(place.strategy, {.directory = directory, .objects = {{"table", table}, {"sgd", sgd}}})
      .restore({.allow_missing = true});
  place.strategy.run(step, torch::tensor({1}));
  sgd.take_averages();

  EXPECT_TRUE(torch::equal(table.value(), column({4, 3.5, 5, 5}))) << table.value();
}

// Two workers read, and then change, the same values. What one has read, another one has changed since.
TEST(Averages, KeepWhatSeveralWorkersChange) {
  const InProcessCluster cluster({.workers = 2, .ps = 1});
  const ParameterServerStrategy strategy(cluster.resolver());
  const auto table = strategy.make<Variable>(torch::zeros({4, 8})), w = strategy.make<Variable>(torch::zeros({8}));
  // A mean that keeps all but nothing of later steps.
  const Sgd sgd({table, w}, {.learning_rate = 1, .all = {.average = 1 - 1e-12}});
  auto step = function([&](at::Tensor ids) { sgd.minimize(lookup(table, ids).sum() + w.value().sum()); });
  ClusterCoordinator coordinator(strategy);
  coordinator.schedule(step, torch::tensor({2}));
  coordinator.join();

  for (int i = 0; i < 100; ++i) coordinator.schedule(step, torch::tensor({2}));
  coordinator.join();

  EXPECT_TRUE(torch::equal(w.value(), torch::full({8}, -101.0F))) << w.value();
  sgd.take_averages();
  EXPECT_TRUE(torch::equal(w.value(), torch::full({8}, -1.0F))) << w.value();
  EXPECT_TRUE(torch::equal(table.value()[2], torch::full({8}, -1.0F))) << table.value();
}

size_t count_of(const Program& program, const std::string& op) {
  size_t count = 0;
  for (const Instruction& instruction : program.instructions) count += program.op_of(instruction).name == op ? 1 : 0;
  return count;
}

// The request that reads looks the row up, and keeps nothing of the variables for that which writes.
TEST(Averages, AreOfWhatIsThereWhenTheGradientsHaveCome) {
  const InProcessCluster cluster({.workers = 1, .ps = 1});
  const ParameterServerStrategy strategy(cluster.resolver());
  const auto table = strategy.make<Variable>(torch::zeros({4, 8})), w = strategy.make<Variable>(torch::zeros({8}));
  const Sgd sgd({table, w}, {.learning_rate = 1, .momentum = 0.9, .all = {.average = 0.5}});
  auto step = function([&](at::Tensor ids) { sgd.minimize((lookup(table, ids) * w.value()).sum()); });
  const std::string worker = "/job:worker/replica:0/task:0", cpu = "/device:CPU:0";
  const PlacerOptions devices{.devices = {worker + cpu, "/job:ps/replica:0/task:0" + cpu},
                              .default_device = worker + cpu};

  const Program program = make_step(step.program(torch::tensor({2})), "", devices, worker);

  ASSERT_EQ(program.parts.size(), 2U);
  EXPECT_EQ(count_of(program.parts[0], "muster_rows::gather"), 1U);
  EXPECT_EQ(count_of(program.parts[0], kSend.name), 1U) << "the ids";
}

TEST(Averages, AreNotThereUnlessTheyAreKept) {
  const Variable w(torch::ones({2}));
  const Sgd without({w}), unbound({.all = {.average = 0.9}});

  EXPECT_THROW(without.take_averages(), Error);
  EXPECT_THROW(without.swap_averages(), Error);
  EXPECT_THROW(unbound.swap_averages(), Error) << "it has no variables";
}

TEST(Averages, AreNotPutInWhileAFunctionIsTraced) {
  const Variable w(torch::ones({2}));
  const Sgd sgd({w}, {.all = {.average = 0.9}});
  auto inside = function([&](at::Tensor x) {
    sgd.swap_averages();
    return x;
  });

  EXPECT_THROW(inside(torch::zeros({1})), Error);
}

}  // namespace
}  // namespace muster::optimizer_averages_test

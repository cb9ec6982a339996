// Checkpoints of what the user chooses.
#include "muster/train/checkpoint_object.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>

#include "muster/base/test_errors.h"
#include "muster/cluster/in_process_cluster.h"
#include "muster/distribute/coordinator/cluster_coordinator.h"
#include "muster/distribute/local_strategies.h"
#include "muster/distribute/servers/parameter_server_strategy.h"
#include "muster/io/checkpoint_reader.h"
#include "muster/train/checkpoints.h"
#include "muster/train/optimizers.h"

namespace muster::checkpoint_object_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_support::caught;

class Objects : public testing::Test {
 protected:
  ~Objects() override { std::filesystem::remove_all(directory_); }

  std::vector<Strategy> strategies() const {
    return {Strategy(), MirroredStrategy({"/device:CPU:0", "/device:CPU:1"}), OneDeviceStrategy("/device:CPU:1"),
            CentralStorageStrategy({"/device:CPU:0", "/device:CPU:1"}),
            ParameterServerStrategy(cluster_.resolver(), {.partitioner = FixedShardsPartitioner{.num_shards = 2}})};
  }

  const std::string directory_ = testing::TempDir() + "objects-" + std::to_string(random_id());
  InProcessCluster cluster_{{.workers = 1, .ps = 2, .worker = {.storage = {testing::TempDir()}}}};
};

TEST_F(Objects, AreSavedAndRestoredUnderEveryStrategyAndNothingElseIsTouched) {
  int64_t saved = 0;
  for (const Strategy& from : strategies()) {
    ++saved;
    const auto value = static_cast<float>(saved);
    {
      const auto net = from.make<torch::nn::Linear>(2, 1);
      const Sgd sgd(net, {.learning_rate = 0.25, .momentum = 0.9});
      const auto other = from.make<Variable>(torch::zeros({2}), VariableOptions{.name = "other"});
      adopted(net).at("weight").assign(torch::full({1, 2}, value));
      int64_t step = 100 * saved;
      Checkpoints(from, {.directory = directory_, .objects = {{"net", net}, {"sgd", sgd}, {"step", &step}}})
          .save(saved);
      EXPECT_THAT(CheckpointReader(directory_ + "/ckpt-" + std::to_string(saved)).names(),
                  testing::ElementsAre("net/bias", "net/weight", "sgd/0/sgd/iterations", "sgd/0/sgd/learning_rate",
                                       "sgd/0/sgd/momentum", "sgd/1/sgd/momentum"));
    }
    for (const Strategy& to : strategies()) {
      const auto net = to.make<torch::nn::Linear>(2, 1);
      const Sgd sgd(net, {.learning_rate = 0.5, .momentum = 0.9});
      const auto other = to.make<Variable>(torch::full({2}, 7.0F), VariableOptions{.name = "other"});
      int64_t step = 0;

      Checkpoints checkpoints(to, {.directory = directory_, .objects = {{"net", net}, {"sgd", sgd}, {"step", &step}}});
      EXPECT_EQ(checkpoints.restore(), saved);

      EXPECT_TRUE(torch::equal(adopted(net).at("weight").value(), torch::full({1, 2}, value)));
      EXPECT_EQ(sgd.learning_rate(), 0.25);
      EXPECT_EQ(step, 100 * saved);
      EXPECT_TRUE(torch::equal(other.value(), torch::full({2}, 7.0F)));
    }
  }
}

TEST_F(Objects, MayBeNumbersTensorsAndPlacesInDatasets) {
  const Dataset dataset = Dataset::range(20).shuffle(20, 3).batch(2);
  std::vector<double> sums{0.1, 1e300, -0.0};
  at::Tensor tensor = torch::tensor({1.5, 2.5}, torch::kDouble);
  Iterator rows = dataset.iterator();
  std::string words = "before";
  auto next = function([](Iterator& it) { return it.next<1>()[0]; });
  (void)next(rows);
  const auto objects = [&] {
    return std::map<std::string, CheckpointObject>{
        {"sums", &sums},
        {"tensor", &tensor},
        {"rows", {&rows, dataset}},
        {"words", {[&] { return words; }, [&](const std::string& text) { words = text; }}}};
  };
  Checkpoints checkpoints(Strategy(), {.directory = directory_, .objects = objects()});
  checkpoints.save(1);
  const std::vector<double> saved_sums = sums;
  const at::Tensor second = next(rows).clone();
  sums = {5};
  tensor = torch::zeros({2}, torch::kDouble);
  words = "after";

  EXPECT_EQ(checkpoints.restore(), 1);

  EXPECT_EQ(sums, saved_sums);
  EXPECT_TRUE(torch::equal(tensor, torch::tensor({1.5, 2.5}, torch::kDouble)));
  EXPECT_EQ(words, "before");
  EXPECT_TRUE(torch::equal(next(rows), second));
}

TEST_F(Objects, MayBeSequencesWhoseBatchesReplicasShare) {
  const std::vector<std::string> devices{"/device:CPU:0", "/device:CPU:1"};
  const Dataset dataset = Dataset::range(24).shuffle(24).batch(4);
  for (const Strategy& strategy : {Strategy(MirroredStrategy(devices)), Strategy(CentralStorageStrategy(devices))}) {
    std::filesystem::remove_all(directory_);
    Iterator rows = strategy.distribute(dataset);
    auto next = function([](Iterator& it) { return it.next<1>()[0]; });
    const auto take = [&] { return strategy.gather(strategy.run(next, rows)).clone(); };
    (void)take();
    Checkpoints checkpoints(strategy, {.directory = directory_, .objects = {{"rows", {&rows, dataset}}}});
    checkpoints.save(1);
    const at::Tensor second = take();
    (void)take();

    checkpoints.restore();

    EXPECT_EQ(second.numel(), 4);
    EXPECT_TRUE(torch::equal(take(), second));
  }
}

TEST_F(Objects, MayBeWhereTheWorkersOfACoordinatorAreAndTheSumsOfAMetric) {
  const ParameterServerStrategy strategy(cluster_.resolver());
  ClusterCoordinator coordinator(strategy);
  const Dataset dataset = Dataset::range(100).batch(2);
  PerWorkerDataset rows = coordinator.create_per_worker_dataset(dataset);
  std::vector<double> sums{0};
  auto next = function([](Iterator& it) { return it.next<1>()[0].sum(); });
  const auto take = [&](int batches) {
    for (int i = 0; i < batches; ++i) sums[0] += coordinator.schedule(next, rows).fetch().item<double>();
    coordinator.join();
  };
  Checkpoints checkpoints(
      strategy,
      {.directory = directory_,
       .objects = {{"rows",
                    {[&] { return coordinator.position(rows); },
                     [&](const std::string& text) { rows = coordinator.create_per_worker_dataset(dataset, text); }}},
                   {"sums", &sums}}});
  take(3);
  checkpoints.save(1);
  take(2);
  const std::vector<double> after = sums;

  checkpoints.restore();
  EXPECT_EQ(sums, (std::vector<double>{0 + 1 + 2 + 3 + 4 + 5}));
  take(2);

  EXPECT_EQ(sums, after);
}

TEST_F(Objects, ThatACheckpointLacksOrHasTooMuchAreErrorsByTheSameRule) {
  int64_t a = 1, b = 2;
  Variable v(torch::ones({1}), {.name = "v"}), w(torch::ones({1}), {.name = "w"});
  Checkpoints(Strategy(), {.directory = directory_, .objects = {{"a", &a}, {"v", v}}}).save(1);
  v.assign(torch::full({1}, 9.0F));
  const auto restore = [&](const std::map<std::string, CheckpointObject>& objects, const RestoreOptions& options = {}) {
    return caught([&] { Checkpoints(Strategy(), {.directory = directory_, .objects = objects}).restore(options); });
  };

  EXPECT_THAT(restore({{"a", &a}, {"b", &b}, {"v", v}}).message(), HasSubstr("has no values for \"b\""));
  EXPECT_THAT(restore({{"v", v}}).message(), AllOf(HasSubstr("has values for \"a\""), HasSubstr("allow_unused")));
  EXPECT_THAT(restore({{"a", &a}, {"both", std::vector{v, w}}}).message(),
              HasSubstr("has no values for \"both/0\", \"both/1\", but for \"v\""));
  EXPECT_THAT(restore({{"a", &a}, {"w", w}}, {.allow_missing = true}).message(), HasSubstr("has values for \"v\""));
  EXPECT_EQ(v.value().item<float>(), 9) << "all or nothing";
  EXPECT_EQ(restore({{"b", &b}, {"v", v}, {"w", w}}, {.allow_missing = true, .allow_unused = true}), Status());
  EXPECT_EQ(v.value().item<float>(), 1);
  EXPECT_EQ(b, 2);
}

TEST_F(Objects, AreRefusedIfTheyCannotBeSaved) {
  const ParameterServerStrategy strategy(cluster_.resolver());
  const Variable here(torch::ones({1}), {.name = "here"});
  at::Tensor large = torch::zeros({1 << 20}), undefined;

  const Status elsewhere =
      caught([&] { Checkpoints(strategy, {.directory = directory_, .objects = {{"v", here}}}).save(1); });
  EXPECT_EQ(elsewhere.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(elsewhere.message(), HasSubstr("variables that are not of this strategy: \"here\""));
  for (at::Tensor* tensor : {&large, &undefined}) {
    EXPECT_EQ(
        caught([&] { Checkpoints(Strategy(), {.directory = directory_, .objects = {{"t", tensor}}}).save(1); }).code(),
        StatusCode::kInvalidArgument);
  }
  const Status twice = caught(
      [&] { Checkpoints(Strategy(), {.directory = directory_, .objects = {{"a", here}, {"b", std::vector{here}}}}); });
  EXPECT_THAT(twice.message(), HasSubstr("variable \"here\" is in the objects twice, as \"a\" and in \"b\""));
  EXPECT_EQ(caught([] { CheckpointObject(Sgd({.learning_rate = 0.1})); }).code(), StatusCode::kInvalidArgument);
}

TEST_F(Objects, ThatDoNotFitSayWhichAndWhy) {
  at::Tensor tensor = torch::zeros({2});
  int64_t number = 3;
  Checkpoints(Strategy(), {.directory = directory_, .objects = {{"it", &tensor}, {"n", &number}}}).save(1);
  tensor = torch::zeros({3});

  const Status status = caught([&] {
    Checkpoints(Strategy(), {.directory = directory_, .objects = {{"it", &tensor}, {"n", &number}}}).restore();
  });

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("\"it\" does not fit"), HasSubstr("expected float32[3]")));
}

}  // namespace
}  // namespace muster::checkpoint_object_test

#include "muster/train/checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <map>
#include <string>

#include "muster/base/log.h"
#include "muster/base/test_errors.h"
#include "muster/cluster/in_process_cluster.h"
#include "muster/distribute/coordinator/cluster_coordinator.h"
#include "muster/distribute/local_strategies.h"
#include "muster/distribute/servers/parameter_server_strategy.h"
#include "muster/io/disk.h"
#include "muster/rpc/rpc_faults.h"
#include "muster/runtime/rows/test_huge_table.h"
#include "muster/train/optimizers.h"

namespace muster {
namespace {

using testing_support::caught;

class CheckpointsTest : public testing::Test {
 protected:
  ~CheckpointsTest() override { std::filesystem::remove_all(directory_); }

  const std::string directory_ = testing::TempDir() + "checkpoints-" + std::to_string(random_id());
  InProcessCluster cluster_{{.workers = 1, .ps = 2, .worker = {.storage = {testing::TempDir()}}}};
};

ParameterServerStrategy with_shards(const InProcessCluster& cluster, int shards) {
  return ParameterServerStrategy(cluster.resolver(), {.partitioner = FixedShardsPartitioner{.num_shards = shards}});
}

TEST_F(CheckpointsTest, BringBackWhatWasSavedWithWhatOptimizersKeep) {
  auto strategy = with_shards(cluster_, 2);
  auto w = strategy.make<Variable>(torch::arange(8, torch::kFloat).reshape({4, 2}), VariableOptions{.name = "w"});
  const Adagrad adagrad({w}, {.initial_accumulator = 0.5});
  Checkpoints checkpoints(strategy, {.directory = directory_});
  checkpoints.save(7);
  w.assign(torch::zeros({4, 2}));
  adagrad.slots()[0].shards()[1].state()->home->write(*adagrad.slots()[0].shards()[1].state(),
                                                      VariableHome::Write::kAssign, torch::zeros({2, 2}));

  EXPECT_EQ(checkpoints.restore(), 7);

  EXPECT_TRUE(torch::equal(w.value(), torch::arange(8, torch::kFloat).reshape({4, 2})));
  EXPECT_TRUE(torch::equal(adagrad.slots()[0].value(), torch::full({4, 2}, 0.5F)));
}

TEST_F(CheckpointsTest, LoadIntoAnyNumberOfParts) {
  const at::Tensor value = torch::arange(6, torch::kFloat);
  int64_t step = 0;
  for (const auto& [saved, loaded] :
       {std::pair{2, 2}, {2, 3}, {3, 2}, {2, 1}, {1, 1}, {4, 1}, {1, 4}, {4, 2}, {2, 6}}) {
    {
      auto strategy = with_shards(cluster_, saved);
      auto w = strategy.make<Variable>(value + step, VariableOptions{.name = "w"});
      Checkpoints(strategy, {.directory = directory_}).save(++step);
    }
    auto strategy = with_shards(cluster_, loaded);
    auto w = strategy.make<Variable>(torch::zeros({6}), VariableOptions{.name = "w"});

    EXPECT_EQ(Checkpoints(strategy, {.directory = directory_}).restore(), step);

    EXPECT_TRUE(torch::equal(w.value(), value + (step - 1))) << saved << " to " << loaded << " parts";
  }
}

TEST_F(CheckpointsTest, LoadIntoAnyNumberOfServers) {
  const at::Tensor value = torch::arange(12, torch::kFloat).reshape({6, 2});
  auto make = [&](const ParameterServerStrategy& strategy, const at::Tensor& initial) {
    return strategy.make<Variable>(initial, VariableOptions{.name = "w"});
  };
  {
    auto strategy = with_shards(cluster_, 4);
    auto w = make(strategy, value);
    const Adagrad adagrad({w}, {.initial_accumulator = 0.5});
    Checkpoints(strategy, {.directory = directory_}).save(3);
  }
  for (int servers : {1, 3}) {
    InProcessCluster other({.workers = 1, .ps = servers, .worker = {.storage = {directory_}}});
    auto strategy = with_shards(other, servers);
    auto w = make(strategy, torch::zeros({6, 2}));
    const Adagrad adagrad({w});

    EXPECT_EQ(Checkpoints(strategy, {.directory = directory_}).restore(), 3);

    EXPECT_TRUE(torch::equal(w.value(), value)) << servers << " servers";
    EXPECT_TRUE(torch::equal(adagrad.slots()[0].value(), torch::full({6, 2}, 0.5F))) << servers << " servers";
  }
}

TEST_F(CheckpointsTest, WarnOfSomebodyElseWhoSavesInTheirDirectory) {
  const Strategy strategy;
  const auto v = strategy.make<Variable>(torch::zeros({}), VariableOptions{.name = "v"});
  Checkpoints before(strategy, {.directory = directory_, .keep = 9});
  before.save(1);
  Checkpoints checkpoints(strategy, {.directory = directory_, .keep = 9});
  const auto warned = [&](const auto& saves) {
    const LogCapture log;
    saves();
    return log.contains("that somebody else has saved there meanwhile");
  };

  EXPECT_FALSE(warned([&] {
    for (int step = 2; step <= 4; ++step) checkpoints.save(step);
  })) << "an earlier job has left what was there at first";
  before.save(5);
  EXPECT_TRUE(warned([&] { checkpoints.save(6); }));
  EXPECT_FALSE(warned([&] { checkpoints.save(7); })) << "it is said once of each";
  before.save(8);
  EXPECT_FALSE(warned([&] {
    checkpoints.restore();
    checkpoints.save(9);
  })) << "this one goes on from it";
}

TEST_F(CheckpointsTest, WarnOfSomebodyElseWhoseCheckpointsTheyMayNotRemove) {
  const Strategy strategy;
  const auto v = strategy.make<Variable>(torch::zeros({}), VariableOptions{.name = "v"});
  Checkpoints checkpoints(strategy, {.directory = directory_, .keep = 1});
  checkpoints.save(1);
  Checkpoints(strategy, {.directory = directory_, .keep = 9}).save(2);
  const LogCapture log;
  const disk::ScopedFaults faults([](std::string_view call, const std::string& path) {
    return call == "rename" && path.find("/ckpt-") == std::string::npos ? EACCES : 0;
  });

  checkpoints.save(3);

  EXPECT_TRUE(log.contains("that somebody else has saved there meanwhile"));
  EXPECT_TRUE(log.contains("older checkpoints than"));
}

TEST_F(CheckpointsTest, LookOnceIntoTheirDirectoryForEachSave) {
  const Strategy strategy;
  const auto v = strategy.make<Variable>(torch::zeros({}), VariableOptions{.name = "v"});
  Checkpoints checkpoints(strategy, {.directory = directory_, .keep = 2});
  int looks = 0;
  const disk::ScopedFaults watch([&](std::string_view call, const std::string& path) {
    looks += call == "list" && path == directory_;
    return 0;
  });

  for (int step = 1; step <= 4; ++step) checkpoints.save(step);
  checkpoints.wait();

  EXPECT_EQ(looks, 4);
  EXPECT_EQ(CheckpointDirectory(directory_).present().size(), 2u);
}

TEST_F(CheckpointsTest, TellWhatWasSavedBesideTheVariables) {
  const Strategy strategy;
  const auto v = strategy.make<Variable>(torch::zeros({}), VariableOptions{.name = "v"});
  Checkpoints checkpoints(strategy, {.directory = directory_});
  EXPECT_THAT(checkpoints.metadata(), testing::IsEmpty()) << "nothing was saved";

  checkpoints.save(1, {{"epoch", "3"}, {"place", "here"}});

  EXPECT_EQ(checkpoints.metadata("epoch"), "3");
  EXPECT_EQ(checkpoints.metadata("loss"), "");
  EXPECT_EQ(checkpoints.metadata(), (std::map<std::string, std::string>{{"epoch", "3"}, {"place", "here"}}));
}

TEST_F(CheckpointsTest, AreSavedAndRestoredWhateverTheNetworkDoes) {
  auto faults = std::make_shared<RpcFaults>(17);
  faults->set("", {.request_lost = 0.2, .response_lost = 0.2, .in_flight = 0.3});
  const ScopedRpcFaults lossy(faults);
  ParameterServerStrategy strategy(cluster_.resolver(), {.attempts = 50});
  auto v = strategy.make<Variable>(torch::zeros({}), VariableOptions{.name = "v"});
  Checkpoints checkpoints(strategy, {.directory = directory_});

  for (int step = 1; step <= 5; ++step) {
    v.assign_add(torch::ones({}));
    checkpoints.save(step);
    v.assign_add(torch::full({}, 100.0F));
    EXPECT_EQ(checkpoints.restore(), step);

    EXPECT_EQ(v.value().item<float>(), step);
  }
  EXPECT_GT(faults->drawn(), 5) << "the network was well behaved after all";
}

TEST_F(CheckpointsTest, LetTrainingGoOnAfterAParameterServerWasLost) {
  ParameterServerStrategy strategy(cluster_.resolver());
  auto a = strategy.make<Variable>(torch::zeros({}), VariableOptions{.name = "a"});
  auto b = strategy.make<Variable>(torch::zeros({}), VariableOptions{.name = "b"});
  Checkpoints checkpoints(strategy, {.directory = directory_});
  auto step = function([&] {
    a.assign_add(torch::ones({}));
    b.assign_add(torch::ones({}));
  });
  {
    ClusterCoordinator coordinator(strategy);
    for (int i = 0; i < 5; ++i) coordinator.schedule(step);
    coordinator.join();
    checkpoints.save(5);
    cluster_.stop({"ps", 1});
    EXPECT_THROW(
        {
          coordinator.schedule(step);
          coordinator.join();
        },
        Error);
  }
  cluster_.start({"ps", 1});

  EXPECT_EQ(checkpoints.restore(), 5);
  ClusterCoordinator coordinator(strategy);
  for (int i = 0; i < 3; ++i) coordinator.schedule(step);
  coordinator.join();

  EXPECT_EQ(a.value().item<float>(), 8);
  EXPECT_EQ(b.value().item<float>(), 8);
}

TEST_F(CheckpointsTest, LetANewCoordinatorGoOnBesideTheOneThatHasEndedButNotBeforeTheRestore) {
  ParameterServerStrategy strategy(cluster_.resolver());
  auto a = strategy.make<Variable>(torch::zeros({}), VariableOptions{.name = "a"});
  auto b = strategy.make<Variable>(torch::zeros({}), VariableOptions{.name = "b"});
  Checkpoints checkpoints(strategy, {.directory = directory_});
  auto step = function([&] {
    a.assign_add(torch::ones({}));
    b.assign_add(torch::ones({}));
  });
  const auto take_a_step = [&](ClusterCoordinator& coordinator) {
    coordinator.schedule(step);
    coordinator.join();
  };
  ClusterCoordinator first(strategy);
  take_a_step(first);
  checkpoints.save(1);
  cluster_.stop({"ps", 1});
  cluster_.start({"ps", 1});

  const Status lost = caught([&] { take_a_step(first); });
  const Status still_lost = caught([&] {
    ClusterCoordinator too_early(strategy);
    take_a_step(too_early);
  });
  EXPECT_EQ(checkpoints.restore(), 1);
  ClusterCoordinator second(strategy);
  take_a_step(second);

  for (const Status& status : {lost, still_lost}) {
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
    EXPECT_EQ(status.task(), "/job:ps/replica:0/task:1");
  }
  EXPECT_EQ(b.value().item<float>(), 2);
  EXPECT_EQ(caught([&] { take_a_step(first); }).code(), StatusCode::kUnavailable)
      << "who holds the one that has ended is told so";
}

TEST_F(CheckpointsTest, SayThatThereIsNothingToBringBackWhatWasLost) {
  ParameterServerStrategy strategy(cluster_.resolver());
  auto a = strategy.make<Variable>(torch::zeros({}), VariableOptions{.name = "a"});
  auto b = strategy.make<Variable>(torch::zeros({}), VariableOptions{.name = "b"});
  Checkpoints checkpoints(strategy, {.directory = directory_});
  EXPECT_EQ(checkpoints.restore(), std::nullopt);
  for (const bool restarted : {false, true}) {
    restarted ? cluster_.start({"ps", 1}) : cluster_.stop({"ps", 1});
    try {
      checkpoints.restore();
      ADD_FAILURE() << "who takes this for a new beginning tries for ever";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), StatusCode::kFailedPrecondition);
      EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("there is no checkpoint in"),
                                               testing::HasSubstr("/job:ps/replica:0/task:1"),
                                               testing::HasSubstr("save one before the first step")));
    }
  }
}

TEST_F(CheckpointsTest, SayThatTheNextRestartTakesALaterOne) {
  ParameterServerStrategy strategy(cluster_.resolver());
  auto a = strategy.make<Variable>(torch::zeros({}), VariableOptions{.name = "a"});
  Checkpoints checkpoints(strategy, {.directory = directory_});
  for (const int64_t step : {10, 20}) checkpoints.save(step);
  LogCapture log;
  checkpoints.restore({.step = 20});
  EXPECT_FALSE(log.contains("later checkpoints"));
  checkpoints.restore({.step = 10});
  EXPECT_TRUE(log.contains("has later checkpoints than that of step 10, up to step 20"));
}

TEST_F(CheckpointsTest, SayWhatDoesNotFit) {
  {
    ParameterServerStrategy strategy(cluster_.resolver());
    auto w = strategy.make<Variable>(torch::ones({4}), VariableOptions{.name = "w"});
    Checkpoints(strategy, {.directory = directory_}).save(1);
  }
  ParameterServerStrategy strategy(cluster_.resolver());
  auto w = strategy.make<Variable>(torch::ones({5}), VariableOptions{.name = "w"});

  try {
    Checkpoints(strategy, {.directory = directory_}).restore();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(error.what(), testing::HasSubstr("variable \"w\" is float32[5]"));
  }
}

// ---- Variables that are made after the restore
TEST_F(CheckpointsTest, FillVariablesThatAreMadeLater) {
  const at::Tensor value = torch::arange(6, torch::kFloat).reshape({6, 1});
  {
    auto strategy = with_shards(cluster_, 2);
    auto w = strategy.make<Variable>(value, VariableOptions{.name = "w"});
    const Adagrad adagrad({w}, {.initial_accumulator = 0.5});
    Checkpoints(strategy, {.directory = directory_}).save(4);
  }
  for (int shards : {2, 1, 3}) {
    auto strategy = with_shards(cluster_, shards);

    EXPECT_EQ(Checkpoints(strategy, {.directory = directory_}).restore({.allow_missing = true}), 4);
    auto w = strategy.make<Variable>(torch::zeros({6, 1}), VariableOptions{.name = "w"});
    const Adagrad adagrad({w});
    auto other = strategy.make<Variable>(torch::ones({6, 1}), VariableOptions{.name = "other"});

    EXPECT_TRUE(torch::equal(w.value(), value)) << shards << " parts";
    EXPECT_TRUE(torch::equal(adagrad.slots()[0].value(), torch::full({6, 1}, 0.5F))) << shards << " parts";
    EXPECT_TRUE(torch::equal(other.value(), torch::ones({6, 1}))) << "the checkpoint has none of this name";
  }
}

TEST_F(CheckpointsTest, KeepTheCountOfStepsOfAnotherNumberOfParts) {
  for (int shards : {1, 2, 3}) {
    auto strategy = with_shards(cluster_, shards);
    auto w = strategy.make<Variable>(torch::ones({6, 1}), VariableOptions{.name = "w"});
    const Adam adam({w}, {.learning_rate = 0.1});
    Checkpoints checkpoints(strategy, {.directory = directory_});
    if (shards > 1) {
      EXPECT_EQ(checkpoints.restore(), shards - 1);
    }
    auto step = function([&] { adam.minimize(w.value().square().sum()); });

    strategy.run(step);
    checkpoints.save(shards);

    const at::Tensor steps = adam.slots()[2].value();
    EXPECT_TRUE(torch::equal(steps, torch::full({std::max<int64_t>(1, shards)}, shards, torch::kDouble))) << steps;
  }
}

TEST_F(CheckpointsTest, FillNothingAfterTheNextOneIsSaved) {
  ParameterServerStrategy strategy(cluster_.resolver());
  Checkpoints checkpoints(strategy, {.directory = directory_});
  {
    ParameterServerStrategy before(cluster_.resolver());
    auto w = before.make<Variable>(torch::ones({2}), VariableOptions{.name = "w"});
    Checkpoints(before, {.directory = directory_}).save(1);
  }
  EXPECT_EQ(checkpoints.restore({.allow_missing = true, .allow_unused = true}), 1);
  auto other = strategy.make<Variable>(torch::ones({2}), VariableOptions{.name = "other"});
  checkpoints.save(2);

  auto w = strategy.make<Variable>(torch::zeros({2}), VariableOptions{.name = "w"});

  EXPECT_TRUE(torch::equal(w.value(), torch::zeros({2})));
}

TEST_F(CheckpointsTest, SayWhatDoesNotFitAVariableThatIsMadeLater) {
  {
    ParameterServerStrategy strategy(cluster_.resolver());
    auto w = strategy.make<Variable>(torch::ones({4}), VariableOptions{.name = "w"});
    Checkpoints(strategy, {.directory = directory_}).save(1);
  }
  ParameterServerStrategy strategy(cluster_.resolver());
  Checkpoints(strategy, {.directory = directory_}).restore();

  try {
    strategy.make<Variable>(torch::ones({5}), VariableOptions{.name = "w"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(error.what(), testing::HasSubstr("variable \"w\" is float32[5]"));
  }
}

TEST_F(CheckpointsTest, TellVariablesOfOneNameApart) {
  auto strategy = with_shards(cluster_, 2);
  auto a = strategy.make<Variable>(torch::zeros({4}), VariableOptions{.name = "w"});
  auto b = strategy.make<Variable>(torch::ones({4}), VariableOptions{.name = "w"});
  Checkpoints checkpoints(strategy, {.directory = directory_});
  checkpoints.save(1);
  a.assign(torch::full({4}, 7.0F));
  b.assign(torch::full({4}, 7.0F));

  checkpoints.restore();

  EXPECT_TRUE(torch::equal(a.value(), torch::zeros({4})));
  EXPECT_TRUE(torch::equal(b.value(), torch::ones({4})));
}

// ---- Rows on demand
TEST_F(CheckpointsTest, KeepTheRowsThatWereWrittenAndTheRuleForTheOthers) {
  constexpr int64_t kRows = testing_support::kHugeTableRows;
  const at::Tensor ids = torch::tensor({int64_t{3}, kRows / 2, kRows - 1}), others = ids - 1;
  auto make = [&](ParameterServerStrategy& strategy, uint64_t seed) {
    return strategy.make<Variable>(InitialValue::normal({kRows, 64}, 0, 1, seed).on_demand(),
                                   VariableOptions{.name = "table"});
  };
  at::Tensor written, untouched;
  {
    auto strategy = with_shards(cluster_, 2);
    auto table = make(strategy, 5);
    const Adagrad adagrad({table}, {.learning_rate = 0.1});
    auto step = function([&](at::Tensor at) { adagrad.minimize(lookup(table, at).sum()); });
    auto read = function([&](at::Tensor at) { return lookup(table, at); });
    strategy.run(step, ids);
    written = strategy.run(read, ids);
    untouched = strategy.run(read, others);
    Checkpoints(strategy, {.directory = directory_}).save(1);
  }
  for (int shards : {2, 3, 1}) {
    auto strategy = with_shards(cluster_, shards);
    auto table = make(strategy, 99);
    const Adagrad adagrad({table});

    EXPECT_EQ(Checkpoints(strategy, {.directory = directory_}).restore(), 1);

    auto read = function([&](at::Tensor at) { return lookup(table, at); });
    EXPECT_TRUE(torch::equal(strategy.run(read, ids).value(), written)) << shards << " parts";
    EXPECT_TRUE(torch::equal(strategy.run(read, others).value(), untouched)) << shards << " parts";
    auto sums = function([&](at::Tensor at) { return lookup(adagrad.slots()[0], at); });
    EXPECT_TRUE(torch::equal(strategy.run(sums, ids).value().cpu(), torch::ones({3, 64})));
    EXPECT_TRUE(torch::equal(strategy.run(sums, others).value().cpu(), torch::zeros({3, 64})));
  }
}

// ---- Without parameter servers, and with them
TEST_F(CheckpointsTest, ForgetTheVariablesOfAModuleThatIsGone) {
  const std::vector<std::string> devices{"/device:CPU:0", "/device:CPU:1"};
  for (const Strategy& strategy :
       {Strategy(), Strategy(MirroredStrategy(devices)), Strategy(ParameterServerStrategy(cluster_.resolver()))}) {
    std::filesystem::remove_all(directory_);
    const auto kept = strategy.make<Variable>(torch::ones({2}), VariableOptions{.name = "kept"});
    Checkpoints checkpoints(strategy, {.directory = directory_});
    checkpoints.save(1);
    auto net = strategy.make<torch::nn::Linear>(2, 1);
    checkpoints.save(2);
    net = nullptr;
    checkpoints.save(3);

    for (const int64_t without : {1, 3}) {
      EXPECT_EQ(checkpoints.restore({.step = without}), without);
      checkpoints.finish_restore();
    }

    EXPECT_EQ(checkpoints.restore({.step = 2}), 2);
    EXPECT_THAT(caught([&] { checkpoints.finish_restore(); }).message(), testing::HasSubstr("\"weight\""));
  }
}

TEST(CheckpointsHere, GoFromOneStrategyToAnother) {
  const std::string directory = ::testing::TempDir() + "/checkpoints_here";
  std::filesystem::remove_all(directory);
  auto train = [&directory](const Strategy& strategy, int steps, const std::function<void(const Sgd&)>& first) {
    torch::manual_seed(4);
    auto net = strategy.make<torch::nn::Linear>(3, 1);
    const Sgd sgd(net, {.learning_rate = 0.1, .momentum = 0.9});
    first(sgd);
    auto step = function([&](at::Tensor x) { sgd.minimize(net->forward(x).square().mean()); });
    for (int i = 0; i < steps; ++i) strategy.run(step, torch::full({4, 3}, 0.5F));
    if (steps == 2) Checkpoints(strategy, {.directory = directory}).save(2);
    return adopted(net).at("weight").value().clone();
  };
  const at::Tensor whole = train(Strategy(), 5, [](const Sgd&) {});
  const std::vector<std::string> devices{"/device:CPU:0", "/device:CPU:1"};
  train(MirroredStrategy(devices), 2, [](const Sgd&) {});

  for (int kind : {0, 1, 2}) {
    const Strategy strategy = kind == 0   ? Strategy()
                              : kind == 1 ? Strategy(MirroredStrategy(devices))
                                          : Strategy(OneDeviceStrategy(devices[1]));
    const at::Tensor resumed = train(strategy, 3, [&](const Sgd& sgd) {
      EXPECT_EQ(Checkpoints(strategy, {.directory = directory}).restore(), 2);
      for (const Variable& slot : sgd.slots()) {
        for (const Variable& copy : slot.copies()) EXPECT_TRUE(torch::equal(copy.value(), slot.value()));
      }
    });
    EXPECT_TRUE(torch::allclose(resumed, whole, 1e-4, 1e-6));
  }

  Variable other(torch::ones({2}), {.name = "of_another_program"});
  LogCapture log;
  try {
    Checkpoints(Strategy(), {.directory = directory}).restore();
    FAIL() << "the checkpoint has no such variable";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kNotFound);
    EXPECT_THAT(error.what(), testing::HasSubstr("no values for \"of_another_program\""));
  }
  EXPECT_EQ(Checkpoints(Strategy(), {.directory = directory}).restore({.allow_missing = true}), 2);
  EXPECT_TRUE(log.contains("for which no variable was made"));
}

TEST(CheckpointsHere, FillVariablesThatAreMadeLaterUnderEveryStrategy) {
  const std::string directory = ::testing::TempDir() + "/checkpoints_made_later";
  std::filesystem::remove_all(directory);
  const std::vector<std::string> devices{"/device:CPU:0", "/device:CPU:1"};
  {
    const Variable w(torch::full({2}, 3.0F), {.name = "w"});
    const Sgd sgd({w}, {.momentum = 0.9});
    sgd.slots()[0].state()->cell->assign(torch::full({2}, 4.0F));
    Checkpoints(Strategy(), {.directory = directory}).save(1);
  }
  for (const Strategy& strategy :
       {Strategy(), Strategy(MirroredStrategy(devices)), Strategy(OneDeviceStrategy(devices[1])),
        Strategy(CentralStorageStrategy(devices))}) {
    Checkpoints checkpoints(strategy, {.directory = directory});
    EXPECT_EQ(checkpoints.restore(), 1);

    const auto w = strategy.make<Variable>(torch::zeros({2}), VariableOptions{.name = "w"});
    const Sgd sgd({w}, {.momentum = 0.9});
    checkpoints.finish_restore();
    const auto late = strategy.make<Variable>(torch::ones({2}), VariableOptions{.name = "late"});

    for (const Variable& copy : w.copies()) EXPECT_TRUE(torch::equal(copy.value(), torch::full({2}, 3.0F)));
    EXPECT_TRUE(torch::equal(w.value(), torch::full({2}, 3.0F)));
    EXPECT_TRUE(torch::equal(sgd.slots()[0].value(), torch::full({2}, 4.0F)));
    EXPECT_TRUE(torch::equal(late.value(), torch::ones({2})));
  }
}

TEST(CheckpointsHere, KeepWhatReplicasHaveTogether) {
  const std::string directory = ::testing::TempDir() + "/checkpoints_put_together";
  std::filesystem::remove_all(directory);
  const std::vector<std::string> devices{"/device:CPU:0", "/device:CPU:1"};
  auto made = [](const Strategy& strategy, const char* name, Aggregation aggregation) {
    return strategy.make<Variable>(
        torch::zeros({2}),
        VariableOptions{.name = name, .aggregation = aggregation, .synchronization = Synchronization::kOnRead});
  };
  {
    const MirroredStrategy strategy(devices);
    Variable sum = made(strategy, "sum", Aggregation::kSum), mean = made(strategy, "mean", Aggregation::kMean);
    strategy.run(function([&] {
      sum.assign_add(torch::full({2}, replica_id() + 1.0F));
      mean.assign_add(torch::full({2}, replica_id() + 1.0F));
    }));
    Checkpoints(strategy, {.directory = directory}).save(1);
  }

  for (const Strategy& strategy : {Strategy(), Strategy(MirroredStrategy(devices))}) {
    Variable sum = made(strategy, "sum", Aggregation::kSum);
    Checkpoints checkpoints(strategy, {.directory = directory});
    EXPECT_EQ(checkpoints.restore(), 1);
    const Variable mean = made(strategy, "mean", Aggregation::kMean);
    Variable again = sum;
    again.assign_add(torch::ones({2}));

    EXPECT_TRUE(sum.value().equal(torch::full({2}, 4.0F))) << sum.value();
    EXPECT_TRUE(mean.value().equal(torch::full({2}, 1.5F))) << mean.value();
  }
}

TEST(CheckpointsHere, NameWhatHasNoValueThatAllReplicasHaveTogether) {
  const std::string directory = ::testing::TempDir() + "/checkpoints_of_nothing_together";
  for (const char* which : {"", "_chosen"}) std::filesystem::remove_all(directory + which);
  const MirroredStrategy strategy({"/device:CPU:0", "/device:CPU:1"});
  const auto sum = strategy.make<Variable>(
      torch::ones({2}),
      VariableOptions{.name = "sum", .aggregation = Aggregation::kSum, .synchronization = Synchronization::kOnRead});
  const Variable w = strategy.make<Variable>(torch::ones({2}), VariableOptions{.name = "w"});
  {
    const auto none = strategy.make<Variable>(
        torch::zeros({2}), VariableOptions{.name = "none", .synchronization = Synchronization::kOnRead});
    Checkpoints checkpoints(strategy, {.directory = directory});

    const Status refused = caught([&] { checkpoints.save(1); });
    Checkpoints(strategy, {.directory = directory + "_chosen", .objects = {{"sum", sum}}}).save(1);

    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(refused.message(),
                testing::AllOf(testing::HasSubstr("variable \"none\" cannot be saved: each of 2 replicas has its own"),
                               testing::HasSubstr("VariableOptions::aggregation"),
                               testing::HasSubstr("CheckpointsOptions::objects")));
    EXPECT_FALSE(checkpoints.newest());
  }
  Checkpoints(strategy, {.directory = directory}).save(1);  // "w" has none either, and one value
}

}  // namespace
}  // namespace muster

// What restore takes and what it refuses: damaged checkpoints, disks that fail, variables that do not fit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <thread>

#include "muster/base/log.h"
#include "muster/base/test_errors.h"
#include "muster/cluster/cluster_peers.h"
#include "muster/cluster/in_process_cluster.h"
#include "muster/distribute/coordinator/cluster_coordinator.h"
#include "muster/distribute/servers/parameter_server_strategy.h"
#include "muster/io/disk.h"
#include "muster/train/checkpoints.h"

namespace muster {
namespace {

using testing_support::caught;

using ::testing::AllOf;
using ::testing::HasSubstr;

class RestoreTest : public testing::Test {
 protected:
  ~RestoreTest() override { std::filesystem::remove_all(directory_); }

  // A variable that is 1 in every place at step 1, 2 at step 2, and is 9 now; half of it on each server.
  void save_twice() {
    w_ = make("w", 1);
    checkpoints_.save(1);
    w_->assign(torch::full({100}, 2.0F));
    checkpoints_.save(2);
    w_->assign(torch::full({100}, 9.0F));
  }
  Variable make(const std::string& name, double value) const {
    return strategy_.make<Variable>(torch::full({100}, value), VariableOptions{.name = name});
  }
  void expect_all(double value) { EXPECT_TRUE(torch::equal(w_->value(), torch::full({100}, value))) << w_->value(); }

  std::string file(int step, int server) const {
    return directory_ + "/ckpt-" + std::to_string(step) + "/shard-job-ps-replica-0-task-" + std::to_string(server) +
           ".safetensors";
  }
  void truncate(int step) const { std::filesystem::resize_file(file(step, 0), 100); }
  void change_a_byte(int step, int server) const {
    std::fstream damaged(file(step, server), std::ios::in | std::ios::out | std::ios::binary);
    damaged.seekp(-10, std::ios::end);
    damaged.put('x');
  }
  Status restore(const RestoreOptions& options = {}) {
    try {
      restored_ = checkpoints_.restore(options);
      return {};
    } catch (const Error& error) {
      return error.status();
    }
  }

  const std::string directory_ = testing::TempDir() + "restore-" + std::to_string(random_id());
  InProcessCluster cluster_{{.workers = 1, .ps = 2, .worker = {.storage = {testing::TempDir()}}}};
  ParameterServerStrategy strategy_{cluster_.resolver(), {.partitioner = FixedShardsPartitioner{.num_shards = 2}}};
  Checkpoints checkpoints_{strategy_, {.directory = directory_}};
  std::optional<Variable> w_;
  std::optional<int64_t> restored_;
};

// ---- Damage
TEST_F(RestoreTest, SaysThatThereIsNothingToRestore) {
  LogCapture log;

  EXPECT_EQ(checkpoints_.restore(), std::nullopt);

  const LogLine warning{LogLevel::kWarning, "there is no checkpoint in " + directory_ +
                                                ", which does not exist: nothing is restored, variables have the "
                                                "values that they had"};
  EXPECT_THAT(log.lines(), ::testing::Contains(warning)) << "it may be a directory that was mistyped";
}

TEST_F(RestoreTest, SaysNothingWhereThereMayBeNothing) {
  const LogCapture log;

  EXPECT_EQ(checkpoints_.restore({.may_be_none = true}), std::nullopt);

  EXPECT_FALSE(log.contains("there is no checkpoint"));
}

TEST_F(RestoreTest, TakesTheOneBeforeWhenTheNewestIsDamagedAndSaysSo) {
  save_twice();
  for (const auto& damage : {std::function<void()>([&] { change_a_byte(2, 1); }), {[&] { truncate(2); }}}) {
    damage();
    LogCapture log;

    EXPECT_EQ(checkpoints_.restore(), 1);

    expect_all(1);
    EXPECT_TRUE(log.contains("ckpt-2 is damaged and passed over: "));
    EXPECT_TRUE(log.contains("restored 2 variables from " + directory_ + "/ckpt-1"));
    w_->assign(torch::full({100}, 9.0F));
  }
}

TEST_F(RestoreTest, RefusesToBeginAnewWhenAllAreDamagedUnlessItIsTold) {
  save_twice();
  truncate(1);
  change_a_byte(2, 0);

  const Status status = restore();

  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("all checkpoints in " + directory_), HasSubstr("begin_anew"),
                                      HasSubstr("step 2: variable \"w\""), HasSubstr("step 1: ")));
  expect_all(9);
  LogCapture log;
  EXPECT_EQ(checkpoints_.restore({.begin_anew = true}), std::nullopt);
  EXPECT_TRUE(log.contains("are damaged: nothing is restored"));
  expect_all(9);
}

TEST_F(RestoreTest, CountsADamagedOneOnceThoughAnotherIsRemovedMeanwhile) {
  save_twice();
  truncate(2);
  std::atomic<bool> removed = false;
  const disk::ScopedFaults another_job([&](std::string_view, const std::string& path) {
    const std::string older = directory_ + "/ckpt-1";
    if (path.starts_with(older + "/") && !removed.exchange(true)) std::filesystem::remove_all(older);
    return 0;
  });

  const Status status = restore();

  EXPECT_TRUE(removed);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
  EXPECT_THAT(status.message(), HasSubstr("the only checkpoint in " + directory_ + " is damaged"));
}

TEST_F(RestoreTest, TakesTheStepThatIsAskedForAndNoOther) {
  save_twice();

  EXPECT_EQ(checkpoints_.restore({.step = 1}), 1);
  expect_all(1);

  truncate(2);
  EXPECT_EQ(restore({.step = 2, .begin_anew = true}).code(), StatusCode::kDataLoss);
  EXPECT_EQ(restore({.step = 3}).code(), StatusCode::kNotFound);
}

TEST_F(RestoreTest, SaysNothingToWhoeverOnlyLooks) {
  save_twice();
  const LogCapture log;

  EXPECT_EQ(checkpoints_.restore({.step = 1, .only_to_look = true}), 1);

  expect_all(1);
  EXPECT_FALSE(log.contains("later checkpoints"));
  EXPECT_FALSE(log.contains("restored"));
}

TEST_F(RestoreTest, DoesNotTellWhoeverOnlyLooksWhatTheCheckpointHasMoreOrLess) {
  {
    auto gone = make("gone", 1);
    checkpoints_.save(1);
  }
  auto late = make("late", 5);
  const LogCapture log;

  EXPECT_EQ(checkpoints_.restore({.step = 1, .allow_missing = true, .allow_unused = true, .only_to_look = true}), 1);

  EXPECT_FALSE(log.contains("values for"));
}

TEST_F(RestoreTest, LooksAgainWhenSomebodyElseHasRemovedWhatItFound) {
  save_twice();
  Checkpoints others(strategy_, {.directory = directory_, .keep = 1});
  std::atomic<bool> done = false;
  const std::jthread saver([&] {
    for (int64_t step = 3; step < 60; ++step) others.save(step);
    done = true;
  });

  while (!done) {
    const Status status = restore();
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) break;
  }
}

TEST_F(RestoreTest, LetsTheStepThatWasPassedOverBeSavedAgain) {
  save_twice();
  change_a_byte(2, 1);
  LogCapture quiet;
  EXPECT_EQ(checkpoints_.restore(), 1);

  checkpoints_.save(2);
  w_->assign(torch::full({100}, 9.0F));

  EXPECT_EQ(checkpoints_.restore(), 2);
  expect_all(1);
}

TEST_F(RestoreTest, DoesNotPassOverACheckpointOfALaterVersion) {
  save_twice();
  std::filesystem::create_directory(directory_ + "/ckpt-3");
  std::ofstream(directory_ + "/ckpt-3/index.json")
      << R"({"checksum":"c93007bf","format":"muster checkpoint","version":3})";

  EXPECT_EQ(restore().code(), StatusCode::kFailedPrecondition);

  EXPECT_EQ(checkpoints_.restore({.step = 2}), 2);
}

// ---- Disks that fail
TEST_F(RestoreTest, WaitsForADiskThatIsAwayForAMoment) {
  save_twice();
  std::map<std::string, int> calls;
  disk::ScopedFaults faults([&](std::string_view call, const std::string& path) {
    return path.find("ckpt-") != std::string::npos && ++calls[std::string(call) + path] <= 2 ? EIO : 0;
  });

  EXPECT_EQ(checkpoints_.restore(), 2);

  expect_all(2);
}

TEST_F(RestoreTest, NeverTakesAnOlderOneBecauseTheDiskFails) {
  save_twice();
  for (int error : {EIO, ESTALE}) {
    for (const std::string& failing : {directory_ + "/ckpt-2/index.json", file(2, 0), file(2, 1)}) {
      disk::ScopedFaults faults([&](std::string_view call, const std::string& path) {
        return call == "pread" && path == failing ? error : 0;
      });

      const Status status = restore();

      EXPECT_EQ(status.code(), StatusCode::kUnavailable);
      EXPECT_THAT(status.message(), HasSubstr(failing));
      expect_all(9);
    }
  }
  EXPECT_EQ(checkpoints_.restore(), 2);
}

TEST_F(RestoreTest, NeedsNoDiskAfterAllHaveLookedForWhatThereIsRoomFor) {
  save_twice();
  disk::ScopedFaults faults([&](std::string_view call, const std::string& path) {
    if (call == "close" && path == file(2, 0)) std::filesystem::remove(path);  // what it has read is closed
    return 0;
  });

  EXPECT_EQ(restore(), Status());

  EXPECT_FALSE(std::filesystem::exists(file(2, 0)));
  EXPECT_EQ(restored_, 2);
  expect_all(2);
}

TEST_F(RestoreTest, SaysThatSomeVariablesHaveChangedWhenTheDiskFailsAfterAllHaveLooked) {
  // Of rows on demand nobody knows before how much memory they take: they are read twice.
  const auto on_demand = [&](const std::string& name) {
    return strategy_.make<Variable>(InitialValue::constant({100, 1}, 1).on_demand(), VariableOptions{.name = name});
  };
  auto a = on_demand("a"), b = on_demand("b");
  checkpoints_.save(1);
  int calls_of_a_look = 0;
  {
    disk::ScopedFaults count([&](std::string_view call, const std::string& path) {
      if (call.starts_with("pread") && path == file(1, 0)) ++calls_of_a_look;  // from the cache, too
      return 0;
    });
    EXPECT_EQ(checkpoints_.restore(), 1);
  }
  calls_of_a_look /= 2;
  disk::ScopedFaults faults([&, calls = 0](std::string_view call, const std::string& path) mutable {
    if (!call.starts_with("pread") || path != file(1, 0)) return 0;
    return ++calls >= 2 * calls_of_a_look ? EIO : 0;  // the last variable of the second time
  });

  const Status status = restore();

  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("1 of 2 variables"), HasSubstr("restore again")));
}

TEST_F(RestoreTest, SaysWhatIsWrongWhenTheLastSyncOfASaveFails) {
  auto w = make("w", 1);
  std::optional<Status> status;
  {
    disk::ScopedFaults faults([&](std::string_view call, const std::string& path) {
      return call == "fsync" && path == directory_ ? EIO : 0;
    });
    try {
      checkpoints_.save(1);
    } catch (const Error& error) {
      status = error.status();
    }
  }

  ASSERT_TRUE(status);
  EXPECT_THAT(status->message(), HasSubstr("fsync: Input/output error"));
  EXPECT_EQ(checkpoints_.restore(), 1);
}

TEST_F(RestoreTest, IsGoodForACheckpointThatWasSavedToADiskThatWasAwayForAMoment) {
  auto w = make("w", 3);
  {
    std::map<std::string, int> calls;
    disk::ScopedFaults faults([&](std::string_view call, const std::string& path) {
      const bool data = path.ends_with(".safetensors") && (call == "write" || call == "fsync");
      return data && ++calls[std::string(call) + path] <= 2 ? EIO : 0;
    });
    checkpoints_.save(1);
  }

  EXPECT_EQ(checkpoints_.restore(), 1);
}

// ---- All or nothing
TEST_F(RestoreTest, ChangesNothingWhenOneServerCannotReadItsPart) {
  save_twice();
  change_a_byte(1, 1);
  change_a_byte(2, 1);

  EXPECT_EQ(restore().code(), StatusCode::kDataLoss);

  expect_all(9);
}

TEST_F(RestoreTest, LeavesNothingAtTheServersThatCouldWhenAnotherOneCannot) {
  save_twice();
  change_a_byte(1, 1);
  change_a_byte(2, 1);
  EXPECT_EQ(restore().code(), StatusCode::kDataLoss);

  std::filesystem::remove(file(1, 0));  // which the first one has read
  LocalWorker& first = cluster_.worker({"ps", 0});
  const StoredVariable half{.name = first.variables().at(0).name,
                            .spec = {DType::kFloat, {50}},
                            .device = "/job:ps/replica:0/task:0/device:CPU:0",
                            .whole = "w",
                            .whole_sizes = {100}};
  const Status status = caught([&] { first.restore(directory_ + "/ckpt-1", {half}, RestoreStage::kApply); });

  EXPECT_FALSE(status.ok()) << "it still has what it read for a restore that has failed";
  expect_all(9);
}

TEST_F(RestoreTest, ChangesNothingWhenOneVariableDoesNotFit) {
  {
    ParameterServerStrategy before(cluster_.resolver());
    auto w = before.make<Variable>(torch::ones({100}), VariableOptions{.name = "w"});
    auto z = before.make<Variable>(torch::ones({4}), VariableOptions{.name = "z"});
    Checkpoints(before, {.directory = directory_}).save(1);
  }
  w_ = make("w", 9);
  auto z = strategy_.make<Variable>(torch::ones({5}), VariableOptions{.name = "z"});

  const Status status = restore();

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("variable \"z\" is float32[5], but checkpoint"));
  expect_all(9);
}

TEST_F(RestoreTest, DoesNotTakeARestartedServerForTheOneThatItWasWhenItFails) {
  save_twice();
  truncate(1);
  truncate(2);
  cluster_.stop({"ps", 1});
  cluster_.start({"ps", 1});

  EXPECT_EQ(restore().code(), StatusCode::kDataLoss);

  try {
    (void)w_->value();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("was restarted and has lost its variables"));
  }
}

TEST_F(RestoreTest, LeavesWhatItDoesNotBringBackLostWithItsServerUntilItIsAssigned) {
  save_twice();
  auto late = make("late", 5);
  cluster_.stop({"ps", 1});
  cluster_.start({"ps", 1});
  EXPECT_EQ(checkpoints_.restore({.allow_missing = true}), 2);
  expect_all(2);
  ClusterCoordinator coordinator(strategy_);
  auto use = function([&] { return late.value().sum(); });

  const Status read = caught([&] { (void)late.value(); });
  const Status saved = caught([&] { checkpoints_.save(3); });
  const Status used = caught([&] {
    coordinator.schedule(use);
    coordinator.join();
  });

  for (const Status& lost : {read, saved, used}) {
    EXPECT_EQ(lost.code(), StatusCode::kUnavailable) << lost;
    EXPECT_THAT(lost.message(), AllOf(HasSubstr("variable \"late/part_1\" was lost with /job:ps/replica:0/task:1"),
                                      HasSubstr("Checkpoints::restore()"), HasSubstr("assign()")));
  }
  late.assign(torch::full({100}, 6.0F));
  EXPECT_TRUE(torch::equal(late.value(), torch::full({100}, 6.0F)));
  checkpoints_.save(3);
}

// ---- Variables that only one of the two has
TEST_F(RestoreTest, NamesTheVariablesThatTheCheckpointHasNotUnlessTheyMayBeMissing) {
  save_twice();
  auto late = make("late", 5), other = make("other", 5);

  const Status status = restore();

  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("ckpt-2 has no values for \"late\", \"other\""), HasSubstr("allow_missing")));
  expect_all(9);
  LogCapture log;
  EXPECT_EQ(checkpoints_.restore({.allow_missing = true}), 2);
  expect_all(2);
  EXPECT_TRUE(torch::equal(late.value(), torch::full({100}, 5.0F)));
  EXPECT_TRUE(log.contains("has no values for \"late\", \"other\""));
}

TEST_F(RestoreTest, NamesAVariableThatTheCheckpointHasNotAlsoWhenItIsMadeLater) {
  save_twice();
  EXPECT_EQ(checkpoints_.restore(), 2);

  try {
    make("late", 5);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kNotFound);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("ckpt-2 has no values for \"late\""), HasSubstr("allow_missing")));
  }
  EXPECT_EQ(checkpoints_.restore({.allow_missing = true}), 2);
  LogCapture log;
  EXPECT_TRUE(torch::equal(make("later", 5).value(), torch::full({100}, 5.0F)));
  EXPECT_TRUE(log.contains("has no value for \"later\", which begins anew"));
}

TEST_F(RestoreTest, TellsWhatTheCheckpointHasAndNobodyAskedFor) {
  {
    auto a = make("a", 1), b = make("b", 1), c = make("c", 1);
    checkpoints_.save(1);
  }
  auto renamed = make("a", 0);  // the first one keeps its name on the server: this one is a_1
  LogCapture log;
  const Status refused = restore();
  EXPECT_EQ(checkpoints_.restore({.allow_missing = true}), 1);
  EXPECT_TRUE(log.contains("also has values for \"a\", \"b\", \"c\", which are not made yet"));
  const Status too_much = testing_support::caught([&] { checkpoints_.save(2); });
  const Status still = testing_support::caught([&] { checkpoints_.save_async(2); });
  EXPECT_EQ(checkpoints_.restore({.allow_missing = true, .allow_unused = true}), 1);

  checkpoints_.save(2);

  EXPECT_EQ(too_much.code(), StatusCode::kNotFound);
  EXPECT_THAT(too_much.message(), HasSubstr("has values for \"a\", \"b\", \"c\", which nobody has asked for"));
  EXPECT_EQ(still.code(), StatusCode::kNotFound);

  EXPECT_THAT(refused.message(),
              HasSubstr("no values for \"a_1\", but for \"a\", \"b\", \"c\", which nobody has asked for"));
  EXPECT_TRUE(log.contains("has values for \"a\", \"b\", \"c\", for which no variable was made"));
}

TEST_F(RestoreTest, TellsNothingAboutWhatWasMadeLater) {
  save_twice();
  w_.reset();
  ParameterServerStrategy strategy(cluster_.resolver());
  Checkpoints checkpoints(strategy, {.directory = directory_});
  LogCapture log;
  EXPECT_EQ(checkpoints.restore(), 2);
  auto w = strategy.make<Variable>(torch::zeros({100}), VariableOptions{.name = "w"});

  checkpoints.save(3);

  EXPECT_FALSE(log.contains("for which no variable was made"));
}

// ---- Time
// Calls of a worker that end after a millisecond, unless they may take as long as they take.
TEST_F(RestoreTest, MayTakeLongerThanOtherCalls) {
  ClusterPeers impatient(cluster_.spec(), {.call_timeout = std::chrono::milliseconds(1)});
  const auto server = impatient.worker("/job:ps/replica:0/task:0");
  const TensorSpec spec{DType::kFloat, {2}};
  cluster_.worker({"ps", 0}).store().declare("x", spec, at::kCPU)->assign(torch::ones({2}));
  const std::vector<StoredVariable> stored{
      {"x", spec, cluster_.worker({"ps", 0}).devices().names()[0], "x", spec.sizes, 0}};
  CheckpointDirectory directory(directory_);
  const std::string temporary = directory.begin(1);
  // A slow disk: every call ends long after the deadline of whoever began before it.
  disk::ScopedFaults slow([](std::string_view, const std::string&) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(5);
    while (std::chrono::steady_clock::now() < end) std::this_thread::yield();
    return 0;
  });

  const auto entries = server->save(temporary, stored, {});
  const std::string path = directory.commit(temporary, {.step = 1, .entries = entries});
  server->restore(path, stored, RestoreStage::kCheck);
  server->restore(path, stored, RestoreStage::kApply);

  EXPECT_EQ(cluster_.worker({"ps", 0}).store().find("x")->version(), 2u);
}

// ---- Without servers
TEST(RestoreHere, NamesWhatIsMissingAndWhatIsTooMuchByTheSameRule) {
  const std::string directory = ::testing::TempDir() + "/checkpoints_by_one_rule";
  std::filesystem::remove_all(directory);
  {
    const Variable a(torch::zeros({2}), {.name = "a"}), b(torch::zeros({2}), {.name = "b"});
    Checkpoints(Strategy(), {.directory = directory}).save(1);
  }
  const Variable a(torch::ones({2}), {.name = "a"});
  {
    Checkpoints checkpoints(Strategy(), {.directory = directory});
    EXPECT_EQ(checkpoints.restore(), 1);
    const Status missing = caught([] { Variable(torch::zeros({2}), {.name = "c"}); });
    EXPECT_EQ(missing.code(), StatusCode::kNotFound);
    EXPECT_THAT(missing.message(), HasSubstr("has no values for \"c\", but for \"b\""));
    for (const Status& unused : {caught([&] { checkpoints.finish_restore(); }), caught([&] { checkpoints.save(2); })}) {
      EXPECT_EQ(unused.code(), StatusCode::kNotFound);
      EXPECT_THAT(unused.message(), AllOf(HasSubstr("ckpt-1 has values for \"b\""), HasSubstr("allow_unused")));
    }
    EXPECT_EQ(checkpoints.restore({.allow_unused = true}), 1);
    checkpoints.finish_restore();
    checkpoints.save(2);
  }
  const Variable later(torch::ones({2}), {.name = "b"});
  EXPECT_TRUE(torch::equal(later.value(), torch::ones({2}))) << "nobody restores any more";
}

// ---- Directories
TEST_F(RestoreTest, IsRefusedWhereTheServersOwnerHasNamedNoDirectory) {
  InProcessCluster strict({.workers = 1, .ps = 1});
  ParameterServerStrategy strategy(strict.resolver());
  auto w = strategy.make<Variable>(torch::ones({2}), VariableOptions{.name = "w"});
  Checkpoints checkpoints(strategy, {.directory = directory_});

  try {
    checkpoints.save(1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kPermissionDenied);
    EXPECT_THAT(error.what(), AllOf(HasSubstr(directory_), HasSubstr("--storage")));
  }
  EXPECT_EQ(checkpoints.restore(), std::nullopt);
}

}  // namespace
}  // namespace muster

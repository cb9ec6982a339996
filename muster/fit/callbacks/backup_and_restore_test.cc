#include "muster/fit/callbacks/backup_and_restore.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "muster/base/log.h"
#include "muster/base/test_errors.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/fit/callbacks/callbacks.h"
#include "muster/fit/model.h"
#include "muster/fit/test_callbacks.h"
#include "muster/io/checkpoint_directory.h"
#include "muster/io/checkpoint_reader.h"
#include "muster/train/checkpoints.h"
#include "muster/train/embedding.h"

namespace muster::backup_and_restore_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;
using testing_support::dies_in;

class FitWithBackup : public testing_support::CallbacksTest {};

TEST_F(FitWithBackup, GoesOnWhereAJobWasLost) {
  const std::string backup = in("backup");
  double whole = 0;
  {
    Model trained = model();
    trained.fit(data_, {.epochs = 4, .verbose = 0});
    whole = weight_of(trained);
  }
  {
    Model trained = model();
    EXPECT_THROW(trained.fit(data_, {.epochs = 4, .callbacks = {BackupAndRestore({backup}), dies_in(2)}, .verbose = 0}),
                 Error);
    EXPECT_TRUE(std::filesystem::exists(backup));
  }
  Model trained = model();
  LogCapture log;

  const History history = trained.fit(data_, {.epochs = 4, .callbacks = {BackupAndRestore({backup})}, .verbose = 0});

  EXPECT_THAT(history.epochs(), ElementsAre(2, 3));
  EXPECT_NEAR(weight_of(trained), whole, 1e-6);
  EXPECT_FALSE(std::filesystem::exists(backup));
  EXPECT_TRUE(log.contains("fit goes on with epoch 3 of 4"));
}

TEST_F(FitWithBackup, SaysOnceAndInItsOwnWordsThatABackupIsDamaged) {
  const std::string backup = in("backup");
  EXPECT_THROW(model().fit(data_, {.epochs = 4, .callbacks = {BackupAndRestore({backup}), dies_in(2)}, .verbose = 0}),
               Error);
  for (const Checkpoint& each : CheckpointDirectory(backup).present()) {
    std::ofstream(each.path + "/index.json") << "null";
  }
  LogCapture log;

  const std::string message = testing_support::message_of(
      [&] { model().fit(data_, {.epochs = 4, .callbacks = {BackupAndRestore({backup})}, .verbose = 0}); });

  EXPECT_THAT(message, AllOf(HasSubstr("an entry is missing, or of another kind than expected"),
                             Not(HasSubstr("json.exception"))));
  EXPECT_FALSE(log.contains("is damaged")) << "the error says it";
}

TEST_F(FitWithBackup, GoesOnInTheDataWhereTheEpochBeforeHadEnded) {
  const auto options = [](Callbacks callbacks) {  // three of four batches
    return FitOptions{.epochs = 4, .steps_per_epoch = 3, .callbacks = std::move(callbacks), .verbose = 0};
  };
  const Dataset shuffled = Dataset::tensors({x_, y_}).shuffle(32, 5).batch(8);
  int number = 0;
  for (const Dataset& data : {data_.repeat(), shuffled.repeat(), shuffled.cache().repeat()}) {
    const std::string backup = in("backup" + std::to_string(++number));
    double whole = 0;
    {
      Model trained = model();
      trained.fit(data, options({}));
      whole = weight_of(trained);
    }
    EXPECT_THROW(model().fit(data, options({BackupAndRestore({backup}), dies_in(2)})), Error);
    Model trained = model();

    const History history = trained.fit(data, options({BackupAndRestore({backup})}));

    EXPECT_THAT(history.epochs(), ElementsAre(2, 3));
    EXPECT_NEAR(weight_of(trained), whole, 1e-6) << "data " << number;
  }
}

TEST_F(FitWithBackup, BeginsWithTheFirstElementOfOtherData) {
  const auto fit = [&](const at::Tensor& x, Callbacks callbacks) {
    Model trained = model();
    return trained.fit(Dataset::tensors({x, y_}).batch(8).repeat(),
                       {.epochs = 4, .steps_per_epoch = 3, .callbacks = std::move(callbacks), .verbose = 0});
  };
  EXPECT_THROW(fit(x_, {BackupAndRestore({in("backup")}), dies_in(2)}), Error);
  LogCapture log;

  EXPECT_THAT(fit(x_ * 2, {BackupAndRestore({in("backup")})}).epochs(), ElementsAre(2, 3));

  EXPECT_TRUE(log.contains("begins with the first element of the data"));
}

TEST_F(FitWithBackup, GivesTheSignalBackWhenATrainingFails) {
  struct sigaction before {
  }, after{};
  ::sigaction(SIGTERM, nullptr, &before);
  const auto backup = std::make_shared<BackupAndRestore>(BackupAndRestoreOptions{in("backup"), /*preemption=*/true});

  EXPECT_THROW(model().fit(data_, {.epochs = 4, .callbacks = {backup, dies_in(2)}, .verbose = 0}), Error);

  ::sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(after.sa_handler, before.sa_handler);
}

TEST_F(FitWithBackup, LetsCallbacksKnowWhatTheyKnewBefore) {
  const auto options = [&](const LambdaCallback& also) {
    return FitOptions{.epochs = 9,
                      .callbacks = {BackupAndRestore({in("backup")}),
                                    ModelCheckpoint({.directory = in("best"), .keep = 9, .monitor = "loss"}),
                                    EarlyStopping({.monitor = "loss", .patience = 5}), also},
                      .verbose = 0};
  };
  {
    Model lost = model(/*learning_rate=*/0);
    EXPECT_THROW(lost.fit(data_, options(dies_in(3))), Error);
  }
  std::vector<int64_t> steps;
  const LambdaCallback look(
      {.on_epoch_end = [&](Training& training, const Logs&) { steps.push_back(training.steps); }});
  Model trained = model(/*learning_rate=*/0);

  const History history = trained.fit(data_, options(look));

  EXPECT_THAT(history.epochs(), ElementsAre(3, 4, 5)) << "two of five epochs without a better loss were before";
  EXPECT_THAT(CheckpointDirectory(in("best")).all(), SizeIs(1)) << "none was better than that of the first";
  EXPECT_THAT(steps, ElementsAre(16, 20, 24));
}

TEST_F(FitWithBackup, EndsAgainWhereAJobHadEndedThatWasLostBeforeItsBackupWasTakenAway) {
  const LambdaCallback dies_at_its_end({.on_train_end = [](Training&, const Logs&) { throw aborted("lost"); }});
  const auto options = [&](const LambdaCallback& also) {
    return FitOptions{
        .epochs = 9,
        .callbacks = {EarlyStopping({.monitor = "loss", .patience = 2}), also, BackupAndRestore({in("backup")})},
        .verbose = 0};
  };
  {
    Model lost = model(/*learning_rate=*/0);
    EXPECT_THROW(lost.fit(data_, options(dies_at_its_end)), Error);
  }
  for (const char* of_a_kill : {".tmp-2-0123456789abcdef", ".old-0123456789abcdef"}) {
    std::filesystem::create_directories(in("backup/") + of_a_kill + "/data");
  }
  Model trained = model(/*learning_rate=*/0);
  LogCapture log;

  const History history = trained.fit(data_, options(LambdaCallback({})));

  EXPECT_THAT(history.epochs(), SizeIs(0));
  EXPECT_TRUE(log.contains("fit had ended with epoch 3 of 9"));
  EXPECT_FALSE(std::filesystem::exists(in("backup")));
}

TEST_F(FitWithBackup, StaysUntilAllAreOver) {
  struct FailsWhenOver : Callback {
    void on_train_over(Training&) override { throw aborted("lost"); }
  };
  const auto fit = [&](Callbacks callbacks) {
    return model().fit(data_, {.epochs = 3, .callbacks = std::move(callbacks), .verbose = 0});
  };
  const BackupAndRestore backup({in("backup")});

  EXPECT_THROW(fit({FailsWhenOver(), backup}), Error);
  EXPECT_THROW(fit({backup, FailsWhenOver()}), Error);

  EXPECT_THAT(CheckpointDirectory(in("backup")).present(), SizeIs(1));
  EXPECT_THAT(fit({backup}).epochs(), SizeIs(0)) << "all were taken";
  EXPECT_FALSE(std::filesystem::exists(in("backup")));
}

TEST_F(FitWithBackup, RefusesACheckpointThatCountsNoEpochs) {
  for (const char* epochs : {"many", "-1", "99999999999", ""}) {
    Model trained = model();
    std::filesystem::remove_all(in("backup"));
    Checkpoints(Strategy(), {.directory = in("backup")}).save(0, {{"fit.epochs", epochs}});

    const Status status = testing_support::caught(
        [&] { trained.fit(data_, {.callbacks = {BackupAndRestore({in("backup")})}, .verbose = 0}); });

    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
  }
}

TEST_F(FitWithBackup, RefusesWhatModelCheckpointHasSavedBeforeItChangesAVariable) {
  model().fit(data_, {.callbacks = {ModelCheckpoint({.directory = in("checkpoints")})}, .verbose = 0});
  Model trained = model();
  const double before = weight_of(trained);

  const std::string said = testing_support::error_of(StatusCode::kFailedPrecondition, [&] {
    trained.fit(data_, {.callbacks = {BackupAndRestore({in("checkpoints")})}, .verbose = 0});
  });

  EXPECT_THAT(said, HasSubstr("is no backup of fit(); expected a directory of its own"));
  EXPECT_EQ(weight_of(trained), before);
}

TEST_F(FitWithBackup, HasModelCheckpointSaveAgainWhatALostJobHasSavedAfterIt) {
  const auto options = [&](const LambdaCallback& also) {
    return FitOptions{
        .epochs = 3,
        .callbacks = {ModelCheckpoint({.directory = in("all"), .keep = 9}), also, BackupAndRestore({in("backup")})},
        .verbose = 0};
  };
  const LambdaCallback dies_before_its_backup({.on_epoch_end = [](Training& training, const Logs&) {
    if (training.epoch == 1) throw aborted("lost");
  }});
  {
    Model lost = model();
    EXPECT_THROW(lost.fit(data_, options(dies_before_its_backup)), Error);
  }
  Model trained = model();

  trained.fit(data_, options(LambdaCallback({})));

  std::vector<int64_t> steps;
  for (const Checkpoint& each : CheckpointDirectory(in("all")).all()) steps.push_back(each.step);
  EXPECT_THAT(steps, ElementsAre(4, 8, 12));
}

TEST_F(FitWithBackup, WarnsOfAnotherJobThatSavesInItsDirectoryFromItsFirstBackupOn) {
  const auto warned = [&](const Callbacks& callbacks) {
    Model trained = model();
    const LogCapture log;
    trained.fit(data_, {.epochs = 3, .callbacks = callbacks, .verbose = 0});
    return log.contains(in("backup") + " has a checkpoint of step 7 that somebody else has saved there");
  };
  const BackupAndRestore backup({in("backup")});
  const LambdaCallback another_job({.on_epoch_end = [&](Training& training, const Logs&) {
    if (training.epoch > 0) return;
    Checkpoints(Strategy(), {.directory = in("backup")}).save(7, {{"fit.epochs", "7"}});
  }});

  EXPECT_TRUE(warned({another_job, backup}));
  EXPECT_FALSE(warned({backup}));
}

TEST_F(FitWithBackup, TakesAwayNothingButItsBackup) {
  std::filesystem::create_directories(in("shared/notes"));
  Checkpoints(Strategy(), {.directory = in("shared")}).save(0);

  Model trained = model();
  EXPECT_THROW(trained.fit(data_, {.callbacks = {BackupAndRestore({in("shared")})}, .verbose = 0}), Error)
      << "the checkpoint is no backup";
  std::filesystem::remove_all(in("shared/ckpt-0"));
  trained.fit(data_, {.callbacks = {BackupAndRestore({in("shared")})}, .verbose = 0});

  EXPECT_TRUE(std::filesystem::exists(in("shared/notes")));
  EXPECT_THAT(CheckpointDirectory(in("shared")).present(), SizeIs(0));
}

TEST_F(FitWithBackup, LetsVariablesBeginAnewThatAreMadeAfterItWasTakenAway) {
  const InProcessCluster cluster(
      {.workers = 1, .ps = 1, .transport = Transport::kLocal, .worker = {.storage = {directory_.path()}}});
  const Strategy strategy = testing_support::strategy_of(cluster, Transport::kLocal);
  Model trained = compile(strategy.make<torch::nn::Linear>(2, 1), {.loss = mean_squared_error});
  EXPECT_THROW(
      trained.fit(data_, {.epochs = 2, .callbacks = {BackupAndRestore({in("backup")}), dies_in(1)}, .verbose = 0}),
      Error);

  trained.fit(data_, {.epochs = 1, .callbacks = {BackupAndRestore({in("backup")})}, .verbose = 0});  // nothing is left

  EXPECT_NO_THROW(strategy.make<torch::nn::Linear>(2, 1));
}

TEST_F(FitWithBackup, SavesTheRowsOfTablesThatHaveChanged) {
  const InProcessCluster cluster(
      {.workers = 1, .ps = 1, .transport = Transport::kLocal, .worker = {.storage = {directory_.path()}}});
  const Strategy strategy = testing_support::strategy_of(cluster, Transport::kLocal);
  const VariableScope scope = strategy.scope();
  Model trained = compile(strategy.make<torch::nn::Sequential>(nn::Embedding({.rows = 40, .dim = 2, .name = "table"}),
                                                               torch::nn::Linear(2, 1)),
                          {.optimizer = Adagrad({.learning_rate = 0.5}), .loss = mean_squared_error});
  const auto values = [&] {
    std::vector<at::Tensor> all;
    for (const Variable& variable : trained.variables().all()) all.push_back(variable.value().clone());
    return all;
  };
  const ModelInput data{torch::tensor({1, 33}), torch::ones({2, 1})};
  const BackupAndRestoreOptions options{.directory = in("backup"), .incremental = IncrementalOptions{.least_bytes = 0}};
  // The second epoch changes what the first backup has as it was.
  const LambdaCallback dies_at_its_end({.on_epoch_begin =
                                            [&](Training& training) {
                                              if (training.epoch == 0) return;
                                              const CheckpointDirectory backups(in("backup"));
                                              while (backups.present().empty()) std::this_thread::yield();
                                            },
                                        .on_train_end = [](Training&, const Logs&) { throw aborted("lost"); }});

  EXPECT_THROW(
      trained.fit(data, {.epochs = 2, .callbacks = {dies_at_its_end, BackupAndRestore(options)}, .verbose = 0}), Error);

  EXPECT_THAT(CheckpointReader(in("backup/ckpt-2")).names(), Contains(StartsWith("table#ids@")));
  const std::vector<at::Tensor> saved = values();
  for (Variable variable : trained.variables().all()) variable.assign(torch::zeros_like(variable.value()));
  std::vector<at::Tensor> found;
  const LambdaCallback look({.on_train_begin = [&](Training&) { found = values(); }});
  trained.fit(data, {.epochs = 3, .callbacks = {BackupAndRestore(options), look}, .verbose = 0});
  ASSERT_THAT(found, SizeIs(saved.size()));
  for (size_t i = 0; i < saved.size(); ++i) EXPECT_TRUE(found[i].equal(saved[i])) << i;
}

}  // namespace
}  // namespace muster::backup_and_restore_test

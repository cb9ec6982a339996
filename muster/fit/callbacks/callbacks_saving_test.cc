// Callbacks that save, under every strategy: jobs that are lost, and disks that are slow or full.
#include <absl/synchronization/notification.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "muster/base/log.h"
#include "muster/base/test_errors.h"
#include "muster/cluster/test_environment.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/distribute/local_strategies.h"
#include "muster/fit/callbacks/callbacks.h"
#include "muster/fit/callbacks/rate_callbacks.h"
#include "muster/fit/model.h"
#include "muster/io/checkpoint_directory.h"
#include "muster/io/checkpoint_reader.h"
#include "muster/io/disk.h"
#include "muster/train/checkpoints.h"

namespace muster::callbacks_saving_test {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

// The processes of a job and what they train. They end with it.
struct Job {
  std::unique_ptr<InProcessCluster> cluster{};
  Strategy strategy{};
  std::optional<Model> model{};

  // Variables, and what the optimizer keeps.
  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> all;
    for (const Variable& variable : model->variables().all()) all.push_back(variable.value().clone());
    for (const Variable& slot : model->optimizer().slots()) all.push_back(slot.value().clone());
    return all;
  }
};

bool is_write_of_data(std::string_view call, const std::string& path) {
  return call == "write" && path.ends_with(".safetensors");
}

std::vector<int64_t> steps_in(const std::string& directory) {
  std::vector<int64_t> steps;
  for (const Checkpoint& each : CheckpointDirectory(directory).present()) steps.push_back(each.step);
  return steps;
}

void wait_for_a_checkpoint_in(const std::string& directory) {
  while (steps_in(directory).empty()) std::this_thread::yield();
}

class WithDirectory {
 protected:
  std::string in(const std::string& name) const { return directory_.path() + "/" + name; }
  // Over gRPC tasks may die: one of this process cannot be torn from who holds it.
  Job job(const std::string& strategy, Transport transport = Transport::kLocal) const {
    Job made;
    if (strategy == "mirrored") made.strategy = MirroredStrategy({"/device:CPU:0", "/device:CPU:1"});
    if (strategy == "parameter_servers") {
      made.cluster = std::make_unique<InProcessCluster>(InProcessClusterOptions{
          .workers = 2, .ps = 2, .transport = transport, .worker = {.storage = {directory_.path()}}});
      made.strategy = testing_support::strategy_of(*made.cluster, transport);
    }
    made.model = compile(made.strategy.make<torch::nn::Linear>(2, 1),
                         {.optimizer = Adam({.learning_rate = 0.1}), .loss = mean_squared_error});
    return made;
  }

  const testing_support::ScopedDirectory directory_;
  const at::Tensor x_ = (torch::manual_seed(2), torch::randn({32, 2}));
  const Dataset data_ = Dataset::tensors({x_, x_.sum(1, true)}).batch(8);
};

class FitThatSaves : public WithDirectory, public ::testing::TestWithParam<std::string> {
 protected:
  Job job() const { return WithDirectory::job(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(All, FitThatSaves, ::testing::Values("alone", "mirrored", "parameter_servers"),
                         [](const auto& kind) { return kind.param; });

TEST_P(FitThatSaves, GoesOnWhereAJobWasLost) {
  const LambdaCallback dies_at_its_end({.on_train_end = [](Training&, const Logs&) { throw aborted("lost"); }});
  std::vector<at::Tensor> saved, found;
  {
    Job lost = job();
    EXPECT_THROW(
        lost.model->fit(data_,
                        {.epochs = 2, .callbacks = {dies_at_its_end, BackupAndRestore({in("backup")})}, .verbose = 0}),
        Error);
    saved = lost.values();
  }
  Job next = job();
  int64_t steps = 0;  // of both jobs: workers may share a batch, and then there is one more
  const LambdaCallback look({.on_train_begin =
                                 [&](Training& training) {
                                   found = next.values();
                                   EXPECT_EQ(training.model.optimizer().iterations(), training.steps);
                                 },
                             .on_train_end = [&](Training& training, const Logs&) { steps = training.steps; }});

  const History history =
      next.model->fit(data_, {.epochs = 4, .callbacks = {BackupAndRestore({in("backup")}), look}, .verbose = 0});

  EXPECT_THAT(history.epochs(), ElementsAre(2, 3));
  ASSERT_THAT(found, SizeIs(saved.size()));
  for (size_t i = 0; i < saved.size(); ++i) EXPECT_TRUE(found[i].equal(saved[i])) << i;
  EXPECT_EQ(next.model->optimizer().iterations(), steps);
  EXPECT_GE(steps, 16);
  EXPECT_FALSE(std::filesystem::exists(in("backup")));
}

TEST_P(FitThatSaves, SavesTheRateOfTheEpochThatHasEnded) {
  constexpr int kEpochs = 20;
  const LearningRateScheduler halves([](int epoch, double rate) { return epoch == 0 ? 1 : rate / 2; });
  Job one = job();

  one.model->fit(data_, {.epochs = kEpochs,
                         .callbacks = {ModelCheckpoint({.directory = in("rates"), .keep = kEpochs}), halves},
                         .verbose = 0});

  const std::vector<int64_t> steps = steps_in(in("rates"));
  ASSERT_THAT(steps, SizeIs(kEpochs));
  double expected = 1;
  for (const int64_t step : steps) {
    const CheckpointReader saved(in("rates") + "/ckpt-" + std::to_string(step));
    const std::vector<std::string> names = saved.names();
    const auto name = std::ranges::find_if(names, [](const auto& each) { return each.ends_with("learning_rate"); });
    ASSERT_NE(name, names.end());
    double rate = 0;
    saved.read(*name, 0, 1, std::as_writable_bytes(std::span(&rate, 1)));
    EXPECT_EQ(rate, expected) << "after " << step << " steps";
    expected /= 2;
  }
}

TEST_P(FitThatSaves, LetsACallbackChangeTheRateBeforeTheOthersHaveBegun) {
  const LambdaCallback changes({.on_train_begin = [](Training& training) {
    training.before_change();
    training.model.optimizer().set_learning_rate(0.5);
  }});
  Job one = job();

  one.model->fit(data_,
                 {.callbacks = {changes, BackupAndRestore({in("backup")}), ModelCheckpoint({.directory = in("all")})},
                  .verbose = 0});

  EXPECT_EQ(one.model->optimizer().learning_rate(), 0.5);
  EXPECT_THAT(steps_in(in("all")), SizeIs(1));
}

TEST_P(FitThatSaves, SavesTheLastEpochAsItWasBeforeTheBestWeightsAreRestored) {
  const auto weight_of = [](const Model& model) { return model.variables().all()[0].value().clone(); };
  struct LooksBeforeChanges : Callback {
    void before_change(Training& training) override {
      seen.push_back(training.model.variables().all()[0].value().clone());
    }
    std::vector<at::Tensor> seen{};
  };
  const auto looks = std::make_shared<LooksBeforeChanges>();
  std::vector<at::Tensor> weights;
  // A rising number is worse: the first epoch is the best.
  const LambdaCallback ranks(
      {.add_logs = [](Training& training, Logs& logs) { logs.set("score", training.epoch); },
       .on_epoch_end = [&](Training& training, const Logs&) { weights.push_back(weight_of(training.model)); }});
  const EarlyStopping stops({.monitor = "score", .patience = 2, .restore_best_weights = true});
  Job one = job();

  one.model->fit(
      data_,
      {.epochs = 9, .callbacks = {stops, ranks, looks, ModelCheckpoint({.directory = in("all")})}, .verbose = 0});

  ASSERT_THAT(weights, SizeIs(3));
  EXPECT_TRUE(weight_of(*one.model).equal(weights[0]));
  ASSERT_THAT(looks->seen, SizeIs(1));
  EXPECT_TRUE(looks->seen[0].equal(weights[2])) << "who saves is told while they are what they were";
  Checkpoints(one.strategy, {.directory = in("all")}).restore();
  EXPECT_TRUE(weight_of(*one.model).equal(weights[2]));
}

TEST_P(FitThatSaves, EndsWithADiskThatIsFullAndKeepsWhatItHasSavedBefore) {
  struct sigaction before {
  }, after{};
  ::sigaction(SIGTERM, nullptr, &before);

  for (const bool backs_up : {false, true}) {
    SCOPED_TRACE(backs_up ? "BackupAndRestore" : "ModelCheckpoint");
    const std::string directory = in(backs_up ? "backup" : "checkpoints");
    std::atomic<bool> full = false;
    const disk::ScopedFaults faults([&](std::string_view call, const std::string& path) {
      return full && is_write_of_data(call, path) ? ENOSPC : 0;
    });
    const LambdaCallback fills({.on_epoch_begin = [&](Training& training) {
      if (training.epoch != 1) return;
      wait_for_a_checkpoint_in(directory);
      full = true;
    }});
    const Job lost = job();

    const Status status = testing_support::caught([&] {
      Callbacks callbacks{fills};
      if (backs_up) callbacks.add(BackupAndRestore({.directory = directory, .preemption = true}));
      if (!backs_up) callbacks.add(ModelCheckpoint({.directory = directory}));
      Model(*lost.model).fit(data_, {.epochs = 1'000, .callbacks = callbacks, .verbose = 0});
    });

    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(CheckpointDirectory(directory).all(), SizeIs(1));
    ::sigaction(SIGTERM, nullptr, &after);
    EXPECT_EQ(after.sa_handler, before.sa_handler);
  }
}

// Checkpoints that are saved beside the training, while a backup of the same training is saved elsewhere.
class FitThatSavesAndBacksUp : public FitThatSaves {
 protected:
  // Has all but its name.
  bool shows_checkpoint(std::string_view call, const std::string& path) const {
    return call == "rename" && path.starts_with(in("checkpoints") + "/ckpt-");
  }
  ModelCheckpoint checkpoints(const std::string& monitor = "") const {
    return ModelCheckpoint({.directory = in("checkpoints"), .keep = 9, .monitor = monitor, .while_training = true});
  }
  BackupAndRestore backup() const { return BackupAndRestore({in("backup")}); }
  // The best epoch has the least.
  static LambdaCallback scores(int best) {
    return LambdaCallback({.add_logs = [best](Training& training, Logs& logs) {
      logs.set("score_loss", training.epoch == best ? 0 : training.epoch + 1);
    }});
  }
};
INSTANTIATE_TEST_SUITE_P(All, FitThatSavesAndBacksUp, ::testing::Values("alone", "mirrored", "parameter_servers"),
                         [](const auto& kind) { return kind.param; });

TEST_P(FitThatSavesAndBacksUp, ShowsNoBackupBeforeTheBestThatItKnowsOfIsSavedAndHoldsUpNoEpoch) {
  std::atomic<bool> held = true;
  std::vector<int64_t> before, after;
  const LambdaCallback lets_it_go_on({.on_epoch_begin =
                                          [&](Training& training) {
                                            if (training.epoch != 3) return;
                                            before = steps_in(in("backup"));
                                            held = false;
                                            wait_for_a_checkpoint_in(in("backup"));
                                            after = steps_in(in("backup"));
                                          },
                                      .on_train_end = [](Training&, const Logs&) { throw aborted("lost"); }});
  const disk::ScopedFaults faults([&](std::string_view call, const std::string& path) {
    return held && shows_checkpoint(call, path) ? EINTR : 0;  // again, and others in between
  });
  Job lost = job();

  EXPECT_THROW(
      lost.model->fit(data_, {.epochs = 5,
                              .callbacks = {lets_it_go_on, scores(/*best=*/0), checkpoints("score_loss"), backup()},
                              .verbose = 0}),
      Error);

  EXPECT_THAT(before, SizeIs(0));
  EXPECT_THAT(after, ElementsAre(1)) << "those of epochs 2 and 3 would have had to wait";
  EXPECT_THAT(steps_in(in("backup")), ElementsAre(5));
  EXPECT_THAT(steps_in(in("checkpoints")), SizeIs(1));
}

TEST_P(FitThatSavesAndBacksUp, TakesTheEpochAgainWhoseCheckpointWasNotSaved) {
  std::atomic<bool> full = false;
  const LambdaCallback fills({.on_epoch_begin = [&](Training& training) {
    if (training.epoch != 1) return;
    wait_for_a_checkpoint_in(in("backup"));
    full = true;
  }});
  const disk::ScopedFaults faults([&](std::string_view call, const std::string& path) {
    return full && shows_checkpoint(call, path) ? ENOSPC : 0;
  });
  const auto fit = [&](const LambdaCallback& also) {
    const Job one = job();
    return Model(*one.model).fit(data_, {.epochs = 4, .callbacks = {also, checkpoints(), backup()}, .verbose = 0});
  };

  const Status status = testing_support::caught([&] { fit(fills); });
  const std::vector<int64_t> left = steps_in(in("backup"));
  full = false;
  const History history = fit(LambdaCallback({}));

  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(left, ElementsAre(1));
  EXPECT_THAT(history.epochs(), ElementsAre(1, 2, 3));
  EXPECT_THAT(steps_in(in("checkpoints")), SizeIs(4));
}

TEST_P(FitThatSavesAndBacksUp, EndsWhenItsBestWasNotSavedThoughNoneIsBetter) {
  std::atomic<bool> full = true;
  int epochs_begun = 0;
  std::shared_ptr<ModelCheckpoint> saves_best;
  const LambdaCallback counts({.on_epoch_begin = [&](Training& training) {
    ++epochs_begun;
    if (full && training.epoch == 1) saves_best->being_written().wait();  // else all may end before it is known
  }});
  const disk::ScopedFaults faults([&](std::string_view call, const std::string& path) {
    return full && shows_checkpoint(call, path) ? ENOSPC : 0;
  });
  const auto fit = [&](int epochs) {
    const Job one = job();
    saves_best = std::make_shared<ModelCheckpoint>(checkpoints("score_loss"));
    return Model(*one.model)
        .fit(data_, {.epochs = epochs, .callbacks = {counts, scores(/*best=*/0), saves_best, backup()}, .verbose = 0});
  };

  const Status status = testing_support::caught([&] { fit(1'000); });
  const std::vector<int64_t> left = steps_in(in("backup"));
  full = false;
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
  EXPECT_LT(epochs_begun, 1'000);
  EXPECT_THAT(left, SizeIs(0)) << "each would know of a best that nobody has";
  const History history = fit(3);

  EXPECT_THAT(history.epochs(), ElementsAre(0, 1, 2));
  EXPECT_THAT(steps_in(in("checkpoints")), SizeIs(1));
}

TEST_P(FitThatSavesAndBacksUp, IsPreemptedWhenItsBackupIsThere) {
  std::vector<int64_t> there;
  const LambdaCallback tells({.on_epoch_begin = [](Training&) { ::raise(SIGTERM); },
                              .on_train_end = [&](Training&, const Logs&) { there = steps_in(in("backup")); }});
  std::atomic<int> tries = 0;
  const disk::ScopedFaults faults([&](std::string_view call, const std::string& path) {
    return shows_checkpoint(call, path) && ++tries < 4 ? EINTR : 0;  // again
  });
  Job one = job();

  const History history = one.model->fit(
      data_, {.epochs = 9,
              .callbacks = {tells, checkpoints(), BackupAndRestore({.directory = in("backup"), .preemption = true})},
              .verbose = 0});

  EXPECT_TRUE(history.preempted());
  EXPECT_THAT(there, ElementsAre(1));
  EXPECT_THAT(steps_in(in("checkpoints")), SizeIs(1));
}

TEST_P(FitThatSavesAndBacksUp, SaysOfNoEpochThatItIsSavedWhoseCheckpointWasNot) {
  const LambdaCallback tells({.on_epoch_begin = [](Training&) { ::raise(SIGTERM); }});
  const disk::ScopedFaults faults(
      [&](std::string_view call, const std::string& path) { return shows_checkpoint(call, path) ? ENOSPC : 0; });
  const LogCapture log;
  Job one = job();

  const Status status = testing_support::caught([&] {
    one.model->fit(
        data_, {.epochs = 9,
                .callbacks = {tells, checkpoints(), BackupAndRestore({.directory = in("backup"), .preemption = true})},
                .verbose = 0});
  });

  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
  EXPECT_FALSE(log.contains("is saved in " + in("backup")));
  EXPECT_THAT(steps_in(in("backup")), SizeIs(0));
}

class FitThatSavesOnServers : public WithDirectory, public ::testing::Test {};

TEST_F(FitThatSavesOnServers, SaysAnEpochLaterThatADiskIsFull) {
  std::vector<int> begun;
  const LambdaCallback count({.on_epoch_begin = [&](Training& training) { begun.push_back(training.epoch); }});
  const disk::ScopedFaults faults(
      [](std::string_view call, const std::string& path) { return is_write_of_data(call, path) ? ENOSPC : 0; });
  for (const int epochs : {1, 9}) {
    Job lost = job("parameter_servers");
    begun.clear();

    const Status status = testing_support::caught([&] {
      lost.model->fit(
          data_,
          {.epochs = epochs, .callbacks = {count, ModelCheckpoint({.directory = in("checkpoints")})}, .verbose = 0});
    });

    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
    EXPECT_EQ(begun.size(), epochs == 1 ? 1 : 2) << "one of one is told at the end";
  }
}

TEST_F(FitThatSavesOnServers, TakesTheStepsOfTheNextEpochWhileTheDiskTakesItsTime) {
  absl::Notification next_epoch_taken;
  std::vector<int64_t> steps;
  const LambdaCallback steers({.on_epoch_end = [&](Training& training, const Logs&) {
    steps.push_back(training.steps);
    if (training.epoch == 1) next_epoch_taken.Notify();
  }});
  const disk::ScopedFaults faults([&](std::string_view call, const std::string& path) {
    if (is_write_of_data(call, path)) next_epoch_taken.WaitForNotification();
    return 0;
  });
  Job trained = job("parameter_servers");

  trained.model->fit(
      data_,
      {.epochs = 3, .callbacks = {steers, ModelCheckpoint({.directory = in("checkpoints"), .keep = 9})}, .verbose = 0});

  EXPECT_THAT(steps_in(in("checkpoints")), steps) << "none is left out";
}

TEST_F(FitThatSavesOnServers, ChangesTheRateWhileAnOlderCheckpointIsBeingRemoved) {
  absl::Notification last_epoch_taken;
  std::atomic<int> removed = 0;
  const LambdaCallback steers({.on_epoch_end = [&](Training& training, const Logs&) {
    if (training.epoch == 2) last_epoch_taken.Notify();
  }});
  const LearningRateScheduler halves([](int, double rate) { return rate / 2; });
  const disk::ScopedFaults faults([&](std::string_view call, const std::string&) {
    if (call != "remove") return 0;
    last_epoch_taken.WaitForNotification();
    ++removed;
    return 0;
  });
  Job trained = job("parameter_servers");

  trained.model->fit(data_,
                     {.epochs = 3,
                      .callbacks = {steers, halves, ModelCheckpoint({.directory = in("checkpoints"), .keep = 1})},
                      .verbose = 0});

  EXPECT_GE(removed, 2) << "those of the first two epochs";
  EXPECT_THAT(steps_in(in("checkpoints")), SizeIs(1));
}

TEST_F(FitThatSavesOnServers, GoesOnWithTheSameModelAfterAParameterServerWasLost) {
  Job trained = job("parameter_servers", Transport::kGrpc);
  const TaskId server{"ps", 1};
  const LambdaCallback loses({.on_epoch_begin = [&](Training& training) {
    if (training.epoch != 2) return;
    wait_for_a_checkpoint_in(in("backup"));
    trained.cluster->stop(server);
  }});
  const auto fit = [&](Callbacks callbacks) {
    callbacks.add(BackupAndRestore({in("backup")}));
    return trained.model->fit(data_, {.epochs = 4, .callbacks = std::move(callbacks), .verbose = 0});
  };

  const Status lost = testing_support::caught([&] { fit({loses}); });
  const std::jthread comes_back([&] { trained.cluster->start(server); });
  const History history = fit({});

  EXPECT_EQ(lost.code(), StatusCode::kUnavailable) << lost;
  ASSERT_FALSE(history.epochs().empty());
  EXPECT_THAT(history.epochs().front(), ::testing::AnyOf(1, 2)) << "the second backup may have been left out";
  EXPECT_EQ(history.epochs().back(), 3);
}

TEST_F(FitThatSavesOnServers, SavesTheEpochInWhichItIsToldToEndThoughTheOneBeforeWasNotSaved) {
  std::atomic<bool> full = true, was_full = false;
  const disk::ScopedFaults faults([&](std::string_view call, const std::string& path) {
    if (!full || !is_write_of_data(call, path)) return 0;
    was_full = true;
    return ENOSPC;
  });
  const LambdaCallback tells({.on_epoch_begin = [&](Training& training) {
    if (training.epoch != 1) return;
    while (!was_full) std::this_thread::yield();
    full = false;
    ::raise(SIGTERM);
  }});
  Job trained = job("parameter_servers");

  const History history = trained.model->fit(
      data_, {.epochs = 9,
              .callbacks = {tells, BackupAndRestore({.directory = in("backup"), .preemption = true})},
              .verbose = 0});

  EXPECT_TRUE(history.preempted());
  EXPECT_THAT(history.epochs(), ElementsAre(0, 1));
  EXPECT_THAT(steps_in(in("backup")), ElementsAre(2));
}

TEST_F(FitThatSavesOnServers, LeavesBackupsOutWhileOneIsBeingSavedButNotTheLast) {
  absl::Notification disk_goes_on;
  std::vector<int64_t> there;
  const LambdaCallback lets_it_go_on({.on_epoch_begin =
                                          [&](Training& training) {
                                            if (training.epoch != 3) return;
                                            disk_goes_on.Notify();
                                            wait_for_a_checkpoint_in(in("backup"));
                                            there = steps_in(in("backup"));
                                          },
                                      .on_train_end = [](Training&, const Logs&) { throw aborted("lost"); }});
  const disk::ScopedFaults faults([&](std::string_view call, const std::string& path) {
    if (is_write_of_data(call, path)) disk_goes_on.WaitForNotification();
    return 0;
  });
  Job lost = job("parameter_servers");

  EXPECT_THROW(lost.model->fit(
                   data_, {.epochs = 5, .callbacks = {lets_it_go_on, BackupAndRestore({in("backup")})}, .verbose = 0}),
               Error);

  EXPECT_THAT(there, ElementsAre(1)) << "after epochs 2 and 3 that of the first was still being saved";
  EXPECT_THAT(steps_in(in("backup")), ElementsAre(5));
}

}  // namespace
}  // namespace muster::callbacks_saving_test

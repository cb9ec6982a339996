#include "muster/fit/callbacks/audience.h"

#include <absl/synchronization/notification.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <limits>
#include <memory>
#include <vector>

#include "muster/base/status.h"
#include "muster/base/test_errors.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/fit/callbacks/backup_and_restore.h"
#include "muster/fit/callbacks/callbacks.h"
#include "muster/fit/callbacks/csv_logger.h"
#include "muster/fit/model.h"

namespace muster::audience_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Writes down what it is told.
class Listens : public Callback {
 public:
  Listens(std::string name, std::vector<std::string>& heard, bool watches = false)
      : name_(std::move(name)), heard_(heard), watches_(watches) {}

  bool only_watches() const override { return watches_; }
  void on_train_begin(Training&) override { heard_.push_back(name_ + " begins"); }
  void on_epoch_end(Training& training, const Logs&) override {
    heard_.push_back(str_cat(name_, " sees epoch ", training.epoch, ", steps ", training.steps));
  }
  void on_train_end(Training&, const Logs&) override { heard_.push_back(name_ + " ends"); }
  void on_train_over(Training&) override { heard_.push_back(name_ + " is over"); }
  void on_train_done(Training&) override { heard_.push_back(name_ + " is done"); }
  void on_train_left() override { heard_.push_back(name_ + " is left"); }
  std::string memory() const override { return name_; }
  void remember(const std::string& memory) override { heard_.push_back(name_ + " remembers " + memory); }

 private:
  const std::string name_;
  std::vector<std::string>& heard_;
  const bool watches_;
};

class Validates : public Callback {
 public:
  Validates(std::string name, bool fails, std::vector<std::string>& ended)
      : name_(std::move(name)), fails_(fails), ended_(ended) {}

  void on_validation_begin(Training&) override {
    if (fails_) throw aborted("no");
  }
  void on_validation_end(Training&) override { ended_.push_back(name_); }

 private:
  const std::string name_;
  const bool fails_;
  std::vector<std::string>& ended_;
};

class TheAudience : public ::testing::Test {
 protected:
  std::vector<std::string> heard_, beside_;
  Model model_ = compile(torch::nn::Linear(2, 1), {.loss = mean_squared_error});
  Training training_{.model = model_, .epochs = 2};
};

TEST_F(TheAudience, IsToldInOrderAndHasWhatAnEarlierTrainingRemembers) {
  {
    Audience audience({Listens("a", heard_), Listens("b", heard_, /*watches=*/true)}, Strategy(), training_);
    EXPECT_THAT(training_.memories(), ElementsAre("a", "b"));
    training_.remembered = {"one", "two"};
    audience.train_begin();
    audience.epoch_end({});
    audience.train_end({});
  }

  EXPECT_THAT(heard_, ElementsAre("a begins", "b begins", "a remembers one", "b remembers two",
                                  "a sees epoch 0, steps 0", "b sees epoch 0, steps 0", "a ends", "b ends", "a is over",
                                  "b is over", "a is done", "b is done", "a is left", "b is left"));
}

TEST_F(TheAudience, WatchesOnServersWhatThereWasWhileTheTrainingGoesOn) {
  const InProcessCluster cluster({.workers = 1, .ps = 1, .transport = Transport::kLocal});
  const ParameterServerStrategy strategy = testing_support::strategy_of(cluster, Transport::kLocal);
  absl::Notification went_on;
  const LambdaCallback holds_up(
      {.on_epoch_begin = [&](Training&) { went_on.WaitForNotification(); }, .only_watches = true});
  {
    Audience audience({holds_up, Listens("a", heard_), Listens("b", beside_, /*watches=*/true)}, strategy, training_);
    EXPECT_THAT(training_.memories(), ElementsAre("", "a", "")) << "it may be at work";
    audience.train_begin();
    audience.epoch_begin();
    audience.epoch_end({});
    ++training_.epoch;
    training_.steps = 7;
    EXPECT_THAT(heard_, ElementsAre("a begins", "a sees epoch 0, steps 0"));
    went_on.Notify();
    audience.train_end({});
  }

  EXPECT_THAT(beside_,
              ElementsAre("b begins", "b sees epoch 0, steps 0", "b ends", "b is over", "b is done", "b is left"));
}

TEST_F(TheAudience, IsRefusedIfOneOfItIsNull) {
  Callbacks callbacks{Listens("a", heard_)};
  callbacks.add(std::shared_ptr<EarlyStopping>());
  const at::Tensor x = torch::ones({4, 2});

  EXPECT_EQ(
      testing_support::error_of([&] { model_.fit({x, torch::ones({4, 1})}, {.callbacks = callbacks, .verbose = 0}); }),
      "fit: callback 1 is null, expected one");
  EXPECT_THAT(heard_, ElementsAre());
}

TEST_F(TheAudience, IsNotLeftBeforeItHasBegun) {
  { const Audience audience({Listens("a", heard_)}, Strategy(), training_); }

  EXPECT_THAT(heard_, ElementsAre());
}

class Overwrites : public Callback {
 public:
  void add_logs(Training&, Logs& logs) override { logs.set("loss", 0); }
};

TEST_F(TheAudience, AddsNumbersBesideThoseThatWereMeasured) {
  const LambdaCallback adds({.add_logs = [](Training&, Logs& logs) { logs.set("own", 1); }});
  const LambdaCallback again({.add_logs = [](Training&, Logs& logs) { logs.set("own", 2); }});
  const LambdaCallback removes({.add_logs = [](Training&, Logs& logs) { logs.clear(); }});
  const auto added = [&](const Callbacks& callbacks, double loss) {
    Logs logs{{"loss", loss}};
    Audience(callbacks, Strategy(), training_).add_logs(logs);
    return logs;
  };

  EXPECT_EQ(added({adds, again}, 3), (Logs{{"loss", 3}, {"own", 2}}));
  EXPECT_NO_THROW(added({adds}, std::numeric_limits<double>::quiet_NaN()));
  EXPECT_THAT(testing_support::error_of([&] { added({adds, Overwrites()}, 3); }),
              AllOf(HasSubstr("add_logs() of muster::audience_test::"),
                    HasSubstr("Overwrites has overwritten \"loss\", which fit has measured")));
  EXPECT_EQ(
      testing_support::error_of([&] { added({removes}, 3); }),
      "fit: add_logs() of muster::LambdaCallback has removed \"loss\", which fit has measured; expected a name of "
      "its own");
}

TEST_F(TheAudience, RefusesTwoThatSaveInOneDirectoryBeforeTheTrainingBegins) {
  const std::string directory = ::testing::TempDir() + "/saved_by_two";
  const auto refusal = [&](const Callbacks& callbacks) {
    return testing_support::message_of([&] { Audience(callbacks, Strategy(), training_); });
  };
  const ModelCheckpoint all({.directory = directory});

  EXPECT_THAT(refusal({all, BackupAndRestore({.directory = directory + "/../saved_by_two/"})}),
              AllOf(HasSubstr("muster::ModelCheckpoint and muster::BackupAndRestore both save checkpoints in"),
                    HasSubstr("saved_by_two"), HasSubstr("a directory for each")));
  EXPECT_THAT(refusal({all, ModelCheckpoint({.directory = directory, .monitor = "loss"})}),
              HasSubstr("muster::ModelCheckpoint and muster::ModelCheckpoint both"));
  EXPECT_EQ(refusal({all, BackupAndRestore({.directory = directory + "/backup"}), CsvLogger(directory + "/log.csv")}),
            "nothing was thrown");
}

TEST_F(TheAudience, EndsItsValidationThoughItFails) {
  std::vector<std::string> ended;
  const auto listens = [&](const std::string& name, bool fails) {
    return std::make_shared<Validates>(name, fails, ended);
  };
  Audience audience({listens("a", false), listens("b", true), listens("c", false)}, Strategy(), training_);

  EXPECT_THAT(testing_support::message_of([&] { audience.validation([] { FAIL(); }); }), HasSubstr("no"));
  EXPECT_THAT(ended, ElementsAre("a"));
}

}  // namespace
}  // namespace muster::audience_test

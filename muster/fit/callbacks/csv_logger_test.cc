#include "muster/fit/callbacks/csv_logger.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "muster/base/log.h"
#include "muster/base/test_errors.h"
#include "muster/fit/callbacks/callbacks.h"
#include "muster/fit/model.h"
#include "muster/fit/test_callbacks.h"

namespace muster::csv_logger_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using testing_support::error_of;

class FitWithCsvLogger : public testing_support::CallbacksTest {
 protected:
  // As fit() would call it: an epoch for each of `all`.
  void train(int first, const std::vector<Logs>& all) {
    Training training{.model = model_, .epochs = first + static_cast<int>(all.size()), .epoch = first};
    CsvLogger logger(path_);
    logger.on_train_begin(training);
    for (const Logs& logs : all) {
      logger.on_epoch_end(training, logs);
      ++training.epoch;
    }
  }
  std::string written() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(const std::string& text) const { std::ofstream(path_) << text; }

  const std::string path_ = in("log.csv");
  Model model_ = model();
};

TEST_F(FitWithCsvLogger, WritesALineForEachEpoch) {
  model_.fit(data_, {.epochs = 2, .validation_data = data_, .callbacks = {CsvLogger(path_)}, .verbose = 0});

  EXPECT_THAT(written(), StartsWith("epoch,loss,val_loss\n0,"));
  EXPECT_THAT(written(), HasSubstr("\n1,"));
}

TEST_F(FitWithCsvLogger, HasAllDigits) {
  train(0, {{{"loss", 12345.678901}}});

  EXPECT_EQ(written(), "epoch,loss\n0,12345.678901\n");
}

TEST_F(FitWithCsvLogger, WarnsOnceOfAnotherJobThatWritesToItsFile) {
  const auto warnings = [](const LogCapture& log) {
    return std::ranges::count_if(log.lines(), [](const LogLine& line) {
      return line.text.find("somebody else has written to") != std::string::npos;
    });
  };
  LogCapture log;
  train(0, {{{"loss", 3.0}}, {{"loss", 2.0}, {"accuracy", 1.0}}, {{"loss", 1.0}}});
  train(2, {{{"loss", 2.0}}, {{"loss", 1.0}}});
  EXPECT_EQ(warnings(log), 0) << "nobody else has";
  Training training{.model = model_, .epochs = 4};
  CsvLogger logger(path_), other(path_);
  for (CsvLogger* each : {&logger, &other}) each->on_train_begin(training);

  for (; training.epoch < 4; ++training.epoch) {
    logger.on_epoch_end(training, {{"loss", 3.0}});
    if (training.epoch > 0) other.on_epoch_end(training, {{"loss", 4.0}});
  }

  EXPECT_EQ(warnings(log), 2) << "of each of them";
}

TEST_F(FitWithCsvLogger, WarnsInEachTrainingAndNotOfAFileThatWasTakenAway) {
  CsvLogger logger(path_);
  for (const bool another_writes : {false, true, true}) {
    Training training{.model = model_, .epochs = 2};
    LogCapture log;
    logger.on_train_begin(training);
    logger.on_epoch_end(training, {{"loss", 1.0}});
    if (another_writes) std::ofstream(path_, std::ios::app) << "0,2\n";
    if (!another_writes) std::filesystem::remove(path_);
    ++training.epoch;

    logger.on_epoch_end(training, {{"loss", 1.0}});

    EXPECT_EQ(log.contains("somebody else has written to"), another_writes);
  }
}

TEST_F(FitWithCsvLogger, MakesItsDirectoryAndGoesOnWhereATrainingDoes) {
  Training training{.model = model_, .epochs = 4};
  const std::string path = in("new/directory/log.csv");
  for (const int first : {0, 2}) {
    CsvLogger logger(path);
    training.epoch = first;
    logger.on_train_begin(training);
    logger.on_epoch_end(training, {{"loss", first}});
  }

  std::filesystem::rename(path, path_);
  EXPECT_EQ(written(), "epoch,loss\n0,0\n2,2\n");
}

TEST_F(FitWithCsvLogger, HasOneLineForAnEpochThatWasLostBeforeItsBackup) {
  train(0, {{{"loss", 1}}, {{"loss", 1}}, {{"loss", 1}}});  // of which the last has no backup
  train(2, {{{"loss", 0.5}}, {{"loss", 0.5}}});

  EXPECT_EQ(written(), "epoch,loss\n0,1\n1,1\n2,0.5\n3,0.5\n");
}

TEST_F(FitWithCsvLogger, BeginsAnewWithEachTraining) {
  Training training{.model = model_, .epochs = 1};
  CsvLogger logger(path_);

  for (const Logs& logs : {Logs{{"accuracy", 1}, {"loss", 1}}, Logs{{"loss", 0.5}}}) {
    logger.on_train_begin(training);
    logger.on_epoch_end(training, logs);
  }

  EXPECT_EQ(written(), "epoch,loss\n0,0.5\n");
}

TEST_F(FitWithCsvLogger, GivesANumberThatComesLaterAColumnThatIsEmptyBefore) {
  train(0, {{{"f1", 1}, {"loss", 2}}, {{"accuracy", 3}, {"f1", 4}, {"loss", 5}}, {{"accuracy", 6}, {"loss", 7}}});

  EXPECT_EQ(written(), "epoch,f1,loss,accuracy\n0,1,2,\n1,4,5,3\n2,,7,6\n");
  EXPECT_FALSE(std::filesystem::exists(path_ + ".tmp"));
}

TEST_F(FitWithCsvLogger, LeavesOutALineThatWasCutOff) {
  write("epoch,loss\n0,3\n1,2.51");
  LogCapture log;

  train(2, {{{"loss", 2.0}}});

  EXPECT_EQ(written(), "epoch,loss\n0,3\n2,2\n");
  EXPECT_TRUE(log.contains("was cut off, and is left out: 1,2.51"));
}

TEST_F(FitWithCsvLogger, WidensTheFileThatItGoesOnIn) {
  train(0, {{{"loss", 1}, {"val_loss", 2}}});

  train(1, {{{"accuracy", 3}, {"f1", 4}, {"loss", 5}}, {{"loss", 6}, {"val_loss", 7}}});

  EXPECT_EQ(written(), "epoch,loss,val_loss,accuracy,f1\n0,1,2,,\n1,5,,3,4\n2,6,7,,\n");
}

TEST_F(FitWithCsvLogger, QuotesNamesAndKnowsThemAgain) {
  const Logs logs{{"a,b", 1}, {"c\n7,d", 2}, {"say \"e\"", 3}};
  const std::string names = "epoch,\"a,b\",\"c\n7,d\",\"say \"\"e\"\"\"\n";
  train(0, {logs, logs});
  EXPECT_EQ(written(), names + "0,1,2,3\n1,1,2,3\n");

  train(1, {logs});

  EXPECT_EQ(written(), names + "0,1,2,3\n1,1,2,3\n");
}

TEST_F(FitWithCsvLogger, GoesOnInNoFileOfAnotherKind) {
  write("7,8\n9,10\n");

  EXPECT_THAT(error_of(StatusCode::kFailedPrecondition, [&] { train(1, {{{"loss", 1}}}); }),
              AllOf(HasSubstr("the first column of \"" + path_ + "\" is \"7\""), HasSubstr("expected \"epoch\"")));
  EXPECT_EQ(written(), "7,8\n9,10\n");
}

TEST_F(FitWithCsvLogger, SaysBeforeTheFirstEpochWhyItCannotWrite) {
  bool begun = false;
  const LambdaCallback watch({.on_epoch_begin = [&](Training&) { begun = true; }});
  const auto refused = [&](const std::string& path) {
    return error_of(StatusCode::kUnavailable,
                    [&] { model_.fit(data_, {.callbacks = {watch, CsvLogger(path)}, .verbose = 0}); });
  };
  write("no directory");

  EXPECT_EQ(refused(path_ + "/log.csv"), "CsvLogger: \"" + path_ + "/log.csv\" cannot be written: Not a directory");
  EXPECT_EQ(refused(directory_.path()), "CsvLogger: \"" + directory_.path() + "\" cannot be written: Is a directory");
  EXPECT_THAT(refused("/sys/nowhere/log.csv"), Not(HasSubstr("No such file"))) << "no directory can be made there";
  EXPECT_FALSE(begun);
  EXPECT_EQ(error_of([] { CsvLogger(""); }), "CsvLogger: no path, expected that of a file");
}

}  // namespace
}  // namespace muster::csv_logger_test

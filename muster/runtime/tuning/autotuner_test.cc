#include "muster/runtime/tuning/autotuner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>

#include "muster/base/log.h"
#include "muster/base/test_errors.h"
#include "muster/graph/test_program.h"
#include "muster/io/test_files.h"
#include "muster/runtime/tuning/machine_name.h"
#include "muster/runtime/worker/local_worker.h"

namespace muster::autotuner_test {

using testing::HasSubstr;
using testing_support::Builder;
using testing_support::error_of;
using testing_support::integer;
using testing_support::integers;
using testing_support::read_file;
using testing_support::ref;
using testing_support::ScopedDirectory;
using testing_support::write_file;
using Microseconds = std::chrono::microseconds;

// A machine on which time passes only when something runs.
class TunedAlternatives : public testing::Test {
 protected:
  Autotuner tuner(TuningOptions options = {.mode = TuningMode::kMeasure}) {
    return Autotuner(std::move(options), [this] { return time_; });
  }

  Alternative taking(std::string_view name, int microseconds, float result = 1) {
    return {name, [this, microseconds, result] {
              ++runs_;
              time_ += Microseconds(microseconds);
              return std::vector{torch::tensor(result)};
            }};
  }

  TuningQuestion question(std::vector<Alternative> alternatives) {
    return {.what = "a product", .device = at::kCPU, .alternatives = std::move(alternatives)};
  }

  const ScopedDirectory folder_;
  Autotuner::Clock::time_point time_{};
  int runs_ = 0;
};

TEST_F(TunedAlternatives, AreMeasuredOnce) {
  Autotuner tuner = this->tuner();
  const TuningQuestion asked = question({taking("recorded", 30), taking("native", 20), taking("patches", 25)});

  EXPECT_EQ(tuner.choose(asked), 1u);
  const int runs = runs_;
  EXPECT_EQ(tuner.choose(asked), 1u);

  EXPECT_GT(runs, 3);
  EXPECT_EQ(runs_, runs);
  EXPECT_EQ(tuner.measured(), 1);
}

TEST_F(TunedAlternatives, AreNotTriedAgainIfTheFirstCallIsHopeless) {
  EXPECT_EQ(tuner().choose(question({taking("recorded", 10), taking("native", 1'000'000)})), 0u);

  EXPECT_EQ(runs_, 2);
}

TEST_F(TunedAlternatives, ArePreparedBeforeTheClockRuns) {
  TuningQuestion asked = question({taking("rows", 10), taking("columns", 12)});
  int prepared = 0;
  asked.prepare = [&] {
    EXPECT_EQ(runs_, 0);
    ++prepared;
    time_ += Microseconds(1'000'000);
  };
  Autotuner tuner = this->tuner();

  EXPECT_EQ(tuner.choose(asked), 0u);
  EXPECT_EQ(tuner.choose(asked), 0u);

  EXPECT_EQ(prepared, 1);
}

TEST_F(TunedAlternatives, HaveToBeBetterByAsMuchAsIsAskedFor) {
  TuningQuestion asked = question({taking("rows", 1000), taking("columns", 980)});
  EXPECT_EQ(tuner().choose(asked), 1u);

  asked.percent = 3;
  EXPECT_EQ(tuner().choose(asked), 0u);
}

TEST_F(TunedAlternatives, WithOtherBitsAreNotTakenWhereBitsCount) {
  TuningQuestion asked = question({taking("rows", 1000), taking("columns", 500, 2)});
  asked.goal = TuningGoal::kFastestOfSameBits;
  EXPECT_EQ(tuner().choose(asked), 0u);

  asked.goal = TuningGoal::kAnyOfSameBits;
  EXPECT_EQ(tuner().choose(asked), 0u);
  asked.alternatives[1] = taking("either", 5000);
  EXPECT_EQ(tuner().choose(asked), 1u);
}

TEST_F(TunedAlternatives, AreRememberedByAFileForTheNextOne) {
  const TuningOptions measure{TuningMode::kMeasure, folder_.path("choices")};
  tuner(measure).choose(question({taking("recorded", 30), taking("native", 20)}));
  const int runs = runs_;

  // For whom the other one would be faster.
  const TuningQuestion asked = question({taking("recorded", 20), taking("native", 30)});
  EXPECT_EQ(tuner(measure).choose(asked), 1u);
  EXPECT_EQ(tuner({TuningMode::kPinned, measure.file}).choose(asked), 1u);

  EXPECT_EQ(runs_, runs);
  EXPECT_THAT(read_file(measure.file), HasSubstr(str_cat("native\t", machine_of(at::kCPU), "\ta product\n")));
}

TEST_F(TunedAlternatives, OfTwoWhoMeasureAtOnceAreThoseOfTheFirst) {
  const TuningOptions measure{TuningMode::kMeasure, folder_.path("choices")};
  Autotuner first = tuner(measure), second = tuner(measure);

  EXPECT_EQ(first.choose(question({taking("recorded", 30), taking("native", 20)})), 1u);
  EXPECT_EQ(second.choose(question({taking("recorded", 20), taking("native", 30)})), 1u);

  EXPECT_EQ(second.all().begin()->second.winner, "native");
}

TEST_F(TunedAlternatives, ArePinnedToWhatWasRecordedWhereTheFileSaysNothing) {
  const std::string path = folder_.path("choices");
  write_file(path, "muster tuning 1\nnative\tanother machine\ta product\n");
  Autotuner pinned = tuner({TuningMode::kPinned, path});

  EXPECT_EQ(pinned.choose(question({taking("recorded", 30), taking("native", 20)})), 0u);

  EXPECT_EQ(runs_, 0);
  EXPECT_EQ(pinned.measured(), 0);
  EXPECT_EQ(read_file(path), "muster tuning 1\nnative\tanother machine\ta product\n");
}

TEST_F(TunedAlternatives, ArePinnedToWhatWasRecordedWhereTheFileNamesAnotherOne) {
  const LogCapture log;
  const std::string path = folder_.path("choices");
  write_file(path, str_cat("muster tuning 1\npatches\t", machine_of(at::kCPU), "\ta product\n"));
  Autotuner pinned = tuner({TuningMode::kPinned, path});

  EXPECT_EQ(pinned.choose(question({taking("recorded", 30), taking("native", 20)})), 0u);

  EXPECT_EQ(runs_, 0);
  EXPECT_TRUE(log.contains(str_cat("tuning file \"", path, "\", line 2: \"patches\" is none of the implementations")));
}

// Of another version of the library, which knows more of them and goes on with its own answer.
TEST_F(TunedAlternatives, AreMeasuredAnewWhereTheFileNamesAnotherOne) {
  const LogCapture log;
  const std::string path = folder_.path("choices");
  const std::string text = str_cat("muster tuning 1\npatches\t", machine_of(at::kCPU), "\ta product\n");
  write_file(path, text);
  Autotuner tuner = this->tuner({TuningMode::kMeasure, path});

  EXPECT_EQ(tuner.choose(question({taking("recorded", 30), taking("native", 20)})), 1u);
  const int runs = runs_;
  EXPECT_EQ(tuner.choose(question({taking("recorded", 20), taking("native", 30)})), 1u);

  EXPECT_EQ(runs_, runs) << "it is remembered";
  EXPECT_EQ(read_file(path), text);
  EXPECT_TRUE(log.contains("line 2: \"patches\" is none of the implementations"));
}

TEST_F(TunedAlternatives, AreMeasuredAnewWhereAnotherProcessNamesAnotherOneMeanwhile) {
  const std::string path = folder_.path("choices");
  Autotuner tuner = this->tuner({TuningMode::kMeasure, path});
  write_file(path, str_cat("muster tuning 1\npatches\t", machine_of(at::kCPU), "\ta product\n"));

  EXPECT_EQ(tuner.choose(question({taking("recorded", 30), taking("native", 20)})), 1u);
  EXPECT_EQ(tuner.choose(question({taking("recorded", 20), taking("native", 30)})), 1u);
}

TEST_F(TunedAlternatives, AreChosenAllTheSameIfTheFileCannotBeWritten) {
  const LogCapture log;
  Autotuner tuner = this->tuner({TuningMode::kMeasure, folder_.path("nowhere/choices")});

  EXPECT_EQ(tuner.choose(question({taking("recorded", 30), taking("native", 20)})), 1u);

  EXPECT_TRUE(log.contains("what is measured will not outlive the process"));
  EXPECT_TRUE(log.contains("nowhere/choices"));
}

TEST(TuningOptions, AreTheEnvironmentsWhereTheySayNothing) {
  setenv("MUSTER_TUNING", "pinned", 1);
  setenv("MUSTER_TUNING_FILE", "/choices", 1);

  EXPECT_EQ(with_environment({}).mode, TuningMode::kPinned);
  EXPECT_EQ(with_environment({}).file, "/choices");
  EXPECT_EQ(with_environment({TuningMode::kOff, "/mine"}).mode, TuningMode::kOff);
  EXPECT_EQ(with_environment({TuningMode::kOff, "/mine"}).file, "/mine");
  unsetenv("MUSTER_TUNING_FILE");
  EXPECT_THAT(error_of([] { with_environment({}); }), HasSubstr("pinned, but to no file"));
  setenv("MUSTER_TUNING", "sometimes", 1);
  EXPECT_THAT(error_of([] { with_environment({}); }), HasSubstr("\"sometimes\", expected measure, pinned or off"));
  unsetenv("MUSTER_TUNING");
  EXPECT_EQ(with_environment({}).mode, TuningMode::kMeasure);
}

TEST(MachineName, IsTheModelOrItsNumbers) {
  EXPECT_EQ(processor_in("processor\t: 0\nmodel name\t: Xeon(R) @ 2.1\tGHz\nflags: a\n"), "Xeon(R) @ 2.1 GHz");
  EXPECT_EQ(processor_in("processor: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"), "processor 0x41/0xd40");
  EXPECT_EQ(processor_in(""), "processor of unknown model");
  EXPECT_THAT(machine_of(at::kCPU), testing::AllOf(HasSubstr("threads: "), HasSubstr("libtorch ")));
}

// A max pooling of images, which has a choice.
Program pooling() {
  Builder b("pooling");
  const ValueId x = b.argument({DType::kFloat, {2, 3, 16, 16}});
  const size_t pooled =
      b.instruction("aten::max_pool2d_with_indices",
                    {ref(x), integers({2, 2}), integers({2, 2}), integers({0, 0}), integers({1, 1}), {false}}, {1, 1});
  return b.finish({b.program.instructions[pooled].results[0][0]});
}

void run_pooling(LocalWorker& worker) { worker.run(worker.register_program(pooling()), {torch::rand({2, 3, 16, 16})}); }

std::map<std::string, std::string> choices(const LocalWorker& worker) {
  std::map<std::string, std::string> winners;
  for (const auto& [key, choice] : worker.tuner()->all()) winners[key.what] = choice.winner;
  return winners;
}

TEST(TunedWorkers, WithOneFileTakeTheSameChoices) {
  const ScopedDirectory folder;
  const std::string file = folder.path("choices");
  LocalWorker first({.devices = {.gpus = false}, .tuning = {TuningMode::kMeasure, file}});
  run_pooling(first);
  LocalWorker second({.devices = {.gpus = false}, .tuning = {TuningMode::kMeasure, file}});
  LocalWorker pinned({.devices = {.gpus = false}, .tuning = {TuningMode::kPinned, file}});

  run_pooling(second);
  run_pooling(pinned);

  EXPECT_GE(choices(first).size(), 1u);
  EXPECT_EQ(choices(second), choices(first));
  EXPECT_EQ(choices(pinned), choices(first));
  EXPECT_EQ(second.tuner()->measured(), 0);
  EXPECT_EQ(pinned.tuner()->measured(), 0);
}

// The first process is another one: this program, begun anew for the statement that has to end it.
TEST(TunedWorkersDeathTest, TakeTheChoicesThatAnotherProcessHasWritten) {
  constexpr const char* kVariable = "MUSTER_TEST_CHOICES";
  setenv(kVariable, str_cat(testing::TempDir(), "choices-", absl::Hex(random_id())).c_str(), /*overwrite=*/0);
  const std::string file = std::getenv(kVariable);
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        LocalWorker first({.devices = {.gpus = false}, .tuning = {TuningMode::kMeasure, file}});
        run_pooling(first);
        std::_Exit(first.tuner()->measured() > 0 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
  LocalWorker second({.devices = {.gpus = false}, .tuning = {TuningMode::kMeasure, file}});

  run_pooling(second);

  EXPECT_GE(choices(second).size(), 1u);
  EXPECT_EQ(second.tuner()->measured(), 0);
  std::filesystem::remove(file);
  unsetenv(kVariable);
}

TEST(TunedWorkers, RunAsRecordedWhatAPinnedFileHasAnotherImplementationOf) {
  const ScopedDirectory folder;
  const std::string file = folder.path("choices");
  LocalWorker first({.devices = {.gpus = false}, .tuning = {TuningMode::kMeasure, file}});
  run_pooling(first);
  TuningTable told = first.tuner()->all();
  for (auto& [key, choice] : told) choice.winner = "native";  // which pooling does not have
  write_file(file, tuning_text(told));
  const LogCapture log;
  LocalWorker pinned({.devices = {.gpus = false}, .tuning = {TuningMode::kPinned, file}});

  run_pooling(pinned);

  EXPECT_TRUE(log.contains("line 2: \"native\" is none of the implementations of aten::max_pool2d_with_indices"));
}

TEST(TunedWorkers, DoNotBeginWithADamagedFile) {
  const ScopedDirectory folder;
  write_file(folder.path("choices"), "muster tuning 1\nrows\n");

  EXPECT_THAT(error_of(StatusCode::kDataLoss,
                       [&] { LocalWorker({.devices = {.gpus = false}, .tuning = {{}, folder.path("choices")}}); }),
              HasSubstr("line 2"));
}

TEST(TunedWorkers, MeasureNothingIfTuningIsOffOrExactIsSet) {
  LocalWorker off({.devices = {.gpus = false}, .tuning = {.mode = TuningMode::kOff}});
  LocalWorker exact({.devices = {.gpus = false}, .exact = true});

  EXPECT_EQ(off.tuner(), nullptr);
  EXPECT_EQ(exact.tuner(), nullptr);
}

}  // namespace muster::autotuner_test

#include "muster/distribute/coordinator/coordinator_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using testing::HasSubstr;

TaskReport worker(double running, double input, double peers) {
  return {.task = "/job:worker/replica:0/task:0",
          .cpu = 0.5,
          .cores = 1,
          .running = running,
          .input = input,
          .peers = peers};
}

CoordinatorReport report(TaskReport worker, double ps_cpu) {
  return {.seconds = 10,
          .closures_per_second = 100,
          .chief_cpu = 0.3,
          .workers = {std::move(worker)},
          .parameter_servers = {{.task = "/job:ps/replica:0/task:0", .cpu = 0.1, .cores = 2},
                                {.task = "/job:ps/replica:0/task:1", .cpu = ps_cpu, .cores = 2}}};
}

TEST(CoordinatorReport, NamesWhatLimitsTheRate) {
  EXPECT_EQ(CoordinatorReport{}.limit(), Limit::kNothing);
  EXPECT_EQ(report(worker(0.4, 0, 0.1), 0.1).limit(), Limit::kChief);
  EXPECT_EQ(report(worker(0.95, 0.05, 0.2), 1.9).limit(), Limit::kWorkers);
  EXPECT_EQ(report(worker(0.95, 0.5, 0.2), 0.1).limit(), Limit::kInput);
  EXPECT_EQ(report(worker(0.95, 0.05, 0.6), 1.9).limit(), Limit::kParameterServers);
  EXPECT_EQ(report(worker(0.95, 0.05, 0.6), 0.5).limit(), Limit::kWire);
}

TEST(CoordinatorReport, NamesWhatLimitsClosuresThatTakeLongerThanItsTime) {
  CoordinatorReport given = report(worker(1, 0.9, 0), 0.1);
  given.closures_per_second = 0;

  EXPECT_EQ(given.limit(), Limit::kInput);
  EXPECT_THAT(given.sentence(), HasSubstr("0 closures a second, limited by input"));
}

TEST(CoordinatorReport, SaysWhichParameterServerIsBusy) {
  EXPECT_THAT(report(worker(1, 0, 0.6), 1.9).sentence(),
              HasSubstr("100 closures a second, limited by the processors of parameter servers: "
                        "/job:ps/replica:0/task:1 keeps 1.9 cores of 2 busy, closures wait for 60 % of their time"));
}

TEST(CoordinatorReport, DoesNotTakeAMachineThatIsFullOfTasksForTheWire) {
  CoordinatorReport given = report(worker(1, 0, 0.6), 0.5);
  given.parameter_servers[1].machine = 0.9;
  EXPECT_EQ(given.limit(), Limit::kWire);

  given.parameter_servers[1].machine = 0.99;

  EXPECT_EQ(given.limit(), Limit::kMachines);
  EXPECT_THAT(given.sentence(), HasSubstr("limited by too many tasks on one machine: all cores of the machine of "
                                          "/job:ps/replica:0/task:1 are busy, closures wait for parameter servers for "
                                          "60 % of their time"));
  EXPECT_THAT(given.to_string(), HasSubstr("99 %"));
}

TEST(CoordinatorReport, SaysWhichStageOfTheInputLimits) {
  CoordinatorReport given = report(worker(1, 0.5, 0.1), 0.5);
  EXPECT_THAT(given.sentence(), testing::EndsWith("wait for their datasets for 50 % of their time"));
  given.workers[0].input_stage = "map \"augment\"";
  given.workers.push_back(worker(1, 0.6, 0.1));
  EXPECT_THAT(given.sentence(), testing::EndsWith("of their time, which are limited by map \"augment\""));
}

TEST(CoordinatorReport, TellsOfTasksThatDoNotAnswer) {
  CoordinatorReport given = report(worker(1, 0, 0.1), 0.5);
  given.workers.push_back({.task = "/job:worker/replica:0/task:1", .status = Status(StatusCode::kUnavailable, "gone")});
  EXPECT_EQ(given.limit(), Limit::kWorkers) << "of those that are known";
  EXPECT_THAT(given.sentence(), testing::EndsWith("what the workers compute; not there: /job:worker/replica:0/task:1"));
  EXPECT_THAT(given.to_string(), HasSubstr("/job:worker/replica:0/task:1     gone"));
  EXPECT_THAT(given.to_string(), HasSubstr("100 %"));
  given.workers[0].running = 0.4;
  EXPECT_EQ(given.limit(), Limit::kMissing) << "the chief is not to blame";
  EXPECT_THAT(given.sentence(), HasSubstr("limited by tasks that are not there: /job:worker/replica:0/task:1"));
}

}  // namespace
}  // namespace muster

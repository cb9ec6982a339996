#include "muster/distribute/coordinator/ps_judge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/rpc/calls/nobody_listens.h"
#include "muster/runtime/worker/lost_device.h"
#include "muster/runtime/worker/restart.h"

namespace muster::ps_judge_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string kPs = "/job:ps/replica:0/task:0", kWorker = "/job:worker/replica:0/task:0";

Status not_reached() { return {StatusCode::kUnavailable, kPs + " at host:1 refuses connections", kPs}; }
Status late() { return {StatusCode::kDeadlineExceeded, "no answer", kPs}; }

TEST(LossOfATask, IsThatOfItsGpu) {
  EXPECT_TRUE(tells_of_loss(lost_device_status()));
  EXPECT_FALSE(tells_of_loss({StatusCode::kInvalidArgument, "an index is out of range", kWorker}));
}

// A job of two workers whose background work is done at once, or when it is asked for.
class PsJudges : public testing::Test {
 protected:
  void met(size_t worker, const Status& failure) { judge_.met(worker, failure, std::chrono::steady_clock::now()); }

  std::vector<size_t> up_{0, 1};
  Status of_ps_;  // what it fails with when it is asked
  int asked_ = 0;
  std::vector<size_t> cut_off_;
  Status end_;
  int pauses_ = 0;
  std::function<void()> while_it_pauses_ = [] {};
  bool ends_ = false;
  PsJudgeOptions options_{.ps = {kPs},
                          .workers = 2,
                          .transient_failures = 2,
                          .check_alive =
                              [this](const std::string& task) {
                                EXPECT_EQ(task, kPs);
                                ++asked_;
                                if (!of_ps_.ok()) throw Error(of_ps_);
                              },
                          .workers_up = [this] { return up_; },
                          .do_without = [this](size_t worker, const Status&) { cut_off_.push_back(worker); },
                          .end = [this](const Status& why) { end_ = why; },
                          .in_background = [](const std::function<void()>& work) { work(); },
                          .pause =
                              [this](std::chrono::milliseconds) {
                                ++pauses_;
                                while_it_pauses_();
                                return !ends_;
                              }};
  PsJudge judge_{options_};
};

TEST_F(PsJudges, AreConcernedWithParameterServersThatAreNotThere) {
  EXPECT_TRUE(judge_.concerns(not_reached()));
  EXPECT_TRUE(judge_.concerns(late()));
  EXPECT_TRUE(judge_.concerns(restarted(kPs, "it was restarted")));
  EXPECT_FALSE(judge_.concerns(Status(StatusCode::kInvalidArgument, "a wrong shape", kPs)));
  EXPECT_FALSE(judge_.concerns(Status(StatusCode::kUnavailable, "gone", kWorker)));
}

TEST_F(PsJudges, PutUpWithAFewFailures) {
  for (int time = 0; time < 2; ++time) met(0, not_reached());

  EXPECT_EQ(asked_, 2) << "whether it is gone";
  EXPECT_THAT(cut_off_, IsEmpty());
  EXPECT_TRUE(end_.ok()) << end_;
}

TEST_F(PsJudges, PutUpWithAFewFailuresOfOneThatIsSilent) {
  of_ps_ = not_reached();
  for (int time = 0; time < 2; ++time) met(0, not_reached());

  EXPECT_TRUE(end_.ok()) << "a network that is cut for a moment looks the same: " << end_;
}

TEST_F(PsJudges, EndTheJobSoonIfNobodyListensWhereAParameterServerWas) {
  of_ps_ = nobody_there(not_reached());
  met(0, not_reached());

  EXPECT_EQ(end_.code(), StatusCode::kUnavailable);
  EXPECT_EQ(end_.task(), kPs);
  EXPECT_EQ(end_.message(),
            "parameter server " + kPs + " is gone, and its variables with it: host:1 refuses connections");
  EXPECT_EQ(pauses_, 1);
}

TEST_F(PsJudges, PutUpWithAPortThatRefusesForAMoment) {
  of_ps_ = nobody_there(not_reached());
  while_it_pauses_ = [this] { of_ps_ = {}; };
  met(0, not_reached());

  EXPECT_EQ(asked_, 2);
  EXPECT_TRUE(end_.ok()) << end_;
}

TEST_F(PsJudges, PutUpWithAPortThatRefusesForAsLongAsTheyAreTold) {
  options_.transient_failures = 1'000;
  PsJudge patient(options_);
  of_ps_ = nobody_there(not_reached());
  while_it_pauses_ = [this] { EXPECT_TRUE(end_.ok()) << end_; };
  patient.met(0, not_reached(), std::chrono::steady_clock::now());

  EXPECT_EQ(pauses_, 998);
  EXPECT_FALSE(end_.ok());
}

TEST_F(PsJudges, StopLookingWhenTheJobEnds) {
  ends_ = true;
  of_ps_ = nobody_there(not_reached());
  met(0, not_reached());

  EXPECT_EQ(asked_, 1);
  EXPECT_TRUE(end_.ok()) << end_;
}

TEST_F(PsJudges, DoNotTakeTheWordOfAWorkerThatNobodyListens) {
  met(0, nobody_there(not_reached()));

  EXPECT_EQ(asked_, 1);
  EXPECT_TRUE(end_.ok()) << end_;
}

TEST_F(PsJudges, EndTheJobAtOnceIfTheOneThatIsAskedWasRestarted) {
  of_ps_ = restarted(kPs, "it was restarted");
  met(0, not_reached());

  EXPECT_THAT(end_.message(), AllOf(HasSubstr(kPs), HasSubstr("its variables with it")));
}

TEST_F(PsJudges, CountWhatWasUnderWayAtTheSameTimeOnce) {
  const auto began = std::chrono::steady_clock::now();
  for (int time = 0; time < 10; ++time) judge_.met(0, not_reached(), began);

  EXPECT_EQ(asked_, 1) << "whether it is gone";
  EXPECT_THAT(cut_off_, IsEmpty());
}

TEST_F(PsJudges, DoWithoutTheWorkerThatIsCutOffWhileOthersReachIt) {
  for (int time = 0; time < 3; ++time) met(1, not_reached());

  EXPECT_EQ(asked_, 3);
  EXPECT_THAT(cut_off_, ElementsAre(1));
  EXPECT_TRUE(end_.ok()) << end_;
}

TEST_F(PsJudges, ForgetTheTroubleOfAWorkerThatHasRunSomething) {
  met(0, not_reached());
  met(1, not_reached());
  judge_.reached(0);
  met(1, not_reached());

  EXPECT_THAT(cut_off_, ElementsAre(1));
}

TEST_F(PsJudges, EndTheJobWithTheNameOfAParameterServerThatIsGone) {
  of_ps_ = not_reached();
  for (int time = 0; time < 3; ++time) met(0, not_reached());

  EXPECT_EQ(end_.code(), StatusCode::kUnavailable);
  EXPECT_EQ(end_.task(), kPs);
  EXPECT_EQ(end_.message(),
            "parameter server " + kPs + " is gone, and its variables with it: host:1 refuses connections");
}

TEST_F(PsJudges, PutUpWithShortCutsHoweverManyThereWere) {
  while_it_pauses_ = [&] { of_ps_ = Status(); };
  for (int cut = 0; cut < 20; ++cut) {
    of_ps_ = Status(StatusCode::kUnavailable, kPs + ": Socket closed", kPs);
    met(0, of_ps_);
    judge_.reached(0);
  }

  EXPECT_TRUE(end_.ok()) << end_;
}

TEST_F(PsJudges, EndTheJobAtOnceIfAParameterServerWasRestarted) {
  met(0, restarted(kPs, "it was restarted"));

  EXPECT_EQ(asked_, 0);
  EXPECT_THAT(end_.message(), AllOf(HasSubstr(kPs), HasSubstr("its variables with it")));
}

TEST_F(PsJudges, GiveThemTimeIfNoWorkerReachesOneThatIsThere) {
  for (int time = 0; time < 3; ++time) {
    met(0, not_reached());
    met(1, not_reached());
  }

  EXPECT_GE(asked_, 1);
  EXPECT_THAT(cut_off_, IsEmpty());
  EXPECT_TRUE(end_.ok()) << "it has not been so for long: " << end_;
}

TEST_F(PsJudges, PutUpWithOneLateAnswerForEveryTenWorkers) {
  met(0, late());
  EXPECT_EQ(asked_, 0);

  met(1, late());
  EXPECT_EQ(asked_, 1);
}

TEST_F(PsJudges, AskThemWhileNoWorkerIsUp) {
  up_.clear();
  judge_.ask_all();
  EXPECT_EQ(asked_, 1);
  EXPECT_TRUE(end_.ok()) << end_;

  of_ps_ = not_reached();
  for (int time = 0; time < 3; ++time) judge_.ask_all();
  EXPECT_THAT(end_.message(), HasSubstr("parameter server " + kPs + " is gone"));
}

}  // namespace
}  // namespace muster::ps_judge_test

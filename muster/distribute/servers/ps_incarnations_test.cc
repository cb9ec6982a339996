#include "muster/distribute/servers/ps_incarnations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/cluster/in_process_cluster.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/runtime/worker/restart.h"

namespace muster::ps_incarnations_test {
namespace {

using testing::HasSubstr;
using testing_support::caught;

const std::string kFirst = "/job:ps/replica:0/task:0", kSecond = "/job:ps/replica:0/task:1";

class Incarnations : public testing::Test {
 protected:
  void restart(const TaskId& task) {
    cluster_.stop(task);
    cluster_.start(task);
  }
  // With a variable on that task.
  static Program program_at(const std::string& task) {
    Program program;
    program.devices = {task + "/device:CPU:0"};
    program.variables = {{.name = "v"}};
    return program;
  }

  InProcessCluster cluster_{{.workers = 1, .ps = 2, .transport = Transport::kLocal}};
  PsIncarnations known_{{kFirst, kSecond}, cluster_.peers()};
};

TEST_F(Incarnations, TellARestartedTaskFromTheOneThatItWas) {
  known_.check_alive(kFirst);

  restart({"ps", 0});

  const Status lost = caught([&] { known_.check_alive(kFirst); });
  EXPECT_TRUE(is_restart(lost)) << lost;
  EXPECT_EQ(lost.task(), kFirst);
  EXPECT_THAT(lost.message(), HasSubstr("has lost its variables"));
  EXPECT_TRUE(caught([&] { known_.check_alive(kSecond); }).ok());
}

TEST_F(Incarnations, NameATaskThatIsNotThere) {
  cluster_.stop({"ps", 1});

  const Status lost = caught([&] { known_.check_alive(kSecond); });

  EXPECT_EQ(lost.code(), StatusCode::kUnavailable);
  EXPECT_EQ(lost.task(), kSecond);
}

TEST_F(Incarnations, AreThoseOfTheVariablesOfAProgram) {
  restart({"ps", 0});

  EXPECT_TRUE(is_restart(caught([&] { known_.check_alive(program_at(kFirst)); })));
  EXPECT_TRUE(caught([&] { known_.check_alive(program_at(kSecond)); }).ok());
  EXPECT_TRUE(caught([&] { known_.check_alive(program_at("/job:worker/replica:0/task:0")); }).ok());
}

TEST_F(Incarnations, AreTakenForWhatTheyAreWhenTheyHaveNewValues) {
  const PsIncarnations::Known before = known_.known();
  restart({"ps", 0});

  PsIncarnations::Known now = known_.ask();
  EXPECT_FALSE(caught([&] { known_.check_alive(kFirst); }).ok()) << "to ask is not to take";
  EXPECT_EQ(known_.known(), before);
  known_.take(now);

  EXPECT_EQ(known_.known(), now);
  EXPECT_NE(now.at(kFirst), before.at(kFirst));

  EXPECT_TRUE(caught([&] { known_.check_alive(kFirst); }).ok());
}

}  // namespace
}  // namespace muster::ps_incarnations_test

#include "muster/distribute/servers/ps_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/cluster/in_process_cluster.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/distribute/servers/ps_variables.h"
#include "muster/runtime/worker/restart.h"
#include "muster/trace/variable_arithmetic.h"

namespace muster::ps_runner_test {
namespace {

using testing_support::caught;
using testing_support::strategy_of;

// Beside the runner that a strategy has.
class PsRunners : public testing::Test {
 protected:
  const std::vector<std::string>& ps() const { return strategy_.parameter_servers(); }

  InProcessCluster cluster_{{.workers = 1, .ps = 2, .transport = Transport::kLocal}};
  ParameterServerStrategy strategy_ = strategy_of(cluster_, Transport::kLocal);
  PsIncarnations incarnations_{ps(), cluster_.peers()};
  PsRunner runner_{{.tasks = ps(), .container = strategy_.variables()->container(), .peers = cluster_.peers()},
                   incarnations_};
};

TEST_F(PsRunners, UseVariablesOfSeveralParameterServers) {
  Variable a = strategy_.make<Variable>(torch::ones({})), b = strategy_.make<Variable>(torch::ones({}));
  auto step = function([&](at::Tensor x) {
    a.assign_add(x);
    return a.value() + b.value();
  });
  const Program program = step.program(torch::ones({}));

  for (int time = 1; time <= 3; ++time) {
    EXPECT_EQ(runner_.run(program, {torch::full({}, 2.0F)}).at(0).item<float>(), 2.0F * static_cast<float>(time) + 2);
  }
  EXPECT_EQ(a.value().item<float>(), 7);
}

TEST_F(PsRunners, WriteNothingToAParameterServerThatWasRestarted) {
  Variable v = strategy_.make<Variable>(torch::ones({}));
  auto write = function([&](at::Tensor x) { v.assign(x); });
  auto read = function([&] { return v.value() + 0; });
  const Program writes = write.program(torch::ones({})), reads = read.program();
  EXPECT_EQ(runner_.run(reads, {}).at(0).item<float>(), 1);

  cluster_.stop({"ps", 0});
  cluster_.start({"ps", 0});

  EXPECT_TRUE(is_restart(caught([&] { runner_.run(writes, {torch::ones({})}); })));
  EXPECT_TRUE(is_restart(caught([&] { runner_.run(reads, {}); })));
}

TEST_F(PsRunners, HandOnTheErrorOfAProgram) {
  auto pick = testing_support::picky();

  const Status failure =
      caught([&] { runner_.run(pick.program(testing_support::good_index()), {testing_support::bad_index()}); });

  EXPECT_EQ(failure.code(), StatusCode::kInvalidArgument) << failure;
}

}  // namespace
}  // namespace muster::ps_runner_test

#include "muster/fit/alone_in_cluster.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>

#include "muster/base/log.h"
#include "muster/cluster/test_environment.h"
#include "muster/fit/model.h"

namespace muster::alone_in_cluster_test {
namespace {

using testing_support::ScopedVariable;

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(AloneInCluster, TellsTheFirstOfTasksThatShouldTrainInStepHowMany) {
  const ClusterSpec cluster({{"worker", {"w0:1", "w1:1", "w2:1"}}});

  EXPECT_THAT(alone_in_cluster(cluster, {"worker", 0}).value(),
              AllOf(HasSubstr("3 tasks that train together"), HasSubstr("/job:worker/replica:0/task:0 trains"),
                    HasSubstr("strategy_named(\"multi_worker\")")));
  EXPECT_EQ(alone_in_cluster(cluster, {"worker", 1}), std::nullopt);
}

TEST(AloneInCluster, TellsTheChiefOfServersThatItUsesNone) {
  const ClusterSpec cluster({{"chief", {"c:1"}}, {"worker", {"w:1"}}, {"ps", {"p0:1", "p1:1"}}});

  EXPECT_THAT(alone_in_cluster(cluster, {"chief", 0}).value(),
              AllOf(HasSubstr("parameter servers (2)"), HasSubstr("strategy_named(\"parameter_server\")")));
  EXPECT_EQ(alone_in_cluster(cluster, {"worker", 0}), std::nullopt);
}

TEST(AloneInCluster, SaysNothingToWhoIsMeantToBeAlone) {
  EXPECT_EQ(alone_in_cluster(ClusterSpec({{"worker", {"w:1"}}}), {"worker", 0}), std::nullopt);
  EXPECT_EQ(alone_in_cluster(ClusterSpec({{"worker", {"w0:1", "w1:1"}}}), {"evaluator", 0}), std::nullopt);
  for (const char* config : {"", "{}", "no json", R"({"cluster": {"worker": ["w0:1", "w1:1"]}})",
                             R"({"cluster": {"other": ["o:1"]}, "task": {"type": "other", "index": 0}})"}) {
    const ScopedVariable variable("TF_CONFIG", config);
    EXPECT_EQ(alone_in_cluster(), std::nullopt) << config;
  }
}

TEST(AloneInCluster, IsToldOnceByFitWithoutAStrategy) {
  const ScopedVariable variable("TF_CONFIG",
                                R"({"cluster": {"worker": ["w0:1", "w1:1"]}, "task": {"type": "worker", "index": 0}})");
  Model model = compile(torch::nn::Linear(1, 1), {.loss = mean_squared_error});
  const LogCapture log;

  for (int i = 0; i < 2; ++i) model.fit({torch::ones({4, 1}), torch::ones({4, 1})}, {.verbose = 0});

  const std::vector<LogLine> lines = log.lines();
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                          [](const LogLine& line) {
                            return line.level == LogLevel::kWarning &&
                                   line.text.find("2 tasks that train together") != std::string::npos;
                          }),
            1);
}

}  // namespace
}  // namespace muster::alone_in_cluster_test

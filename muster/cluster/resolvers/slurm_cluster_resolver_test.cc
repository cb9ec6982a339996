#include "muster/cluster/resolvers/slurm_cluster_resolver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "muster/base/status.h"
#include "muster/cluster/test_environment.h"

namespace muster {
namespace {

using ::muster::testing_support::caught;
using ::muster::testing_support::ScopedVariable;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::StartsWith;

// The environment of a task that srun started; variables that are not given are not set.
class Slurm {
 public:
  explicit Slurm(const std::map<std::string, std::string>& given) {
    for (const char* name :
         {"SLURM_PROCID", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NUM_TASKS",
          "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE",
          "SLURM_DISTRIBUTION", "SLURM_GPUS_PER_TASK", "SLURM_GPUS_ON_NODE"}) {
      auto found = given.find(name);
      variables_.push_back(
          std::make_unique<ScopedVariable>(name, found == given.end() ? std::nullopt : std::optional(found->second)));
    }
  }

 private:
  std::vector<std::unique_ptr<ScopedVariable>> variables_;
};

// Five tasks on three nodes.
std::map<std::string, std::string> five_tasks(const std::string& rank) {
  return {{"SLURM_PROCID", rank},
          {"SLURM_STEP_NUM_TASKS", "5"},
          {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
          {"SLURM_STEP_NODELIST", "t02n[13,41,43]"}};
}

std::map<std::string, std::string> with(std::map<std::string, std::string> variables, const std::string& name,
                                        const std::string& value) {
  variables[name] = value;
  return variables;
}

Status refusal(const std::map<std::string, std::string>& variables, SlurmClusterResolverOptions options = {}) {
  Slurm slurm(variables);
  return caught([&] { SlurmClusterResolver resolver(options); });
}

TEST(SlurmClusterResolver, MakesEveryTaskAWorkerUnlessToldOtherwise) {
  Slurm slurm({{"SLURM_PROCID", "2"},
               {"SLURM_STEP_NUM_TASKS", "3"},
               {"SLURM_STEP_TASKS_PER_NODE", "1(x3)"},
               {"SLURM_STEP_NODELIST", "t02n13,t02n41,t02n43"}});

  SlurmClusterResolver resolver;

  EXPECT_EQ(resolver.cluster_spec(), ClusterSpec({{"worker", {"t02n13:8888", "t02n41:8888", "t02n43:8888"}}}));
  EXPECT_EQ(resolver.task(), (TaskId{"worker", 2}));
  EXPECT_EQ(resolver.rpc_layer(), "grpc");
  EXPECT_EQ(resolver.environment(), "");
  EXPECT_EQ(resolver.master(), "grpc://t02n43:8888");
  EXPECT_EQ(resolver.master("worker", 0, "test"), "test://t02n13:8888");
}

TEST(SlurmClusterResolver, GivesTheRanksToTheJobsInTheirOrder) {
  Slurm slurm(five_tasks("1"));

  SlurmClusterResolver ps_first({.jobs = {{"ps", 1}, {"worker", 4}}});
  SlurmClusterResolver worker_first({.jobs = {{"worker", 4}, {"ps", 1}}});

  EXPECT_EQ(
      ps_first.cluster_spec(),
      ClusterSpec({{"ps", {"t02n13:8888"}}, {"worker", {"t02n13:8889", "t02n41:8888", "t02n41:8889", "t02n43:8888"}}}));
  EXPECT_EQ(ps_first.task(), (TaskId{"worker", 0}));
  EXPECT_EQ(worker_first.cluster_spec().task_address("ps", 0), "t02n43:8888");
  EXPECT_EQ(worker_first.task(), (TaskId{"worker", 1}));
}

TEST(SlurmClusterResolver, CountsPortsFromItsBaseOnEveryNode) {
  Slurm slurm(five_tasks("0"));

  SlurmClusterResolver resolver({.port_base = 2222});

  EXPECT_EQ(resolver.cluster_spec(),
            ClusterSpec({{"worker", {"t02n13:2222", "t02n13:2223", "t02n41:2222", "t02n41:2223", "t02n43:2222"}}}));
}

TEST(SlurmClusterResolver, TakesTheTasksPerNodeFromItsOptions) {
  Slurm slurm({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "3"}, {"SLURM_STEP_NODELIST", "n[1-3]"}});

  SlurmClusterResolver resolver({.jobs = {{"ps", 1}, {"worker", 2}}, .tasks_per_node = 1});

  EXPECT_EQ(resolver.cluster_spec(), ClusterSpec({{"ps", {"n1:8888"}}, {"worker", {"n2:8888", "n3:8888"}}}));
  EXPECT_EQ(resolver.task(), (TaskId{"ps", 0}));
}

TEST(SlurmClusterResolver, FallsBackOnTheVariablesOfTheJob) {
  Slurm of_job(
      {{"SLURM_PROCID", "3"}, {"SLURM_JOB_NODELIST", "n[1-2]"}, {"SLURM_NTASKS", "4"}, {"SLURM_NTASKS_PER_NODE", "2"}});

  SlurmClusterResolver resolver;

  EXPECT_EQ(resolver.cluster_spec(), ClusterSpec({{"worker", {"n1:8888", "n1:8889", "n2:8888", "n2:8889"}}}));
  EXPECT_EQ(resolver.task_index(), 3);
}

TEST(SlurmClusterResolver, UsesOnlyAsManyPlacesAsThereAreTasks) {
  Slurm slurm(with(five_tasks("0"), "SLURM_STEP_NUM_TASKS", "3"));

  EXPECT_EQ(SlurmClusterResolver().cluster_spec().num_tasks("worker"), 3);
}

TEST(SlurmClusterResolver, KnowsItsGpus) {
  Slurm slurm(with(with(five_tasks("1"), "SLURM_GPUS_PER_TASK", "a100:2"), "SLURM_GPUS_ON_NODE", "8"));

  EXPECT_THAT(SlurmClusterResolver().num_accelerators(), ElementsAre(Pair("GPU", 2)));
  EXPECT_THAT(SlurmClusterResolver({.gpus_per_task = 3}).num_accelerators(), ElementsAre(Pair("GPU", 3)));
  EXPECT_THAT(SlurmClusterResolver({.gpus_per_task = 0}).num_accelerators(), IsEmpty());
}

TEST(SlurmClusterResolver, SharesTheGpusOfANodeAmongItsTasks) {
  {
    Slurm shared(with(five_tasks("1"), "SLURM_GPUS_ON_NODE", "4"));
    EXPECT_THAT(SlurmClusterResolver().num_accelerators(), ElementsAre(Pair("GPU", 2)));
  }
  {
    Slurm alone(with(five_tasks("4"), "SLURM_GPUS_ON_NODE", "4"));
    EXPECT_THAT(SlurmClusterResolver().num_accelerators(), ElementsAre(Pair("GPU", 4)));
  }
  Slurm none(five_tasks("0"));
  EXPECT_THAT(SlurmClusterResolver().num_accelerators(), IsEmpty());
}

TEST(SlurmClusterResolver, SaysThatItIsNotInSlurm) {
  Status status = refusal({});

  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), StartsWith("SLURM_PROCID is not set"));
}

TEST(SlurmClusterResolver, NamesTheVariableThatIsWrong) {
  EXPECT_EQ(refusal(five_tasks("first")).message(), "SLURM_PROCID: expected a number, got \"first\"");
  EXPECT_THAT(refusal(with(five_tasks("0"), "SLURM_STEP_NODELIST", "n[1")).message(),
              StartsWith("SLURM_STEP_NODELIST: hostlist \"n[1\""));
  EXPECT_THAT(refusal(with(five_tasks("0"), "SLURM_STEP_TASKS_PER_NODE", "2(x")).message(),
              StartsWith("SLURM_STEP_TASKS_PER_NODE: tasks per node"));
  EXPECT_THAT(refusal(with(five_tasks("0"), "SLURM_STEP_TASKS_PER_NODE", "2,3")).message(),
              StartsWith("SLURM_STEP_TASKS_PER_NODE: \"2,3\" is for 2 nodes, the node list has 3"));
  EXPECT_THAT(refusal(with(five_tasks("0"), "SLURM_STEP_NUM_TASKS", "6")).message(),
              HasSubstr("6 tasks, but there is room for 5"));
  EXPECT_THAT(refusal(five_tasks("5")).message(), StartsWith("SLURM_PROCID: 5, but there are 5 tasks"));
  EXPECT_THAT(refusal(with(five_tasks("0"), "SLURM_GPUS_ON_NODE", "many")).message(),
              StartsWith("SLURM_GPUS_ON_NODE: "));
}

TEST(SlurmClusterResolver, RefusesJobsThatDoNotFit) {
  EXPECT_THAT(refusal(five_tasks("0"), {.jobs = {{"ps", 1}, {"worker", 5}}}).message(),
              HasSubstr("the jobs have 6 tasks, but Slurm started 5"));
  EXPECT_THAT(refusal(five_tasks("0"), {.jobs = {{"worker", 4}}}).message(), HasSubstr("the jobs have 4 tasks"));
  EXPECT_THAT(refusal(five_tasks("0"), {.jobs = {{"worker", 6}, {"ps", -1}}}).message(), HasSubstr("job \"ps\": -1"));
  EXPECT_THAT(refusal(five_tasks("0"), {.jobs = {{"worker", 4}, {"worker", 1}}}).message(), HasSubstr("twice"));
  EXPECT_THAT(refusal(five_tasks("0"), {.port_base = 65535}).message(), HasSubstr("\"65536\" is no port"));
}

TEST(SlurmClusterResolver, RefusesRanksThatGoRoundTheNodes) {
  EXPECT_EQ(refusal(with(five_tasks("0"), "SLURM_DISTRIBUTION", "cyclic")).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(refusal(with(five_tasks("0"), "SLURM_DISTRIBUTION", "block:cyclic")).ok());
  EXPECT_TRUE(refusal({{"SLURM_PROCID", "0"},
                       {"SLURM_STEP_NODELIST", "n[1-2]"},
                       {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                       {"SLURM_DISTRIBUTION", "cyclic"}})
                  .ok());
}

}  // namespace
}  // namespace muster

#include "muster/cluster/resolvers/resolver_from_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/status.h"
#include "muster/cluster/test_environment.h"

namespace muster {
namespace {

using ::muster::testing_support::caught;
using ::muster::testing_support::ScopedDirectory;
using ::muster::testing_support::ScopedVariable;
using ::testing::HasSubstr;

constexpr const char* kCluster = R"({"ps": ["ps0:2222"], "worker": ["worker0:2222", "worker1:2222"]})";
constexpr const char* kConfig =
    R"({"cluster": {"worker": ["a:1", "b:1"]}, "rpc_layer": "grpc", "task": {"type": "worker", "index": 1}})";

SimpleClusterResolver parse(std::vector<const char*> flags) {
  flags.insert(flags.begin(), "./task");
  flags.push_back(nullptr);
  return resolver_from_flags(static_cast<int>(flags.size()) - 1, flags.data());
}

std::string flags_complaint(const std::vector<const char*>& flags) {
  Status status = caught([&] { parse(flags); });
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  return status.message();
}

TEST(ResolverFromFlags, ReadsAClusterFromAFile) {
  ScopedVariable variable("TF_CONFIG");
  ScopedDirectory directory;
  const std::string file = directory.write("cluster.json", kCluster);

  auto cluster = parse({"--cluster", file.c_str(), "--task_type", "worker", "--task_index", "0"});

  EXPECT_EQ(cluster.cluster_spec(), ClusterSpec::from_json(kCluster));
  EXPECT_TRUE(cluster.task_type() == "worker");
  EXPECT_EQ(cluster.task_index(), 0);
  EXPECT_EQ(cluster.master(), "worker0:2222");
}

TEST(ResolverFromFlags, ReadsAClusterFromTheFlagItself) {
  ScopedVariable variable("TF_CONFIG");
  const std::string flag = std::string("--cluster= ") + kCluster;

  const SimpleClusterResolver cluster = parse({flag.c_str(), "--task_type=ps", "--task_index=0"});
  const ClusterResolver& resolver = cluster;

  EXPECT_EQ(resolver.master(), "ps0:2222");
}

TEST(ResolverFromFlags, FallsBackOnTfConfig) {
  ScopedVariable variable("TF_CONFIG", kConfig);

  auto cluster = parse({});

  EXPECT_EQ(cluster.task(), (TaskId{"worker", 1}));
  EXPECT_EQ(cluster.master(), "grpc://b:1");
}

TEST(ResolverFromFlags, LetsEachFlagWinOverTfConfig) {
  ScopedVariable variable("TF_CONFIG", kConfig);

  auto index = parse({"--task_index", "0"});
  auto spec = parse({"--cluster", kCluster});

  EXPECT_EQ(index.task(), (TaskId{"worker", 0}));
  EXPECT_EQ(index.master(), "grpc://a:1");
  EXPECT_EQ(spec.task(), (TaskId{"worker", 1}));
  EXPECT_EQ(spec.master(), "grpc://worker1:2222");
}

TEST(ResolverFromFlags, DoesNotLookAtTfConfigWhenTheFlagsSayAll) {
  ScopedVariable variable("TF_CONFIG", "{{{");

  EXPECT_EQ(parse({"--cluster", kCluster, "--task_type", "ps", "--task_index", "0"}).master(), "ps0:2222");
  EXPECT_THAT(flags_complaint({"--cluster", kCluster}), HasSubstr("TF_CONFIG: not JSON"));
}

TEST(ResolverFromFlags, KeepsTheSessionMasterOfTfConfig) {
  ScopedVariable variable("TF_CONFIG", R"({"cluster": {"worker": ["a:1", "b:1"]}, "session_master": "gateway:1"})");

  EXPECT_EQ(parse({}).master(), "gateway:1");
}

TEST(ResolverFromFlags, RunsAloneWithNeither) {
  ScopedVariable variable("TF_CONFIG");

  auto alone = parse({});

  EXPECT_TRUE(alone.cluster_spec().empty());
  EXPECT_EQ(alone.task_type(), std::nullopt);
  EXPECT_EQ(alone.master(), "");
  EXPECT_TRUE(resolver_from_flags(0, nullptr).cluster_spec().empty());
}

TEST(ResolverFromFlags, LeavesOtherFlagsToTheProgram) {
  ScopedVariable variable("TF_CONFIG");

  auto cluster = parse({"train", "--batch_size", "64", "-v", "--help", "--cluster", kCluster, "--lr=0.1", "--task_type",
                        "worker", "data.csv", "--task_index", "1", "--flag", "--", "--anything"});

  EXPECT_EQ(cluster.task(), (TaskId{"worker", 1}));
}

TEST(ResolverFromFlags, TakesTheLastOfTwoFlags) {
  ScopedVariable variable("TF_CONFIG");

  EXPECT_EQ(
      parse({"--cluster", kCluster, "--task_type", "worker", "--task_index", "0", "--task_index", "1"}).task_index(),
      1);
}

TEST(ResolverFromFlags, TakesAnEvaluatorThatIsNotInTheCluster) {
  ScopedVariable variable("TF_CONFIG");

  EXPECT_EQ(parse({"--cluster", kCluster, "--task_type", "evaluator", "--task_index", "0"}).task_type(), "evaluator");
}

TEST(ResolverFromFlags, NamesTheFlagThatIsWrong) {
  ScopedVariable variable("TF_CONFIG");

  EXPECT_THAT(flags_complaint({"--cluster", R"({"worker": ["w0:1", 17]})"}),
              HasSubstr("--cluster.worker[1]: expected \"host:port\""));
  EXPECT_THAT(flags_complaint({"--task_index", "first"}), HasSubstr("--task_index"));
  EXPECT_THAT(flags_complaint({"--task_type"}), HasSubstr("--task_type"));
  EXPECT_THAT(flags_complaint({"--cluster", kCluster, "--task_type", "boss", "--task_index", "0"}),
              HasSubstr("no job \"boss\" in the cluster, which has ps, worker"));
  EXPECT_THAT(flags_complaint({"--cluster", kCluster, "--task_type", "worker", "--task_index", "2"}),
              HasSubstr("no task 2 in job \"worker\", which has 2"));
  EXPECT_THAT(flags_complaint({"--cluster", kCluster, "--task_type", "worker", "--task_index=-1"}),
              HasSubstr("no task -1"));
  EXPECT_THAT(flags_complaint({"--cluster", kCluster, "--task_type", "worker"}),
              HasSubstr("--task_index (or TF_CONFIG): missing"));
  EXPECT_THAT(flags_complaint({"--cluster", kCluster, "--task_index", "0"}),
              HasSubstr("--task_type (or TF_CONFIG): missing"));
}

TEST(ResolverFromFlags, NamesTheFileThatIsWrong) {
  ScopedVariable variable("TF_CONFIG");
  ScopedDirectory directory;
  const std::string file = directory.write("cluster.json", R"({"worker": ["w0"]})");

  EXPECT_THAT(flags_complaint({"--cluster", file.c_str()}),
              HasSubstr("cluster.json: cluster.worker[0]: expected \"host:port\""));
  EXPECT_EQ(caught([] { parse({"--cluster", "/no/such/file"}); }).code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace muster

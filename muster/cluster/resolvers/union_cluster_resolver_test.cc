#include "muster/cluster/resolvers/union_cluster_resolver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/status.h"
#include "muster/cluster/resolvers/simple_cluster_resolver.h"
#include "muster/cluster/test_environment.h"

namespace muster {
namespace {

using ::muster::testing_support::caught;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

UnionClusterResolver united(const std::vector<SimpleClusterResolver>& parts) {
  std::vector<std::unique_ptr<ClusterResolver>> resolvers;
  for (const SimpleClusterResolver& part : parts) resolvers.push_back(std::make_unique<SimpleClusterResolver>(part));
  return UnionClusterResolver(std::move(resolvers));
}

SimpleClusterResolver of(ClusterSpec cluster) { return SimpleClusterResolver(std::move(cluster)); }

ClusterSpec workers(ClusterSpec::Tasks tasks) { return ClusterSpec::sparse({{"worker", std::move(tasks)}}); }

const ClusterSpec kPs = {{"ps", {"ps0:2222", "ps1:2222"}}};
const ClusterSpec kWorkers = {{"worker", {"worker0:2222", "worker1:2222", "worker2:2222"}}};
const ClusterSpec kMoreWorkers = {{"worker", {"worker4:2222", "worker5:2222"}}};

TEST(UnionClusterResolver, IsTheOnlyOneItHas) {
  ClusterSpec sparse = workers({{1, "a:1"}, {3, "b:1"}});

  EXPECT_EQ(united({of(kWorkers)}).cluster_spec(), kWorkers);
  EXPECT_EQ(united({of(sparse)}).cluster_spec(), sparse);
}

TEST(UnionClusterResolver, PutsJobsSideBySide) {
  EXPECT_EQ(
      united({of(kPs), of(kWorkers)}).cluster_spec(),
      ClusterSpec({{"ps", {"ps0:2222", "ps1:2222"}}, {"worker", {"worker0:2222", "worker1:2222", "worker2:2222"}}}));
}

TEST(UnionClusterResolver, PutsTheListsOfAJobOneAfterTheOther) {
  EXPECT_EQ(
      united({of(kMoreWorkers), of(kWorkers)}).cluster_spec(),
      ClusterSpec({{"worker", {"worker4:2222", "worker5:2222", "worker0:2222", "worker1:2222", "worker2:2222"}}}));
}

TEST(UnionClusterResolver, KeepsTheIndicesOfSparseJobs) {
  ClusterSpec both_sparse = united({of(workers({{5, "a:1"}, {9, "b:1"}})), of(workers({{3, "c:1"}}))}).cluster_spec();
  ClusterSpec one_sparse = united({of(kMoreWorkers), of(workers({{3, "c:1"}}))}).cluster_spec();

  EXPECT_EQ(both_sparse, workers({{3, "c:1"}, {5, "a:1"}, {9, "b:1"}}));
  EXPECT_EQ(one_sparse, workers({{0, "worker4:2222"}, {1, "worker5:2222"}, {3, "c:1"}}));
}

TEST(UnionClusterResolver, RefusesASparseTaskThatTwoOfThemHave) {
  auto both_sparse = united({of(workers({{7, "a:1"}})), of(workers({{3, "b:1"}, {7, "c:1"}}))});
  auto one_sparse = united({of(kMoreWorkers), of(workers({{1, "a:1"}, {3, "b:1"}}))});

  Status status = caught([&] { both_sparse.cluster_spec(); });
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("/job:worker/replica:0/task:7"));
  EXPECT_EQ(caught([&] { one_sparse.cluster_spec(); }).code(), StatusCode::kInvalidArgument);
}

TEST(UnionClusterResolver, RefusesTwoTasksAtOneAddress) {
  EXPECT_EQ(caught([] { united({of(kWorkers), of(kWorkers)}).cluster_spec(); }).code(), StatusCode::kInvalidArgument);
}

TEST(UnionClusterResolver, IsTheProcessThatTheFirstOneSays) {
  auto both = united({SimpleClusterResolver(kPs, {.task_type = "ps",
                                                  .task_index = 1,
                                                  .rpc_layer = "grpc",
                                                  .environment = "cloud",
                                                  .num_accelerators = {{{"GPU", 8}}}}),
                      SimpleClusterResolver(kWorkers, {.task_type = "worker",
                                                       .task_index = 2,
                                                       .rpc_layer = "http",
                                                       .environment = "local",
                                                       .num_accelerators = {{{"GPU", 16}}}})});

  EXPECT_EQ(both.task_type(), "ps");
  EXPECT_EQ(both.task_index(), 1);
  EXPECT_EQ(both.environment(), "cloud");
  EXPECT_EQ(both.rpc_layer(), "grpc");
  EXPECT_EQ(both.master(), "grpc://ps1:2222");
  EXPECT_THAT(both.num_accelerators(), ElementsAre(Pair("GPU", 8)));

  both.set_task_type("worker");
  both.set_task_index(2);
  both.set_rpc_layer("http");

  EXPECT_EQ(both.task(), (TaskId{"worker", 2}));
  EXPECT_EQ(both.master(), "http://worker2:2222");
}

TEST(UnionClusterResolver, FindsTheMasterInAllOfThem) {
  auto both = united({of(kPs), of(kWorkers)});

  EXPECT_EQ(both.master(), "");
  EXPECT_EQ(both.master("worker", 1), "worker1:2222");
  EXPECT_EQ(both.master("worker", 1, "grpc"), "grpc://worker1:2222");
}

TEST(UnionClusterResolver, GivesTheMasterThatTheFirstOneWasTold) {
  auto both =
      united({SimpleClusterResolver(kPs, {.task_type = "ps", .task_index = 0, .master = "gateway:1"}), of(kWorkers)});

  EXPECT_EQ(both.master(), "gateway:1");
  EXPECT_EQ(both.master({}, {}, "grpc"), "grpc://gateway:1");
}

}  // namespace
}  // namespace muster

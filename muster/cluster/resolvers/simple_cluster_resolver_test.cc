#include "muster/cluster/resolvers/simple_cluster_resolver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/status.h"
#include "muster/cluster/test_environment.h"

namespace muster {
namespace {

using ::muster::testing_support::caught;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

ClusterSpec cluster() {
  return {{"ps", {"ps0:2222", "ps1:2222"}}, {"worker", {"worker0:2222", "worker1:2222", "worker2:2222"}}};
}

// Behaviour 105.
TEST(SimpleClusterResolver, AnswersWhatItWasTold) {
  SimpleClusterResolver resolver(cluster(), {.task_type = "ps",
                                             .task_index = 1,
                                             .rpc_layer = "grpc",
                                             .environment = "cloud",
                                             .num_accelerators = {{{"GPU", 8}}}});

  EXPECT_EQ(resolver.cluster_spec(), cluster());
  EXPECT_EQ(resolver.task_type(), "ps");
  EXPECT_EQ(resolver.task_index(), 1);
  EXPECT_EQ(resolver.environment(), "cloud");
  EXPECT_EQ(resolver.rpc_layer(), "grpc");
  EXPECT_THAT(resolver.num_accelerators(), ElementsAre(Pair("GPU", 8)));
  EXPECT_THAT(resolver.num_accelerators("worker", 2), ElementsAre(Pair("GPU", 8)));
}

TEST(SimpleClusterResolver, KnowsNothingThatItWasNotTold) {
  SimpleClusterResolver resolver(cluster());

  EXPECT_EQ(resolver.task_type(), std::nullopt);
  EXPECT_EQ(resolver.task_index(), std::nullopt);
  EXPECT_EQ(resolver.environment(), "");
  EXPECT_EQ(resolver.rpc_layer(), "");
  EXPECT_EQ(resolver.master(), "");
  EXPECT_THAT(resolver.num_accelerators(), IsEmpty());
}

TEST(SimpleClusterResolver, CanBeToldOtherwiseLater) {
  SimpleClusterResolver resolver(cluster(), {.task_type = "ps", .task_index = 1, .rpc_layer = "grpc"});

  resolver.set_task_type("worker");
  resolver.set_task_index(2);
  resolver.set_rpc_layer("http");

  EXPECT_EQ(resolver.task_type(), "worker");
  EXPECT_EQ(resolver.task_index(), 2);
  EXPECT_EQ(resolver.rpc_layer(), "http");
  EXPECT_EQ(resolver.master(), "http://worker2:2222");
}

TEST(SimpleClusterResolver, GivesTheMasterOfATask) {
  SimpleClusterResolver resolver(cluster());

  EXPECT_EQ(resolver.master("worker", 2), "worker2:2222");
  EXPECT_EQ(resolver.master("worker", 2, "grpc"), "grpc://worker2:2222");
  EXPECT_EQ(resolver.master("worker", 0, "grpc"), "grpc://worker0:2222") << "task 0 is a task";
  EXPECT_EQ(caught([&] { (void)resolver.master("worker", 3); }).code(), StatusCode::kInvalidArgument);
}

TEST(SimpleClusterResolver, TreatsItsOwnTaskZeroAsATask) {
  SimpleClusterResolver resolver(cluster(), {.task_type = "worker", .task_index = 0});

  EXPECT_EQ(resolver.task_index(), 0);
  EXPECT_EQ(resolver.master(), "worker0:2222");
}

TEST(SimpleClusterResolver, PrefersTheMasterItWasGivenUntilATaskIsAskedFor) {
  SimpleClusterResolver resolver(cluster(),
                                 {.task_type = "worker", .task_index = 1, .master = "gateway:1", .rpc_layer = "grpc"});
  SimpleClusterResolver with_layer(cluster(), {.master = "test://gateway:1", .rpc_layer = "grpc"});

  EXPECT_EQ(resolver.master(), "grpc://gateway:1");
  EXPECT_EQ(resolver.master("worker", 2), "grpc://worker2:2222");
  EXPECT_EQ(with_layer.master(), "test://gateway:1");
}

TEST(SimpleClusterResolver, AsksForDevicesThatWereNotCounted) {
  SimpleClusterResolver resolver(cluster(), {.devices = [](const std::string&) -> std::vector<std::string> {
                                   return {"/job:worker/replica:0/task:0/device:GPU:0"};
                                 }});

  EXPECT_THAT(resolver.num_accelerators(), ElementsAre(Pair("GPU", 1)));
}

TEST(SimpleClusterResolver, IsAValue) {
  SimpleClusterResolver one(cluster(), {.task_type = "ps", .task_index = 0});
  SimpleClusterResolver other(ClusterSpec{});

  other = one;
  one.set_task_index(1);

  EXPECT_EQ(other.cluster_spec(), cluster());
  EXPECT_EQ(other.task_index(), 0);
}

}  // namespace
}  // namespace muster

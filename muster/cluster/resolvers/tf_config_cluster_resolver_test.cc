#include "muster/cluster/resolvers/tf_config_cluster_resolver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/status.h"
#include "muster/cluster/test_environment.h"

namespace muster {
namespace {

using ::muster::testing_support::caught;
using ::muster::testing_support::ScopedVariable;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::StartsWith;

// A TF_CONFIG with 2 ps and 3 workers, and more keys after them.
std::string config(const std::string& more) {
  return R"({"cluster": {"ps": ["ps0:2222", "ps1:2222"], "worker": ["worker0:2222", "worker1:2222", "worker2:2222"]})" +
         more + "}";
}

TfConfigResolver resolver(const std::string& text) { return TfConfigClusterResolver({.text = text}); }

std::string config_complaint(const std::string& text) {
  Status status = caught([&] { (void)resolver(text); });
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
  return status.message();
}

// Behaviour 102.
TEST(TfConfigClusterResolver, ReadsTheVariable) {
  ScopedVariable variable("TF_CONFIG", config(R"(, "task": {"type": "ps", "index": 0})"));

  TfConfigResolver resolver;

  EXPECT_EQ(resolver.cluster_spec(), ClusterSpec({{"ps", {"ps0:2222", "ps1:2222"}},
                                                  {"worker", {"worker0:2222", "worker1:2222", "worker2:2222"}}}));
  EXPECT_EQ(resolver.task_type(), "ps");
  EXPECT_EQ(resolver.task_index(), 0);
  EXPECT_EQ(resolver.rpc_layer(), "");
  EXPECT_EQ(resolver.master(), "ps0:2222");
  EXPECT_EQ(resolver.master("worker", 1), "worker1:2222");
}

TEST(TfConfigClusterResolver, LetsTheSessionMasterWin) {
  auto told = resolver(config(R"(, "session_master": "sessionmaster:2222", "task": {"type": "ps", "index": 0})"));

  EXPECT_EQ(told.master(), "sessionmaster:2222");
  EXPECT_EQ(told.master("worker", 1), "sessionmaster:2222");
  EXPECT_EQ(told.session_master(), "sessionmaster:2222");
}

TEST(TfConfigClusterResolver, PutsTheRpcLayerInFront) {
  auto grpc = resolver(config(R"(, "rpc_layer": "grpc", "task": {"type": "ps", "index": 0})"));

  EXPECT_EQ(grpc.rpc_layer(), "grpc");
  EXPECT_EQ(grpc.master(), "grpc://ps0:2222");
  EXPECT_EQ(grpc.master({}, {}, "test"), "test://ps0:2222");
}

TEST(TfConfigClusterResolver, HasNoMasterAlone) {
  EXPECT_EQ(resolver("{}").master(), "");
  EXPECT_FALSE(resolver("{}").cluster_spec());
  EXPECT_EQ(resolver(R"({"cluster": {"worker": ["worker0:2222"]}})").master(), "");
  EXPECT_EQ(resolver(config("")).master(), "") << "a cluster without a task";
}

TEST(TfConfigClusterResolver, IsAloneWithoutTheVariable) {
  ScopedVariable variable("TF_CONFIG");

  TfConfigResolver unset;

  EXPECT_TRUE(unset.cluster_spec().empty());
  EXPECT_EQ(unset.task_type(), std::nullopt);
  EXPECT_EQ(unset.task_index(), std::nullopt);
  EXPECT_EQ(unset.master(), "");
}

// Behaviour 103.
TEST(TfConfigClusterResolver, TurnsTypeAndIndexIntoWhatTheyMean) {
  auto numbers = resolver(
      R"({"cluster": {"123456": ["ps0:2222"], "worker": ["w0:2222"]}, "task": {"type": 123456, "index": "0"}})");

  EXPECT_EQ(numbers.task_type(), "123456");
  EXPECT_EQ(numbers.task_index(), 0);
  EXPECT_EQ(numbers.master(), "ps0:2222");
  EXPECT_EQ(resolver(config(R"(, "task": {"type": "ps", "index": "1"})")).task_index(), 1);
}

TEST(TfConfigClusterResolver, LetsArgumentsWinAndSettersAfterThem) {
  ScopedVariable variable("TF_CONFIG", config(R"(, "rpc_layer": "grpc", "task": {"type": "ps", "index": 1})"));

  TfConfigResolver resolver({.task_type = "ps", .task_index = 0});

  EXPECT_EQ(resolver.master(), "grpc://ps0:2222");
  EXPECT_EQ(resolver.task_index(), 0);

  resolver.set_task_type("worker");
  resolver.set_task_index(1);
  resolver.set_rpc_layer("test");

  EXPECT_EQ(resolver.master(), "test://worker1:2222");
  EXPECT_EQ(resolver.task_type(), "worker");
  EXPECT_EQ(resolver.task_index(), 1);
  EXPECT_EQ(resolver.rpc_layer(), "test");
}

TEST(TfConfigClusterResolver, TakesEachArgumentForItself) {
  const std::string text = config(R"(, "environment": "cloud", "task": {"type": "worker", "index": "0"})");

  TfConfigResolver index({.text = text, .task_index = 1});
  TfConfigResolver rest({.text = text, .rpc_layer = "grpc", .environment = "lab"});

  EXPECT_EQ(index.master(), "worker1:2222");
  EXPECT_EQ(index.environment(), "cloud");
  EXPECT_EQ(rest.master(), "grpc://worker0:2222");
  EXPECT_EQ(rest.environment(), "lab");
}

// Behaviour 104.
TEST(TfConfigClusterResolver, KeepsTheIndexOfASparseTask) {
  auto sparse = resolver(R"({"cluster": {"ps": ["ps0:2222"], "worker": {"1": "worker1:2222"}},
                             "task": {"type": "worker", "index": 1}})");

  EXPECT_THAT(sparse.cluster_spec().task_indices("worker"), ElementsAre(1));
  EXPECT_EQ(sparse.master(), "worker1:2222");
}

// Behaviour 107.
TEST(TfConfigClusterResolver, CountsTheAcceleratorsOfItsOwnTask) {
  TfConfigResolver own({.text = R"({"cluster": {"worker1": ["w10:2222"], "worker2": ["w21:2222", "w22:2222"]},
                                           "task": {"type": "worker1", "index": "0"}})",
                        .devices = [](const std::string&) -> std::vector<std::string> {
                          return {"/job:worker1/task:0/device:TPU:0", "/job:worker1/task:0/device:TPU:1",
                                  "/job:worker1/task:0/device:GPU:0", "/job:worker1/task:0/device:GPU:1",
                                  "/job:worker2/task:1/device:GPU:2"};
                        }});

  EXPECT_THAT(own.num_accelerators(), ElementsAre(Pair("GPU", 2), Pair("TPU", 2)));
  EXPECT_THAT(own.num_accelerators("worker2", 1), ElementsAre(Pair("GPU", 1)));
}

// Fault F50.
TEST(TfConfigClusterResolver, NamesTheKeyThatIsWrong) {
  EXPECT_EQ(config_complaint(R"({"cluster": {"worker": ["w0:1", 17]}})"),
            "TF_CONFIG: cluster.worker[1]: expected \"host:port\", got 17");
  EXPECT_EQ(config_complaint(R"({"cluster": {"worker": ["w0"]}})"),
            "TF_CONFIG: cluster.worker[0]: expected \"host:port\", got \"w0\": no port");
  EXPECT_THAT(config_complaint(R"({"cluster": {"worker": 3}})"),
              StartsWith("TF_CONFIG: cluster.worker: expected a list"));
  EXPECT_THAT(config_complaint(R"({"cluster": []})"), StartsWith("TF_CONFIG: cluster: expected an object"));
  EXPECT_THAT(config_complaint(R"({"cluster": {"worker": ["a:1"], "ps": ["a:1"]}})"),
              StartsWith("TF_CONFIG: cluster: address"));
  EXPECT_THAT(config_complaint(R"({"task": "worker"})"), StartsWith("TF_CONFIG: task: expected an object"));
  EXPECT_THAT(config_complaint(R"({"task": {"type": ["worker"]}})"),
              StartsWith("TF_CONFIG: task.type: expected the name"));
  EXPECT_EQ(config_complaint(R"({"task": {"index": "first"}})"),
            "TF_CONFIG: task.index: expected the index of a task, got \"first\"");
  EXPECT_THAT(config_complaint(R"({"task": {"index": -1}})"), StartsWith("TF_CONFIG: task.index: "));
  EXPECT_EQ(config_complaint(R"({"rpc_layer": 1})"), "TF_CONFIG: rpc_layer: expected a text, got 1");
  EXPECT_THAT(config_complaint(R"({"session_master": {}})"), StartsWith("TF_CONFIG: session_master: "));
  EXPECT_THAT(config_complaint("[]"), StartsWith("TF_CONFIG: expected an object"));
  EXPECT_THAT(config_complaint(R"({"cluster": )"), StartsWith("TF_CONFIG: not JSON"));
  EXPECT_THAT(config_complaint(""), StartsWith("TF_CONFIG: not JSON"));
}

TEST(TfConfigClusterResolver, LeavesKeysAloneThatItDoesNotKnow) {
  EXPECT_EQ(resolver(config(R"(, "job": {"args": [1]}, "task": {"type": "ps", "index": 0, "trial": "7"})")).master(),
            "ps0:2222");
}

TEST(TfConfigClusterResolver, ReadsAHundredThousandTasks) {
  std::string text = R"({"cluster": {"worker": ["w:1")";
  for (int i = 1; i < 100'000; ++i) text += ", \"w" + std::to_string(i) + ":1\"";

  auto large = resolver(text + R"(]}, "task": {"type": "worker", "index": 99999}})");

  EXPECT_EQ(large.master(), "w99999:1");
}

}  // namespace
}  // namespace muster

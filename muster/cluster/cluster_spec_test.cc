#include "muster/cluster/cluster_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <sstream>

#include "muster/base/status.h"
#include "muster/cluster/cluster.pb.h"
#include "muster/cluster/test_environment.h"

namespace muster {
namespace {

using ::muster::testing_support::caught;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;

using Lists = std::map<std::string, std::vector<std::string>>;

// What is wrong with a cluster whose only worker has this address.
std::string spec_complaint(const std::string& address) {
  Status status = caught([&] { ClusterSpec({{"worker", {address}}}); });
  EXPECT_EQ(status.code(), address_complaint(address) ? StatusCode::kInvalidArgument : StatusCode::kOk);
  return status.message();
}

std::string json_complaint(const std::string& text) {
  Status status = caught([&] { ClusterSpec::from_json(text); });
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
  return status.message();
}

ClusterSpec sparse_workers() { return ClusterSpec::sparse({{"worker", {{0, "worker0:2222"}, {3, "worker3:2222"}}}}); }

// Behaviour 86.
TEST(ClusterSpec, IsPrintedAsTensorFlowPrintsIt) {
  ClusterSpec cluster({{"ps", {"ps0:1111"}}, {"worker", {"worker0:3333", "worker1:4444"}}});
  std::ostringstream out;
  out << cluster;

  EXPECT_EQ(cluster.to_string(), "ClusterSpec({'ps': ['ps0:1111'], 'worker': ['worker0:3333', 'worker1:4444']})");
  EXPECT_EQ(out.str(), cluster.to_string());
  EXPECT_EQ(sparse_workers().to_string(), "ClusterSpec({'worker': {0: 'worker0:2222', 3: 'worker3:2222'}})");
  EXPECT_EQ(ClusterSpec().to_string(), "ClusterSpec({})");
  EXPECT_EQ(ClusterSpec({{"ps", {}}, {"worker", {}}}).to_string(), "ClusterSpec({'ps': [], 'worker': []})");
}

// Behaviour 87.
TEST(ClusterSpec, SurvivesTheWayThroughProtoAndJson) {
  for (const ClusterSpec& cluster : {
           ClusterSpec(),
           ClusterSpec({{"ps", {"ps0:2222", "ps1:2222"}}, {"worker", {"worker0:2222"}}}),
           ClusterSpec({{"worker", {}}}),
           ClusterSpec::sparse({{"worker", {{1, "worker1:2222"}}}, {"ps", {{0, "ps0:2222"}}}}),
           sparse_workers(),
       }) {
    proto::ClusterDef parsed;
    ASSERT_TRUE(parsed.ParseFromString(cluster.to_proto().SerializeAsString()));

    EXPECT_EQ(ClusterSpec::from_proto(parsed), cluster);
    EXPECT_EQ(ClusterSpec::from_json(cluster.to_json()), cluster);
  }
}

TEST(ClusterSpec, HasTheProtoOfTensorFlow) {
  proto::ClusterDef def = ClusterSpec({{"worker", {"w:1"}}}).to_proto();

  // job { name: "worker" tasks { key: 0 value: "w:1" } }
  EXPECT_EQ(def.SerializeAsString(), std::string("\x0a\x11\x0a\x06worker\x12\x07\x08\x00\x12\x03w:1", 19));
}

TEST(ClusterSpec, ReadsAndWritesJson) {
  ClusterSpec cluster = ClusterSpec::from_json(R"({"worker": {"1": "worker1:2222"}, "ps": ["ps0:2222"]})");

  EXPECT_THAT(cluster.task_indices("worker"), ElementsAre(1));
  EXPECT_EQ(cluster.to_json(), R"({"ps":["ps0:2222"],"worker":{"1":"worker1:2222"}})");
}

TEST(ClusterSpec, KeepsTheIndexOfASparseTask) {
  ClusterSpec cluster = ClusterSpec::sparse({{"worker", {{1, "worker1:2222"}}}});

  EXPECT_EQ(cluster.task_address("worker", 1), "worker1:2222");
  EXPECT_FALSE(cluster.dense("worker"));
  EXPECT_NE(cluster, ClusterSpec({{"worker", {"worker1:2222"}}}));
}

TEST(ClusterSpec, IsFalseWithoutJobsOnly) {
  EXPECT_FALSE(ClusterSpec());
  EXPECT_FALSE(ClusterSpec({}));
  EXPECT_TRUE(ClusterSpec().empty());
  EXPECT_TRUE(ClusterSpec({{"worker", {}}}));
}

TEST(ClusterSpec, IsEqualHoweverItWasMade) {
  ClusterSpec list({{"job", {"host:2222"}}});

  EXPECT_EQ(list, ClusterSpec::sparse({{"job", {{0, "host:2222"}}}}));
  EXPECT_EQ(list, ClusterSpec(Lists{{"job", {"host:2222"}}}));
  EXPECT_EQ(list, ClusterSpec::from_json(R"({"job": {"0": "host:2222"}})"));
  EXPECT_NE(list, ClusterSpec({{"job", {"host:3333"}}}));
  EXPECT_NE(list, ClusterSpec({{"other", {"host:2222"}}}));
  EXPECT_NE(list, ClusterSpec());
}

TEST(ClusterSpec, CaresForTheOrderOfTasksAndNotOfJobs) {
  EXPECT_NE(ClusterSpec({{"job", {"host:1", "host:2"}}}), ClusterSpec({{"job", {"host:2", "host:1"}}}));
  EXPECT_EQ(ClusterSpec({{"a", {"host:1"}}, {"b", {"host:2"}}}), ClusterSpec({{"b", {"host:2"}}, {"a", {"host:1"}}}));
}

// Behaviour 88.
TEST(ClusterSpec, CountsAndNamesTasks) {
  ClusterSpec cluster({{"ps", {"ps0:2222", "ps1:2222"}}, {"worker", {"w0:1", "w1:1", "w2:1"}}, {"chief", {}}});

  EXPECT_THAT(cluster.jobs(), ElementsAre("chief", "ps", "worker"));
  EXPECT_EQ(cluster.num_tasks("ps"), 2);
  EXPECT_EQ(cluster.num_tasks("chief"), 0);
  EXPECT_THAT(cluster.task_indices("worker"), ElementsAre(0, 1, 2));
  EXPECT_EQ(cluster.task_address("ps", 1), "ps1:2222");
  EXPECT_EQ(cluster.task_address(TaskId{"worker", 2}), "w2:1");
  EXPECT_THAT(cluster.job_tasks("ps"),
              ElementsAre(Optional(std::string("ps0:2222")), Optional(std::string("ps1:2222"))));
  EXPECT_THAT(cluster.job_tasks("chief"), IsEmpty());
  EXPECT_TRUE(cluster.contains("chief"));
  EXPECT_TRUE(cluster.contains(TaskId{"ps", 1}));
  EXPECT_FALSE(cluster.contains(TaskId{"ps", 2}));
  EXPECT_FALSE(cluster.contains(TaskId{"evaluator", 0}));
}

TEST(ClusterSpec, LeavesGapsInASparseJob) {
  ClusterSpec cluster = sparse_workers();

  EXPECT_EQ(cluster.num_tasks("worker"), 2);
  EXPECT_THAT(cluster.task_indices("worker"), ElementsAre(0, 3));
  EXPECT_THAT(cluster.job_tasks("worker"), ElementsAre(Optional(std::string("worker0:2222")), std::nullopt,
                                                       std::nullopt, Optional(std::string("worker3:2222"))));
}

TEST(ClusterSpec, RefusesQuestionsAboutJobsAndTasksThatAreNotThere) {
  ClusterSpec cluster = sparse_workers();

  for (const Status& status : {
           caught([&] { (void)cluster.num_tasks("ps"); }),
           caught([&] { (void)cluster.task_indices("ps"); }),
           caught([&] { (void)cluster.job_tasks("ps"); }),
           caught([&] { (void)cluster.task_address("ps", 0); }),
       }) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), "no job \"ps\" in the cluster, which has worker");
  }
  Status gap = caught([&] { (void)cluster.task_address("worker", 1); });
  EXPECT_EQ(gap.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(gap.message(), "no task 1 in job \"worker\", which has 2 tasks");
  EXPECT_EQ(caught([&] { (void)cluster.task_address("worker", -1); }).code(), StatusCode::kInvalidArgument);
}

// Behaviour 92 as far as the cluster goes.
TEST(ClusterSpec, RefusesAnAddressWithoutAPort) {
  EXPECT_EQ(spec_complaint("worker0"),
            "/job:worker/replica:0/task:0: address \"worker0\": no port; expected \"host:port\"");
  EXPECT_THAT(spec_complaint("worker0:"), HasSubstr("port"));
  EXPECT_THAT(spec_complaint("[::1]"), HasSubstr("no port"));
  EXPECT_THAT(spec_complaint(""), HasSubstr("no port"));
  EXPECT_THAT(spec_complaint("worker0:grpc"), HasSubstr("\"grpc\" is no port"));
  EXPECT_THAT(spec_complaint("worker0:65536"), HasSubstr("is no port"));
  EXPECT_THAT(spec_complaint("worker0:-1"), HasSubstr("is no port"));
  EXPECT_THAT(spec_complaint("worker0: 80"), HasSubstr("is no port"));
  EXPECT_THAT(spec_complaint("worker0:99999999999999999999"), HasSubstr("is no port"));
}

TEST(ClusterSpec, RefusesAnAddressWithoutAProperHost) {
  EXPECT_THAT(spec_complaint(":2222"), HasSubstr("no host"));
  EXPECT_THAT(spec_complaint("grpc://worker0:2222"), HasSubstr("is no host"));
  EXPECT_THAT(spec_complaint("worker 0:2222"), HasSubstr("is no host"));
  EXPECT_THAT(spec_complaint("wörker:2222"), HasSubstr("is no host"));
  EXPECT_THAT(spec_complaint("[]:2222"), HasSubstr("is no host"));
  EXPECT_THAT(spec_complaint("[worker0]:2222"), HasSubstr("is no host"));
  EXPECT_THAT(spec_complaint("fe80::1:2222"), HasSubstr("[fe80::1]:2222"));
}

TEST(ClusterSpec, TakesNamesAndBothKindsOfIpAddresses) {
  for (const char* address : {"worker0:2222", "10.0.0.1:1", "[::1]:65535", "[fe80::1%eth0]:80", "a.b-c_d.example:0"}) {
    EXPECT_EQ(spec_complaint(address), "") << address;
  }
}

TEST(ClusterSpec, RefusesTwoTasksAtOneAddress) {
  Status same_job = caught([] { ClusterSpec({{"worker", {"a:1", "b:1", "a:1"}}}); });
  Status other_job = caught([] { ClusterSpec({{"ps", {"a:1"}}, {"worker", {"a:1"}}}); });

  EXPECT_EQ(same_job.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(same_job.message(),
            "address \"a:1\" is that of two tasks, /job:worker/replica:0/task:0 and /job:worker/replica:0/task:2");
  EXPECT_THAT(other_job.message(), HasSubstr("/job:ps/replica:0/task:0 and /job:worker/replica:0/task:0"));
}

TEST(ClusterSpec, AllowsManyTasksOnAnyFreePort) {
  EXPECT_EQ(ClusterSpec({{"worker", {"localhost:0", "localhost:0"}}}).num_tasks("worker"), 2);
}

TEST(ClusterSpec, RefusesIndicesOutOfRange) {
  for (int index : {-1, std::numeric_limits<int>::min(), ClusterSpec::kMaxTasks, std::numeric_limits<int>::max()}) {
    Status status = caught([&] { ClusterSpec::sparse({{"worker", {{index, "a:1"}}}}); });
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << index;
    EXPECT_THAT(status.message(), HasSubstr(std::to_string(index)));
  }
}

TEST(ClusterSpec, RefusesNamesOfJobsThatDevicesCannotHave) {
  for (const char* job : {"", "a b", "a/b", "a:0", "wörker"}) {
    EXPECT_EQ(caught([&] { ClusterSpec({{job, {}}}); }).code(), StatusCode::kInvalidArgument) << job;
  }
}

TEST(ClusterSpec, RefusesAJobThatIsThereTwice) {
  proto::ClusterDef def;
  def.add_job()->set_name("worker");
  def.add_job()->set_name("worker");

  EXPECT_EQ(caught([&] { ClusterSpec::from_proto(def); }).message(), "job \"worker\" is there twice");
  EXPECT_EQ(caught([] { ClusterSpec({{"ps", {}}, {"ps", {}}}); }).message(), "job \"ps\" is there twice");
}

TEST(ClusterSpec, RefusesAWrongProto) {
  proto::ClusterDef def;
  proto::JobDef& job = *def.add_job();
  job.set_name("worker");
  (*job.mutable_tasks())[-1] = "a:1";
  Status negative = caught([&] { ClusterSpec::from_proto(def); });
  (*job.mutable_tasks())[0] = std::string("\xff\x00:1", 4);
  job.mutable_tasks()->erase(-1);
  Status garbled = caught([&] { ClusterSpec::from_proto(def); });

  EXPECT_EQ(negative.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(garbled.code(), StatusCode::kInvalidArgument);
}

TEST(ClusterSpec, NamesTheWrongPartOfJson) {
  EXPECT_EQ(json_complaint(R"({"worker": ["a:1", 17]})"), "cluster.worker[1]: expected \"host:port\", got 17");
  EXPECT_EQ(json_complaint(R"({"worker": ["a:1", "b"]})"),
            "cluster.worker[1]: expected \"host:port\", got \"b\": no port");
  EXPECT_EQ(json_complaint(R"({"worker": {"3": null}})"), "cluster.worker.3: expected \"host:port\", got null");
  EXPECT_EQ(json_complaint(R"({"worker": [["a:1"]]})"), "cluster.worker[0]: expected \"host:port\", got a list");
  EXPECT_EQ(json_complaint(R"({"cluster": {"worker": ["a:1"]}})"),
            "cluster: is as TF_CONFIG has it, expected only what stands in its \"cluster\"");
  EXPECT_EQ(json_complaint(R"({"worker": {"x": "a:1"}})"), "cluster.worker.x: expected the index of a task, got \"x\"");
  EXPECT_THAT(json_complaint(R"({"worker": {"-1": "a:1"}})"), HasSubstr("cluster.worker.-1: expected the index"));
  EXPECT_THAT(json_complaint(R"({"worker": {"1": "a:1", "01": "b:1"}})"), HasSubstr("two addresses for task 1"));
  EXPECT_THAT(json_complaint(R"({"worker": "a:1"})"), HasSubstr("cluster.worker: expected a list"));
  EXPECT_THAT(json_complaint(R"({"worker": ["a:1", "a:1"]})"), HasSubstr("cluster: address \"a:1\" is that of two"));
  EXPECT_THAT(json_complaint(R"(["a:1"])"), HasSubstr("cluster: expected an object"));
  EXPECT_THAT(json_complaint(""), HasSubstr("cluster: not JSON"));
  EXPECT_THAT(json_complaint(R"({"worker": ["a:1")"), HasSubstr("cluster: not JSON"));
  EXPECT_THAT(json_complaint("{\"\xff\": []}"), HasSubstr("cluster: not JSON"));
}

TEST(ClusterSpec, ReadsJsonOfAnyDepthWithoutFallingOver) {
  EXPECT_THAT(json_complaint(R"({"worker": [)" + std::string(200'000, '[') + std::string(200'000, ']') + "]}"),
              HasSubstr("cluster.worker[0]"));
  EXPECT_THAT(json_complaint(std::string(200'000, '[')), HasSubstr("not JSON"));
}

// Fault F50. Quadratic work would take minutes here.
TEST(ClusterSpec, HoldsAHundredThousandTasks) {
  constexpr int kTasks = 100'000;
  Lists lists;
  for (int i = 0; i < kTasks; ++i) lists["worker"].push_back("worker" + std::to_string(i) + ":2222");

  ClusterSpec cluster(lists);

  EXPECT_EQ(cluster.num_tasks("worker"), kTasks);
  EXPECT_EQ(cluster.task_address("worker", kTasks - 1), "worker99999:2222");
  EXPECT_EQ(cluster.job_tasks("worker").size(), static_cast<size_t>(kTasks));
  EXPECT_EQ(ClusterSpec::from_json(cluster.to_json()), cluster);
  EXPECT_EQ(ClusterSpec::from_proto(cluster.to_proto()), cluster);
  EXPECT_THAT(cluster.to_string(), HasSubstr("'worker99999:2222']})"));
}

}  // namespace
}  // namespace muster

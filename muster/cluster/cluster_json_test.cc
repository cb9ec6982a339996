#include "muster/cluster/cluster_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "muster/base/status.h"
#include "muster/cluster/test_environment.h"

namespace muster {
namespace {

using ::muster::testing_support::caught;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ClusterJson, DescribesAValueInAFewWords) {
  EXPECT_EQ(describe(17), "17");
  EXPECT_EQ(describe("text"), "\"text\"");
  EXPECT_EQ(describe(nullptr), "null");
  EXPECT_EQ(describe(json::array({1, 2})), "a list");
  EXPECT_EQ(describe(json::object()), "an object");
}

TEST(ClusterJson, NamesWhatIsNotJson) {
  EXPECT_EQ(caught([] { parse_json("{,}", "nodes.json"); }).message(),
            "nodes.json: not JSON: byte 2 is not expected there");
  EXPECT_EQ(caught([] { parse_json("[1", "nodes.json"); }).message(), "nodes.json: not JSON: it ends too early");
  EXPECT_EQ(caught([] { parse_json("[1e999]", "nodes.json"); }).message(),
            "nodes.json: not JSON: a number is too large");
}

TEST(ClusterJson, ReadsAnIndexAsNumberOrText) {
  EXPECT_EQ(task_index_of(3, "i"), 3);
  EXPECT_EQ(task_index_of("3", "i"), 3);
  EXPECT_EQ(task_index_of("0", "i"), 0);
}

TEST(ClusterJson, RefusesAnIndexThatIsNone) {
  for (const json& value : {json(1.5), json("x"), json(""), json(-1), json("-1"), json(nullptr), json::array({1}),
                            json(ClusterSpec::kMaxTasks), json(18446744073709551615u), json(true)}) {
    Status status = caught([&] { task_index_of(value, "task.index"); });
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << value;
    EXPECT_THAT(status.message(), StartsWith("task.index: expected the index of a task")) << value;
  }
}

TEST(ClusterJson, BeginsErrorsWithTheWayToTheValue) {
  json cluster = {{"worker", {"a:1", 17}}};

  EXPECT_EQ(caught([&] { cluster_spec_of(cluster, "TF_CONFIG: cluster"); }).message(),
            "TF_CONFIG: cluster.worker[1]: expected \"host:port\", got 17");
  EXPECT_THAT(caught([&] { cluster_spec_of({{"a b", json::array()}}, "TF_CONFIG: cluster"); }).message(),
              HasSubstr("TF_CONFIG: cluster: job \"a b\""));
}

}  // namespace
}  // namespace muster

#include "muster/cluster/roles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/status.h"
#include "muster/cluster/test_environment.h"

namespace muster {
namespace {

using ::muster::testing_support::caught;
using ::testing::HasSubstr;

ClusterSpec with_chief() {
  return {{"chief", {"chief0:1"}}, {"worker", {"w0:1", "w1:1"}}, {"ps", {"ps0:1", "ps1:1"}}, {"evaluator", {"e0:1"}}};
}

ClusterSpec without_chief() { return {{"worker", {"w0:1", "w1:1"}}, {"ps", {"ps0:1"}}}; }

template <class Call>
std::string role_complaint(Call&& call) {
  Status status = caught(call);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  return status.message();
}

// Behaviour 116.
TEST(Roles, TheChiefIsTheChief) {
  ClusterSpec cluster = with_chief();

  EXPECT_TRUE(is_chief(cluster, {"chief", 0}));
  EXPECT_FALSE(is_chief(cluster, {"worker", 0}));
  EXPECT_FALSE(is_chief(cluster, {"worker", 1}));
  EXPECT_FALSE(is_chief(cluster, {"ps", 0}));
}

TEST(Roles, TheFirstWorkerIsTheChiefWhereThereIsNone) {
  ClusterSpec cluster = without_chief();

  EXPECT_TRUE(is_chief(cluster, {"worker", 0}));
  EXPECT_FALSE(is_chief(cluster, {"worker", 1}));
  EXPECT_FALSE(is_chief(cluster, {"ps", 0}));
}

TEST(Roles, TheEvaluatorIsItsOwnChief) {
  EXPECT_TRUE(is_chief(with_chief(), {"evaluator", 0}));
  EXPECT_TRUE(is_chief(without_chief(), {"evaluator", 0}));
}

TEST(Roles, RefusesTasksThatAreNotThere) {
  ClusterSpec cluster = without_chief();

  EXPECT_EQ(role_complaint([&] { (void)is_chief(cluster, {"chief", 0}); }),
            "`task_type` 'chief' not found in cluster_spec.");
  EXPECT_EQ(role_complaint([&] { (void)is_chief(cluster, {"worker", 2}); }),
            "The `task_id` 2 exceeds the maximum id of worker.");
  EXPECT_THAT(role_complaint([&] { (void)is_chief(cluster, {"worker", -1}); }), HasSubstr("no task -1 of worker"));
  EXPECT_THAT(role_complaint([&] { (void)is_chief(cluster, {"evaluator", 1}); }), HasSubstr("exceeds the maximum id"));
  EXPECT_THAT(role_complaint([&] { (void)is_chief(cluster, {"boss", 0}); }),
              HasSubstr("Unrecognized `task_type` 'boss'"));
  EXPECT_THAT(role_complaint([&] { (void)is_chief({{"boss", {"b:1"}}}, {"boss", 0}); }), HasSubstr("job \"boss\""));
}

// Behaviour 117.
TEST(Roles, CountsTheChiefAmongTheWorkers) {
  EXPECT_EQ(worker_count(with_chief(), "chief"), 3);
  EXPECT_EQ(worker_count(with_chief(), "worker"), 3);
  EXPECT_EQ(worker_count(without_chief(), "worker"), 2);
}

TEST(Roles, CountsTheEvaluatorAlone) {
  EXPECT_EQ(worker_count(with_chief(), "evaluator"), 1);
  EXPECT_EQ(worker_count(without_chief(), "evaluator"), 1);
}

TEST(Roles, CountsNoWorkersForAParameterServer) {
  EXPECT_THAT(role_complaint([] { (void)worker_count(with_chief(), "ps"); }), HasSubstr("Unexpected `task_type` 'ps'"));
  EXPECT_THAT(role_complaint([] { (void)worker_count(without_chief(), "chief"); }), HasSubstr("'chief' not found"));
}

// Behaviour 118.
TEST(Roles, NumbersTheChiefFirstAndThenTheWorkers) {
  EXPECT_EQ(id_in_cluster(with_chief(), {"chief", 0}), 0);
  EXPECT_EQ(id_in_cluster(with_chief(), {"worker", 0}), 1);
  EXPECT_EQ(id_in_cluster(with_chief(), {"worker", 1}), 2);
  EXPECT_EQ(id_in_cluster(without_chief(), {"worker", 1}), 1);
}

TEST(Roles, NumbersTheEvaluatorZero) {
  EXPECT_EQ(id_in_cluster(with_chief(), {"evaluator", 0}), 0);
  EXPECT_EQ(id_in_cluster(without_chief(), {"evaluator", 0}), 0);
}

TEST(Roles, GivesNoNumberToAParameterServer) {
  EXPECT_THAT(role_complaint([] { (void)id_in_cluster(with_chief(), {"ps", 0}); }),
              HasSubstr("There is no id for task_type 'ps'"));
}

TEST(Roles, RefusesTwoChiefsOrTwoEvaluators) {
  ClusterSpec chiefs = {{"chief", {"a:1", "b:1"}}, {"worker", {"w:1"}}};
  ClusterSpec evaluators = {{"evaluator", {"a:1", "b:1"}}, {"worker", {"w:1"}}};

  EXPECT_THAT(role_complaint([&] { (void)id_in_cluster(chiefs, {"worker", 0}); }), HasSubstr("at most one 'chief'"));
  EXPECT_THAT(role_complaint([&] { (void)worker_count(chiefs, "worker"); }), HasSubstr("at most one 'chief'"));
  EXPECT_THAT(role_complaint([&] { (void)is_chief(evaluators, {"worker", 0}); }), HasSubstr("at most one 'evaluator'"));
}

TEST(Roles, NumbersTheWorkersOfASparseJobWithoutGaps) {
  ClusterSpec cluster = ClusterSpec::sparse({{"worker", {{2, "w2:1"}, {5, "w5:1"}}}});

  EXPECT_EQ(worker_count(cluster, "worker"), 2);
  EXPECT_EQ(id_in_cluster(cluster, {"worker", 2}), 0);
  EXPECT_EQ(id_in_cluster(cluster, {"worker", 5}), 1);
  EXPECT_TRUE(is_chief(cluster, {"worker", 2}));
  EXPECT_FALSE(is_chief(cluster, {"worker", 5}));
  EXPECT_EQ(collective_leader(cluster, {"worker", 5}), "/job:worker/replica:0/task:2");
}

// Behaviour 119.
TEST(Roles, LetsTheChiefOrTheFirstWorkerLeadCollectives) {
  EXPECT_EQ(collective_leader(with_chief(), {"worker", 1}), "/job:chief/replica:0/task:0");
  EXPECT_EQ(collective_leader(with_chief(), {"chief", 0}), "/job:chief/replica:0/task:0");
  EXPECT_EQ(collective_leader(without_chief(), {"worker", 1}), "/job:worker/replica:0/task:0");
}

TEST(Roles, HasNoLeaderForTheEvaluatorAndAlone) {
  EXPECT_EQ(collective_leader(with_chief(), {"evaluator", 0}), "");
  EXPECT_EQ(collective_leader(ClusterSpec(), {"", 0}), "");
  EXPECT_EQ(collective_leader(ClusterSpec(), {"worker", 0}), "");
}

TEST(Roles, AProgramAloneIsItsOwnChiefAndOnlyWorker) {
  EXPECT_TRUE(is_chief(ClusterSpec(), {"", 0}));
  EXPECT_EQ(worker_count(ClusterSpec(), ""), 1);
  EXPECT_EQ(id_in_cluster(ClusterSpec(), {"", 0}), 0);
  EXPECT_THAT(role_complaint([] { (void)is_chief(ClusterSpec(), {"worker", 0}); }), HasSubstr("'worker' not found"));
}

}  // namespace
}  // namespace muster

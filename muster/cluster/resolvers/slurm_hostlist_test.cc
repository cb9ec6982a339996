#include "muster/cluster/resolvers/slurm_hostlist.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/status.h"
#include "muster/cluster/test_environment.h"

namespace muster {
namespace {

using ::muster::testing_support::caught;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SlurmHostlist, WritesOutNames) {
  EXPECT_THAT(expand_hostlist("n1"), ElementsAre("n1"));
  EXPECT_THAT(expand_hostlist("t02n13,t02n41"), ElementsAre("t02n13", "t02n41"));
  EXPECT_THAT(expand_hostlist("n[1,3]"), ElementsAre("n1", "n3"));
  EXPECT_THAT(expand_hostlist("n[1-2],m5,o[3-4,6,7-9]"),
              ElementsAre("n1", "n2", "m5", "o3", "o4", "o6", "o7", "o8", "o9"));
  EXPECT_THAT(expand_hostlist("node[01-03,7],other"), ElementsAre("node01", "node02", "node03", "node7", "other"));
}

TEST(SlurmHostlist, KeepsLeadingZeros) {
  EXPECT_THAT(expand_hostlist("n[0001-0003],o[009-011]"),
              ElementsAre("n0001", "n0002", "n0003", "o009", "o010", "o011"));
  EXPECT_THAT(expand_hostlist("n[9-11]"), ElementsAre("n9", "n10", "n11"));
}

TEST(SlurmHostlist, WritesOutSeveralBracketsAndWhatIsAfterThem) {
  EXPECT_THAT(expand_hostlist("rack[1-2]node[0,3]"),
              ElementsAre("rack1node0", "rack1node3", "rack2node0", "rack2node3"));
  EXPECT_THAT(expand_hostlist("n[1-2]-ib"), ElementsAre("n1-ib", "n2-ib"));
}

TEST(SlurmHostlist, RefusesWhatIsNoList) {
  for (const char* text : {"", "a,", ",a", "n[1", "n1]", "n]1[", "n[]", "n[1-]", "n[-1]", "n[3-1]", "n[a-b]", "n[1,,2]",
                           "n[[1]]", "n[1-2-3]", "n[99999999999]"}) {
    Status status = caught([&] { expand_hostlist(text); });
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr("hostlist \"")) << text;
  }
}

TEST(SlurmHostlist, RefusesMoreNamesThanThereAreMachines) {
  EXPECT_THAT(caught([] { expand_hostlist("n[0-2147483647]"); }).message(), HasSubstr("more than 200000 names"));
  EXPECT_THAT(caught([] { expand_hostlist("n[0-99999][0-99999]"); }).message(), HasSubstr("more than 200000 names"));
}

TEST(SlurmHostlist, WritesOutTasksPerNode) {
  EXPECT_THAT(expand_tasks_per_node("2"), ElementsAre(2));
  EXPECT_THAT(expand_tasks_per_node("2,1,3"), ElementsAre(2, 1, 3));
  EXPECT_THAT(expand_tasks_per_node("2(x3),1"), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(expand_tasks_per_node("3(x2),2,11(x4)"), ElementsAre(3, 3, 2, 11, 11, 11, 11));
}

TEST(SlurmHostlist, RefusesTasksPerNodeThatAreNoCounts) {
  for (const char* text : {"", "x", "2(x)", "2(x3", "2(3)", "(x3)", "-1", "2,,1", "2(x3)4", "2(x300000)"}) {
    EXPECT_EQ(caught([&] { expand_tasks_per_node(text); }).code(), StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace muster

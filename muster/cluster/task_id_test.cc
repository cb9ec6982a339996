#include "muster/cluster/task_id.h"

#include <absl/container/flat_hash_set.h>
#include <gtest/gtest.h>

#include <sstream>

namespace muster {
namespace {

TEST(TaskId, IsPrintedAsDevicesNameIt) {
  std::ostringstream out;

  out << TaskId{"ps", 0};

  EXPECT_EQ((TaskId{"worker", 1}.to_string()), "/job:worker/replica:0/task:1");
  EXPECT_EQ(out.str(), "/job:ps/replica:0/task:0");
}

TEST(TaskId, SortsByJobAndThenByNumber) {
  EXPECT_LT((TaskId{"ps", 7}), (TaskId{"worker", 0}));
  EXPECT_LT((TaskId{"worker", 9}), (TaskId{"worker", 10}));
  EXPECT_EQ((TaskId{"worker", 9}), (TaskId{"worker", 9}));
}

TEST(TaskId, IsAKeyOfAHashTable) {
  absl::flat_hash_set<TaskId> tasks = {{"worker", 0}, {"worker", 1}, {"worker", 0}};

  EXPECT_EQ(tasks.size(), 2u);
  EXPECT_TRUE(tasks.contains({"worker", 1}));
}

}  // namespace
}  // namespace muster

#include "muster/distribute/servers/ps_checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <set>

#include "muster/cluster/in_process_cluster.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/distribute/servers/ps_variables.h"

namespace muster::ps_checkpoints_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::UnorderedElementsAre;
using testing_support::caught;
using testing_support::strategy_of;

class CheckpointsOfPs : public testing::Test {
 protected:
  InProcessCluster cluster_{
      {.workers = 1, .ps = 2, .transport = Transport::kLocal, .worker = {.storage = {testing::TempDir()}}}};
  ParameterServerStrategy strategy_ = strategy_of(
      cluster_, Transport::kLocal, {.partitioner = MinSizePartitioner{.min_shard_bytes = 8, .max_shards = 2}});
  const std::shared_ptr<SavedVariables> saved_ = strategy_.saved();
};

TEST_F(CheckpointsOfPs, HaveEachParameterServerWriteItsOwn) {
  const auto whole = strategy_.make<Variable>(torch::ones({}), VariableOptions{.name = "whole"});
  const auto parts = strategy_.make<Variable>(torch::arange(8.0), VariableOptions{.name = "parts"});
  const std::filesystem::path directory = std::filesystem::path(testing::TempDir()) / "muster-ps-checkpoints";
  std::filesystem::create_directories(directory);

  std::vector<std::string> slices;
  std::set<std::string> files;
  for (const ShardEntry& entry : saved_->begin_save({})(directory, {})) {
    slices.push_back(entry.tensor_name());
    files.insert(entry.file);
  }
  std::filesystem::remove_all(directory);

  EXPECT_THAT(slices, UnorderedElementsAre("whole", "parts[0:4]", "parts[4:8]"));
  EXPECT_EQ(files.size(), 2u);
  EXPECT_FALSE(saved_->in_step());
}

TEST_F(CheckpointsOfPs, NameTheVariableThatIsNotThere) {
  const auto v = strategy_.make<Variable>(torch::ones({}), VariableOptions{.name = "v"});

  const Status refused = caught([&] { (void)saved_->begin_save(std::map<std::string, std::string>{{"w", "w"}}); });

  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("w"));
}

TEST_F(CheckpointsOfPs, SayWhoHasLostTheValues) {
  const auto v = strategy_.make<Variable>(torch::ones({}), VariableOptions{.name = "v"});
  saved_->check_held();

  cluster_.stop({"ps", 1});  // has none
  saved_->check_held();
  cluster_.stop({"ps", 0});
  cluster_.start({"ps", 0});

  const Status lost = caught([&] { saved_->check_held(); });
  EXPECT_EQ(lost.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(lost.message(), AllOf(HasSubstr("/job:ps/replica:0/task:0"), HasSubstr("nobody has the variables")));
}

}  // namespace
}  // namespace muster::ps_checkpoints_test

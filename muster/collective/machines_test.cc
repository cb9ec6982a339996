#include "muster/collective/machines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace muster {
namespace {

using testing::ElementsAre;

TEST(Machines, HaveTheRanksThatShareMemory) {
  const Machines machines = Machines::of(torch::tensor({{0, 0, 1, 0}, {0, 0, 0, 0}, {1, 0, 0, 0}, {0, 0, 0, 0}}));

  EXPECT_THAT(machines.of_rank, ElementsAre(0, 1, 0, 2));
  EXPECT_THAT(machines.ranks, ElementsAre(ElementsAre(0, 2), ElementsAre(1), ElementsAre(3)));
  EXPECT_TRUE(machines.several());
  EXPECT_EQ(machines.lanes(), 1);
  EXPECT_EQ(machines.place_of(2), 1);
  EXPECT_EQ(machines.place_of(3), 0);
}

TEST(Machines, HaveAsManyLanesAsTheSmallestHasRanks) {
  torch::Tensor near = torch::zeros({5, 5}, torch::kByte);
  near.slice(0, 0, 3).slice(1, 0, 3).fill_(1);
  near.slice(0, 3, 5).slice(1, 3, 5).fill_(1);

  EXPECT_EQ(Machines::of(near).lanes(), 2);
}

TEST(Machines, AreOnlySeveralIfThereIsSomethingInsideAndOutside) {
  EXPECT_FALSE(Machines::of(torch::zeros({3, 3})).several()) << "one rank each";
  EXPECT_FALSE(Machines::of(torch::zeros({3, 3})).shared());
  EXPECT_FALSE(Machines::of(torch::ones({3, 3})).several()) << "one machine";
  EXPECT_TRUE(Machines::of(torch::ones({3, 3})).shared());
  EXPECT_FALSE(Machines().several());
}

TEST(Machines, AreUnknownWhereRanksDisagreeOnThem) {
  // The second one shares memory with both others, which do not with each other.
  EXPECT_FALSE(Machines::of(torch::tensor({{0, 1, 0}, {1, 0, 1}, {0, 1, 0}})).several());
  EXPECT_FALSE(Machines::of(torch::tensor({{0, 1, 0}, {0, 0, 0}, {0, 0, 0}})).several()) << "one has not met the other";
}

}  // namespace
}  // namespace muster

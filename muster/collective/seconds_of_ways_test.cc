#include "muster/collective/seconds_of_ways.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace muster::seconds_of_ways_test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::Ge;

// Writes down which way it went. The slowest rank took two seconds longer than this one.
class NotedGroup : public Collectives {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::string described(int) const override { return ""; }
  std::vector<at::Tensor> run(const CollectiveCall& call, std::vector<at::Tensor> values,
                              const Cancellation*) override {
    ways.push_back(way);
    return {call.reduction == Reduction::kMax ? values[0] + 2 : values[0]};
  }
  void start(const CollectiveCall&, std::vector<at::Tensor>, const Cancellation*, CollectiveDone) override {}
  void fail(const Status&) override {}

  size_t way = 77;
  std::vector<size_t> ways{};
};

TEST(SecondsOfWays, AreThoseOfTheSlowestRankForEachWayInTurn) {
  NotedGroup group;

  const std::vector<double> seconds =
      seconds_of_ways(group, torch::ones({2}), 2, 3, [&](size_t way) { group.way = way; });

  EXPECT_THAT(group.ways, ElementsAre(0, 1, 2, 0, 1, 2, 0)) << "and the first one while they agree, and from then on";
  EXPECT_EQ(group.way, 0u);
  EXPECT_EQ(seconds.size(), 3u);
  EXPECT_THAT(seconds, Each(Ge(2.0)));
}

TEST(SecondsOfWays, ChooseTheFirstUnlessAnotherIsClearlyFaster) {
  EXPECT_EQ(fastest_of({1.0}), 0u);
  EXPECT_EQ(fastest_of({1.0, 0.95}), 0u);
  EXPECT_EQ(fastest_of({1.0, 0.8}), 1u);
  EXPECT_EQ(fastest_of({1.0, 0.8, 0.7}), 2u);
  EXPECT_EQ(fastest_of({1.0, 0.7, 0.8}), 1u);
  EXPECT_EQ(fastest_of({0.5, 0.7, 0.8}), 0u);
}

}  // namespace
}  // namespace muster::seconds_of_ways_test

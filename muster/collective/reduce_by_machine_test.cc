#include "muster/collective/reduce_by_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/collective/sums_in_order.h"
#include "muster/collective/test_post.h"

namespace muster::reduce_by_machine_test {
namespace {

using testing_support::failures_of;
using testing_support::machines_of;
using testing_support::numbers;
using testing_support::Post;
using testing_support::RankOfPost;
using testing_support::sums_of;

const std::vector<std::vector<int>> kLayouts{{0, 0, 1, 1}, {0, 1, 0, 1}, {0, 0, 0, 1}, {0, 0, 1, 1, 1, 2, 2}};

TEST(ReduceByMachine, GivesTheSameBitsToAllWhateverWayASumTakes) {
  for (const std::vector<int>& layout : kLayouts) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kLong}) {
      for (const int64_t count : {0, 1, 5, 1'000, 300'001}) {
        Post post(machines_of(layout));
        std::vector<at::Tensor> by_rank;
        for (int rank = 0; rank < post.size(); ++rank) by_rank.push_back(numbers(rank, count, type));
        const at::Tensor expected = reduced(Reduction::kSum, by_rank, post.machines());

        for (const AllReduceWay way : {AllReduceWay::kInFirstMessage, AllReduceWay::kWhole, AllReduceWay::kInParts}) {
          const auto sums = sums_of(post, {}, way, [&](int rank) { return std::vector{by_rank[rank]}; });

          for (const std::vector<at::Tensor>& of_rank : sums) {
            ASSERT_EQ(of_rank.size(), 1u);
            EXPECT_TRUE(of_rank[0].equal(expected)) << count << " " << c10::toString(type);
          }
        }
        EXPECT_EQ(post.unread(), 0u);
      }
    }
  }
}

TEST(ReduceByMachine, AddsUpTheRanksOfAMachineBeforeThoseOfOthers) {
  Post post(machines_of({0, 1, 0, 1}));
  // In the order of the ranks 1 would be lost beside the large number; inside of a machine it is not.
  const std::vector<float> values{1e8F, 1.0F, -1e8F, 1.0F};

  const auto sums = sums_of(post, {}, AllReduceWay::kInParts,
                            [&](int rank) { return std::vector{torch::full({100}, values[rank])}; });

  for (const auto& of_rank : sums) EXPECT_TRUE(of_rank[0].equal(torch::full({100}, 2.0F)));
}

TEST(ReduceByMachine, SendsOneTensorOfEachMachineAndNotOneOfEachRank) {
  for (const std::vector<int>& layout : kLayouts) {
    Post post(machines_of(layout));
    constexpr int64_t kCount = 1'000'000;

    const auto sums =
        sums_of(post, {}, AllReduceWay::kInParts, [&](int rank) { return std::vector{torch::full({kCount}, rank)}; });

    const int64_t all = int64_t{post.size()} * (post.size() - 1) / 2;
    for (const auto& of_rank : sums) EXPECT_TRUE(of_rank[0].equal(torch::full({kCount}, all)));
    const auto machines = static_cast<double>(post.machines().ranks.size());
    const double bytes = 2 * (machines - 1) / machines * kCount * sizeof(int64_t);
    for (const int64_t of_one : post.bytes()) EXPECT_NEAR(static_cast<double>(of_one), bytes, 0.02 * bytes);
  }
}

TEST(ReduceByMachine, RoundsHalfPrecisionOnceAtTheEnd) {
  Post post(machines_of({0, 0, 1, 1}));

  // 256 + 1 is 256 in bfloat16, and so would be the sum.
  const auto sums = sums_of(post, {}, AllReduceWay::kInParts, [](int rank) {
    return std::vector{torch::full({9}, rank == 0 ? 256.0 : 1.0, torch::kBFloat16)};
  });

  for (const auto& of_rank : sums) {
    EXPECT_EQ(of_rank[0].scalar_type(), at::kBFloat16);
    EXPECT_TRUE(of_rank[0].to(at::kFloat).equal(torch::full({9}, 260.0F)));  // of 259, to the next even one
  }
}

TEST(ReduceByMachine, SendsHalfPrecisionAsItIsWhereNothingIsToBeRounded) {
  Post post(machines_of({0, 1, 1}));
  constexpr int64_t kCount = 1'000;

  const auto sums = sums_of(post, {}, AllReduceWay::kInParts, [](int rank) {
    return std::vector{torch::full({kCount}, rank == 0 ? 256.0 : 1.0, torch::kBFloat16)};
  });

  for (const auto& of_rank : sums) EXPECT_TRUE(of_rank[0].to(at::kFloat).equal(torch::full({kCount}, 258.0F)));
  EXPECT_THAT(post.bytes(), testing::ElementsAre(kCount / 2 * 2 + kCount / 2 * 2, kCount / 2 * 4 + kCount / 2 * 2));
}

TEST(ReduceByMachine, CopiesASumOnceForAllThatFetchIt) {
  Post post(machines_of({0, 0, 0, 1, 2}), /*has_room=*/false);

  const auto sums =
      sums_of(post, {}, AllReduceWay::kInParts, [](int rank) { return std::vector{torch::full({900}, rank)}; });

  for (const auto& of_rank : sums) EXPECT_TRUE(of_rank[0].equal(torch::full({900}, 10)));
  EXPECT_EQ(post.copies_left(0, part_summed(0)), 2u) << "its share for the other machines, and all for its own";
  EXPECT_EQ(post.copies_left(3, part_summed(0)), 1u);
  EXPECT_EQ(post.copies_left(1, part_summed(0)), 0u) << "it leads nothing";
}

TEST(ReduceByMachine, FindsTheMostOfSeveralTensorsAtOnce) {
  Post post(machines_of({0, 0, 0, 1}));

  const auto sums = sums_of(post, {.reduction = Reduction::kMax}, AllReduceWay::kInParts, [](int rank) {
    return std::vector<at::Tensor>{torch::full({2, 3}, rank), torch::full({1'000}, -1.5 * rank),
                                   torch::ones({3, 2}).t().mul(rank), torch::tensor({rank == 2, false})};
  });

  for (const auto& of_rank : sums) {
    ASSERT_EQ(of_rank.size(), 4u);
    EXPECT_TRUE(of_rank[0].equal(torch::full({2, 3}, 3)));
    EXPECT_TRUE(of_rank[1].equal(torch::zeros({1'000})));
    EXPECT_TRUE(of_rank[2].equal(torch::full({2, 3}, 3.0F)));
    EXPECT_TRUE(of_rank[3].equal(torch::tensor({true, false})));
  }
}

TEST(ReduceByMachine, SumsNothingThatRanksDisagreeOn) {
  Post post(machines_of({0, 0, 1}));

  const std::vector<std::string> failures = failures_of<RankOfPost>(post, [&](RankOfPost& mail) {
    run_collective({}, {torch::ones({mail.rank() == 1 ? 200 : 100})}, AllReduceSizes::always(AllReduceWay::kInParts),
                   post.machines(), mail);
  });

  for (const std::string& failure : failures) EXPECT_THAT(failure, testing::HasSubstr("at different calls"));
}

}  // namespace
}  // namespace muster::reduce_by_machine_test

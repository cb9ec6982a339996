// Every collective with every type of elements that it takes, over every way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/collective/task_group.h"
#include "muster/collective/test_tasks.h"

namespace muster {
namespace {

using testing::HasSubstr;

constexpr int kTasks = 3;

struct TypeAndWay {
  at::ScalarType type;
  const char* way;
  bool memory, reads = false;
};

class Collective : public testing::TestWithParam<TypeAndWay>, public testing_support::Tasks {
 protected:
  void expect_all_well(const std::function<void(TaskGroup&)>& member) {
    start_tasks(kTasks);
    const auto options = [](int rank) {
      TaskGroupOptions made{.near_memory = GetParam().memory, .read_memory = GetParam().reads, .measure = false};
      if (!made.near_memory) made.sockets = GroupSockets::kOfThisMachine;
      return of_rank(rank, kTasks, std::move(made));
    };
    for (const Status& failure : together(kTasks, options, member)) EXPECT_TRUE(failure.ok()) << failure;
  }
  // What a rank has: small whole numbers, which every type holds and whose sum it holds, too.
  static at::Tensor of_rank_number(int rank, int64_t rows) {
    const at::Tensor numbers = torch::arange(rows * 2).add(rank).remainder(type_ == at::kBool ? 2 : 7);
    return numbers.view({rows, 2}).to(type_);
  }
  static std::vector<at::Tensor> of_all(int64_t rows) {
    std::vector<at::Tensor> all;
    for (int rank = 0; rank < kTasks; ++rank) all.push_back(of_rank_number(rank, rows));
    return all;
  }
  static at::Tensor reduced(Reduction how, int64_t rows) {
    const at::Tensor all = torch::stack(of_all(rows)).to(torch::kDouble);
    switch (how) {
      case Reduction::kSum: return all.sum(0).to(type_);
      case Reduction::kMin: return all.amin(0).to(type_);
      case Reduction::kMax: return all.amax(0).to(type_);
    }
    return {};
  }
  // Of bool there is no sum.
  static std::vector<Reduction> reductions() {
    if (type_ == at::kBool) return {Reduction::kMin, Reduction::kMax};
    return {Reduction::kSum, Reduction::kMin, Reduction::kMax};
  }
  static void expect_equal(const at::Tensor& result, const at::Tensor& expected) {
    EXPECT_EQ(result.scalar_type(), expected.scalar_type());
    EXPECT_TRUE(result.equal(expected)) << expected.sizes();
  }
  void SetUp() override { type_ = GetParam().type; }

  // Rows: none, a few, and more than go with the first message.
  static constexpr std::array<int64_t, 3> kRows{0, 6, 60'000};
  inline static at::ScalarType type_ = at::kFloat;
};

std::vector<TypeAndWay> types_and_ways() {
  std::vector<TypeAndWay> all;
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kShort,
                                    at::kChar, at::kByte, at::kBool}) {
    all.push_back({.type = type, .way = "Memory", .memory = true, .reads = true});
    all.push_back({.type = type, .way = "Trays", .memory = true});
    all.push_back({.type = type, .way = "Sockets", .memory = false});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Types, Collective, testing::ValuesIn(types_and_ways()),
                         [](const testing::TestParamInfo<TypeAndWay>& info) {
                           return str_cat(c10::toString(info.param.type), info.param.way);
                         });

TEST_P(Collective, ReducesForAllForOneAndByRows) {
  expect_all_well([](TaskGroup& group) {
    const int rank = group.rank();
    for (const int64_t rows : kRows) {
      const at::Tensor own = of_rank_number(rank, rows);
      for (const Reduction how : reductions()) {
        const at::Tensor expected = reduced(how, rows), share = expected.narrow(0, rank * rows / kTasks, rows / kTasks);
        const auto made = [&](CollectiveCall call) {
          call.reduction = how;
          return group.run(call, {own})[0];
        };

        expect_equal(made({}), expected);
        expect_equal(made({.kind = CollectiveKind::kReduce, .root = 1}),
                     rank == 1 ? expected : torch::zeros_like(expected));
        expect_equal(made({.kind = CollectiveKind::kReduceScatter}), share);
      }
    }
  });
}

TEST_P(Collective, MovesRowsAsTheyAre) {
  expect_all_well([](TaskGroup& group) {
    const int rank = group.rank();
    for (const int64_t rows : kRows) {
      const at::Tensor own = of_rank_number(rank, rows);
      std::vector<at::Tensor> dealt;
      for (const at::Tensor& of_rank : of_all(rows)) {
        dealt.push_back(of_rank.narrow(0, rank * rows / kTasks, rows / kTasks));
      }

      expect_equal(group.run({.kind = CollectiveKind::kAllGather}, {own})[0], torch::cat(of_all(rows)));
      expect_equal(group.run({.kind = CollectiveKind::kAllToAll}, {own})[0], torch::cat(dealt));
      expect_equal(group.run({.kind = CollectiveKind::kBroadcast, .root = 2}, {own})[0], of_rank_number(2, rows));
    }
  });
}

TEST_P(Collective, RoundsASumOnceAtTheEnd) {
  if (type_ != at::kHalf && type_ != at::kBFloat16) return;
  // One more than this is this, so that a sum which is rounded on its way stays where it is.
  const double most = type_ == at::kHalf ? 2048 : 256;
  expect_all_well([&](TaskGroup& group) {
    const at::Tensor own = torch::full({3}, group.rank() == 0 ? most : 1.0, type_);
    const at::Tensor sum = torch::full({3}, most + 2, type_);

    expect_equal(group.run({}, {own})[0], sum);
    expect_equal(group.run({.kind = CollectiveKind::kReduceScatter}, {own})[0], sum.narrow(0, 0, 1));
    const at::Tensor of_root = group.run({.kind = CollectiveKind::kReduce}, {own})[0];
    if (group.rank() == 0) expect_equal(of_root, sum);
  });
}

TEST_P(Collective, TakesEveryOtherElementOfATensorWhereItIs) {
  expect_all_well([](TaskGroup& group) {
    const at::Tensor own = of_rank_number(group.rank(), 6).select(1, 1),
                     expected = reduced(Reduction::kMax, 6).select(1, 1);

    expect_equal(group.run({.reduction = Reduction::kMax}, {own})[0], expected);
    const at::Tensor of_root = group.run({.kind = CollectiveKind::kReduce, .reduction = Reduction::kMax}, {own})[0];
    if (group.rank() == 0) expect_equal(of_root, expected);
  });
}

class Barriers : public testing::Test, public testing_support::Tasks {};

TEST_F(Barriers, EndWhenAllHaveCome) {
  start_tasks(kTasks);
  std::atomic<int> come = 0;

  const auto failures = together(
      kTasks, [](int rank) { return of_rank(rank, kTasks, {.measure = false}); },
      [&](TaskGroup& group) {
        for (int round = 1; round <= 20; ++round) {
          ++come;
          group.run({.kind = CollectiveKind::kBarrier}, {});
          EXPECT_GE(come, round * kTasks);
          group.run({.kind = CollectiveKind::kBarrier}, {});
        }
      });

  for (const Status& failure : failures) EXPECT_TRUE(failure.ok()) << failure;
}

TEST_F(Barriers, AndReductionsThatThereAreNotFailNoGroup) {
  start_tasks(2);

  const auto failures = together(
      2, [](int rank) { return of_rank(rank, 2, {.measure = false}); },
      [](TaskGroup& group) {
        const auto refused = [&](const CollectiveCall& call, const at::Tensor& value) {
          return failure_of([&] { group.run(call, {value}); }).message();
        };
        EXPECT_THAT(refused({.kind = CollectiveKind::kBarrier}, torch::ones({1})), HasSubstr("expected none"));
        EXPECT_THAT(refused({.kind = CollectiveKind::kReduce, .root = 2}, torch::ones({1})),
                    HasSubstr("reduce(sum to rank 2): the group has 2 ranks"));
        EXPECT_THAT(refused({.kind = CollectiveKind::kReduce}, torch::tensor({true})), HasSubstr("of bool"));
        EXPECT_EQ(group.run({}, {torch::ones({1})})[0].item<float>(), 2);
      });

  for (const Status& failure : failures) EXPECT_TRUE(failure.ok()) << failure;
}

}  // namespace
}  // namespace muster

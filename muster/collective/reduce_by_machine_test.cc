#include "muster/collective/reduce_by_machine.h"

#include <absl/synchronization/mutex.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <set>
#include <thread>
#include <tuple>

#include "muster/base/strings.h"
#include "muster/collective/sums_in_order.h"

namespace muster::reduce_by_machine_test {
namespace {

// What all ranks have sent each other, and how much of it went from machine to machine.
class Post {
 public:
  explicit Post(Machines machines, bool has_room = true)
      : has_room(has_room), machines_(std::move(machines)), bytes_(machines_.ranks.size()) {}

  const bool has_room;  // false: all messages are left
  const Machines& machines() const { return machines_; }
  int size() const { return static_cast<int>(machines_.of_rank.size()); }
  void put(int from, int to, int64_t what, const at::Tensor& tensor) {
    absl::MutexLock lock(&mu_);
    const auto machine = [&](int rank) { return machines_.of_rank[static_cast<size_t>(rank)]; };
    if (what != kFirstMessage && machine(from) != machine(to)) {
      bytes_[static_cast<size_t>(machine(from))] += static_cast<int64_t>(tensor.nbytes());
    }
    EXPECT_TRUE(letters_.emplace(std::tuple(from, to, what), tensor.clone()).second) << "sent twice";
  }
  void leave(int from, int64_t what, at::Tensor tensor) {
    absl::MutexLock lock(&mu_);
    left_[{from, what}].push_back(std::move(tensor));
  }
  // The tensors that a rank has left under a number, one of each memory.
  size_t copies_left(int from, int64_t what) {
    absl::MutexLock lock(&mu_);
    std::set<const void*> memory;
    for (const at::Tensor& tensor : left_[{from, what}]) memory.insert(tensor.const_data_ptr());
    return memory.size();
  }
  at::Tensor take(int from, int to, int64_t what) {
    absl::MutexLock lock(&mu_);
    const std::tuple key(from, to, what);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return letters_.contains(key); };
    mu_.Await(absl::Condition(&there));
    at::Tensor tensor = letters_[key];
    letters_.erase(key);
    return tensor;
  }
  std::vector<int64_t> bytes() {
    absl::MutexLock lock(&mu_);
    return bytes_;
  }
  size_t unread() {
    absl::MutexLock lock(&mu_);
    return letters_.size();
  }

 private:
  const Machines machines_;
  absl::Mutex mu_;
  std::map<std::tuple<int, int, int64_t>, at::Tensor> letters_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<int, int64_t>, std::vector<at::Tensor>> left_ ABSL_GUARDED_BY(mu_);
  std::vector<int64_t> bytes_ ABSL_GUARDED_BY(mu_);  // that each machine has sent to others
};

class RankOfPost : public Mail {
 public:
  RankOfPost(Post& post, int rank) : post_(post), rank_(rank) {
    for (int from = 0; from < size(); ++from) ask(from, kFirstMessage, {});
  }
  int rank() const override { return rank_; }
  int size() const override { return post_.size(); }
  // Every other message is left, as where there is room for some.
  bool send(int to, int64_t what, const at::Tensor& tensor) override {
    if (what != kFirstMessage && (!post_.has_room || ++sent_ % 2 == 0)) return false;
    post_.put(rank_, to, what, tensor);
    return true;
  }
  void leave(int to, int64_t what, at::Tensor tensor) override {
    post_.put(rank_, to, what, tensor);
    post_.leave(rank_, what, std::move(tensor));
  }
  size_t ask(int from, int64_t what, at::Tensor) override {
    questions_.emplace_back(from, what);
    return questions_.size() - 1;
  }
  size_t first_question(int from) override { return static_cast<size_t>(from); }
  at::Tensor wait(size_t question) override {
    return post_.take(questions_[question].first, rank_, questions_[question].second);
  }
  std::string name_of(int rank) const override { return str_cat("rank ", rank); }

 private:
  Post& post_;
  const int rank_;
  int sent_ = 0;
  std::vector<std::pair<int, int64_t>> questions_;
};

// `of_rank`: the machine of each.
Machines machines_of(const std::vector<int>& of_rank) {
  const int64_t size = static_cast<int64_t>(of_rank.size());
  at::Tensor near = torch::zeros({size, size});
  for (int64_t a = 0; a < size; ++a) {
    for (int64_t b = 0; b < size; ++b) near[a][b] = of_rank[a] == of_rank[b] ? 1 : 0;
  }
  return Machines::of(near);
}

at::Tensor numbers(int rank, int64_t count, at::ScalarType type) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(rank) + 1);
  return torch::randn({count}, generator).mul(10).to(type);
}

// By rank, what each has in the end.
std::vector<std::vector<at::Tensor>> sums_of(Post& post, const CollectiveCall& call, AllReduceWay way,
                                             const std::function<std::vector<at::Tensor>(int rank)>& values) {
  std::vector<std::vector<at::Tensor>> sums(static_cast<size_t>(post.size()));
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < post.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      RankOfPost mail(post, rank);
      sums[static_cast<size_t>(rank)] =
          run_collective(call, values(rank), AllReduceSizes::always(way), post.machines(), mail);
    });
  }
  ranks.clear();
  return sums;
}

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
  std::vector<std::string> failures(3);
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.emplace_back([&, rank] {
        RankOfPost mail(post, rank);
        try {
          run_collective({}, {torch::ones({rank == 1 ? 200 : 100})}, AllReduceSizes::always(AllReduceWay::kInParts),
                         post.machines(), mail);
        } catch (const Error& error) {
          failures[static_cast<size_t>(rank)] = error.status().message();
        }
      });
    }
  }

  for (const std::string& failure : failures) EXPECT_THAT(failure, testing::HasSubstr("at different calls"));
}

}  // namespace
}  // namespace muster::reduce_by_machine_test

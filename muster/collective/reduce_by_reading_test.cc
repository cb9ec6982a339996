#include "muster/collective/reduce_by_reading.h"

#include <absl/cleanup/cleanup.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "muster/base/status.h"
#include "muster/collective/sums_in_order.h"
#include "muster/collective/test_post.h"
#include "muster/near/near_memory.h"
#include "muster/near/test_process.h"

namespace muster::reduce_by_reading_test {
namespace {

using testing::ElementsAre;
using testing::Truly;
using testing_support::failures_of;
using testing_support::machines_of;
using testing_support::memory_can_be_read;
using testing_support::numbers;
using testing_support::Post;
using testing_support::RankOfPost;
using testing_support::sums_of;

// The others are in this process.
class RankThatReads : public RankOfPost, public MemoryOfOthers {
 public:
  using RankOfPost::RankOfPost;
  MemoryOfOthers* memory() override { return this; }
  void read(int from, uint64_t there, const at::Tensor& into) override {
    ++reads;
    if (!read_memory(::getpid(), {{into.mutable_data_ptr(), there, into.nbytes()}})) {
      throw unavailable(name_of(from), " has nothing there");
    }
  }
  void check_none_has_failed() override {}
  void keep(const std::vector<at::Tensor>&, const std::vector<at::Tensor>& made) override { kept = made; }
  void let_go() override { kept.clear(); }

  int reads = 0;
  std::vector<at::Tensor> kept;
};

std::vector<at::Tensor> sum_of(Mail& mail, Post& post, const at::Tensor& value) {
  return run_collective({}, {value}, AllReduceSizes::always(AllReduceWay::kInParts), post.machines(), mail);
}

class ReduceByReading : public testing::Test {
 protected:
  void SetUp() override {
    if (!memory_can_be_read()) GTEST_SKIP() << "this machine does not let a process read another one's memory";
  }
};

Post of_one_machine(int ranks) { return Post(machines_of(std::vector<int>(static_cast<size_t>(ranks)))); }

TEST_F(ReduceByReading, GivesTheSameBitsAsAnyOtherWay) {
  for (const int ranks : {1, 2, 3, 7}) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong}) {
      for (const int64_t count : {0, 1, 65, 1'000, 300'001}) {
        Post post = of_one_machine(ranks);
        std::vector<at::Tensor> by_rank;
        for (int rank = 0; rank < ranks; ++rank) by_rank.push_back(numbers(rank, count, type));
        const at::Tensor expected = reduced(Reduction::kSum, by_rank);

        const auto sums = sums_of<RankThatReads>(post, {}, AllReduceWay::kInParts,
                                                 [&](int rank) { return std::vector{by_rank[rank]}; });

        for (const std::vector<at::Tensor>& of_rank : sums) {
          ASSERT_EQ(of_rank.size(), 1u);
          EXPECT_TRUE(of_rank[0].equal(expected)) << count << " " << c10::toString(type) << " of " << ranks;
        }
        EXPECT_EQ(post.unread(), 0u);
      }
    }
  }
}

TEST_F(ReduceByReading, FindsTheLeastOfSeveralTensorsAtOnce) {
  Post post = of_one_machine(3);

  const auto sums = sums_of<RankThatReads>(post, {.reduction = Reduction::kMin}, AllReduceWay::kInParts, [](int rank) {
    return std::vector<at::Tensor>{torch::full({2, 3}, rank), torch::full({100'000}, -1.5 * rank),
                                   torch::ones({3, 2}).t().mul(rank), torch::tensor({rank != 2, true})};
  });

  for (const auto& of_rank : sums) {
    ASSERT_EQ(of_rank.size(), 4u);
    EXPECT_TRUE(of_rank[0].equal(torch::zeros({2, 3}, at::kLong)));
    EXPECT_TRUE(of_rank[1].equal(torch::full({100'000}, -3.0F)));
    EXPECT_TRUE(of_rank[2].equal(torch::zeros({2, 3})));
    EXPECT_TRUE(of_rank[3].equal(torch::tensor({false, true})));
  }
}

TEST_F(ReduceByReading, ReadsNothingOfRanksThatAreAtAnotherCall) {
  Post post = of_one_machine(2);
  std::atomic<int> reads = 0;

  const std::vector<std::string> failures = failures_of<RankThatReads>(post, [&](RankThatReads& mail) {
    const absl::Cleanup count = [&] { reads += mail.reads; };
    sum_of(mail, post, torch::ones({mail.rank() == 0 ? 100 : 200}));
  });

  EXPECT_EQ(reads, 0);
  for (const std::string& failure : failures) EXPECT_THAT(failure, testing::HasSubstr("at different calls"));
}

// Hears in the end that one of the others has failed.
class RankThatHearsOfAFailure : public RankThatReads {
 public:
  using RankThatReads::RankThatReads;
  void check_none_has_failed() override { throw unavailable("rank 1 has failed"); }
};

TEST_F(ReduceByReading, ReturnsNothingThatWasReadOfARankThatHasFailed) {
  Post post = of_one_machine(2);
  const std::jthread other([&] {
    RankThatReads mail(post, 1);
    sum_of(mail, post, torch::ones({1'000}));
  });

  RankThatHearsOfAFailure mail(post, 0);
  EXPECT_THROW(sum_of(mail, post, torch::ones({1'000})), Error);
}

// Is told that the others are through by nobody.
class RankThatWaitsInVain : public RankThatReads {
 public:
  using RankThatReads::RankThatReads;
  size_t ask(int from, int64_t what, at::Tensor into) override {
    const size_t question = RankThatReads::ask(from, what, into);
    if (what == 2) last_.push_back(question);
    return question;
  }
  at::Tensor wait(size_t question) override {
    if (std::find(last_.begin(), last_.end(), question) != last_.end()) throw deadline_exceeded("nobody came");
    return RankThatReads::wait(question);
  }

 private:
  std::vector<size_t> last_;
};

TEST_F(ReduceByReading, KeepsWhatOthersMayBeReadingWhenItFails) {
  Post post = of_one_machine(2);
  std::vector<at::Tensor> sum_there, kept_here;
  {
    const std::jthread other([&] {
      RankThatReads mail(post, 1);
      sum_there = sum_of(mail, post, torch::ones({1'000}));
    });
    RankThatWaitsInVain mail(post, 0);
    EXPECT_THROW(sum_of(mail, post, torch::ones({1'000})), Error);
    kept_here = mail.kept;
  }

  const auto is_the_sum = [](const at::Tensor& tensor) { return tensor.equal(torch::full({1'000}, 2.0F)); };
  EXPECT_THAT(sum_there, ElementsAre(Truly(is_the_sum)));
  EXPECT_THAT(kept_here, ElementsAre(Truly(is_the_sum)));
}

}  // namespace
}  // namespace muster::reduce_by_reading_test

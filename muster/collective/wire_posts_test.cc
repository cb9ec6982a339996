#include "muster/collective/wire_posts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "muster/base/strings.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

using testing::HasSubstr;
using Clock = WirePosts::Clock;

Clock::time_point soon() { return Clock::now() + std::chrono::minutes(1); }

std::pair<Descriptor, Descriptor> connected() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

// By rank, each connected with each other.
std::vector<std::unique_ptr<WirePosts>> group_of(int size) {
  std::vector<std::vector<Descriptor>> sockets(size);
  for (auto& own : sockets) own.resize(size);
  for (int a = 0; a < size; ++a) {
    for (int b = 0; b < a; ++b) std::tie(sockets[a][b], sockets[b][a]) = connected();
  }
  std::vector<std::unique_ptr<WirePosts>> group;
  for (auto& own : sockets) {
    group.push_back(std::make_unique<WirePosts>(std::move(own), std::chrono::microseconds(0)));
  }
  return group;
}

Status failure_of(const std::function<void()>& what) {
  try {
    what();
  } catch (...) {
    return status_of(std::current_exception());
  }
  return {};
}

TEST(WirePosts, CarryTensorsOfAnyKindUnderTheirNumbers) {
  const auto group = group_of(2);
  const std::vector<torch::Tensor> sent{torch::arange(6).view({2, 3}), torch::full({}, 1.5), torch::empty({0, 4}),
                                        torch::ones({3, 4}, torch::kBFloat16).t(), torch::tensor({true, false})};

  for (size_t i = 0; i < sent.size(); ++i) group[0]->send(1, static_cast<int64_t>(i), sent[i], soon());

  for (size_t i = sent.size(); i-- > 0;) {
    const std::optional<at::Tensor> got = group[1]->take(0, static_cast<int64_t>(i), soon());
    ASSERT_TRUE(got);
    EXPECT_TRUE(got->equal(sent[i]));
    EXPECT_EQ(got->scalar_type(), sent[i].scalar_type());
  }
  EXPECT_TRUE(group[0]->has(1));
  EXPECT_FALSE(group[0]->has(0));
}

TEST(WirePosts, ReadIntoTheMemoryThatIsReadyForIt) {
  const auto group = group_of(2);
  at::Tensor whole = torch::zeros({10}), other = torch::zeros({3});
  group[1]->expect(0, 7, whole.narrow(0, 2, 4));
  group[1]->expect(0, 8, other);

  group[0]->send(1, 7, torch::ones({4}), soon());
  group[0]->send(1, 8, torch::ones({5}), soon());

  EXPECT_EQ(group[1]->take(0, 7, soon())->data_ptr(), whole.narrow(0, 2, 4).data_ptr());
  EXPECT_EQ(whole.sum().item<float>(), 4);
  EXPECT_TRUE(group[1]->take(0, 8, soon())->equal(torch::ones({5})));
  EXPECT_EQ(other.sum().item<float>(), 0);
}

// More than any socket holds: each has to read while it sends, from whoever sends to it.
TEST(WirePosts, SendToEachOtherAtTheSameTimeHoweverMuch) {
  constexpr int kRanks = 4;
  const auto group = group_of(kRanks);
  std::vector<std::jthread> ranks;
  for (int here = 0; here < kRanks; ++here) {
    ranks.emplace_back([&, here] {
      for (int round = 0; round < 3; ++round) {
        for (int step = 1; step < kRanks; ++step) {
          group[here]->send((here + step) % kRanks, round, torch::full({3'000'000}, here), soon());
        }
        for (int from = 0; from < kRanks; ++from) {
          if (from == here) continue;
          EXPECT_TRUE(group[here]->take(from, round, soon())->equal(torch::full({3'000'000}, from)));
        }
      }
    });
  }
}

TEST(WirePosts, AreUsedByManyThreadsAtOnce) {
  const auto group = group_of(2);
  std::vector<std::jthread> threads;
  for (int number = 0; number < 8; ++number) {
    for (int here = 0; here < 2; ++here) {
      threads.emplace_back([&, here, number] {
        for (int round = 0; round < 20; ++round) {
          const int64_t edge = 100 * number + round;
          group[here]->send(1 - here, edge, torch::full({20'000}, edge), soon());
          EXPECT_TRUE(group[here]->take(1 - here, edge, soon())->equal(torch::full({20'000}, edge)));
        }
      });
    }
  }
}

TEST(WirePosts, SayThatTheOtherOneHasEnded) {
  auto group = group_of(3);
  group[1]->send(0, 1, torch::ones({2}), soon());

  group[1].reset();

  EXPECT_TRUE(group[0]->take(1, 1, soon()));  // what it had sent before
  EXPECT_EQ(failure_of([&] { group[0]->take(1, 2, soon()); }).code(), StatusCode::kUnavailable);
  EXPECT_EQ(failure_of([&] { group[0]->send(1, 2, torch::ones({2}), soon()); }).code(), StatusCode::kUnavailable);
  group[0]->send(2, 3, torch::ones({2}), soon());
  EXPECT_TRUE(group[2]->take(0, 3, soon()));
}

TEST(WirePosts, TellTheOthersWhyTheyFail) {
  const auto group = group_of(2);
  const Status why(StatusCode::kInvalidArgument, "rank 0: fantasia!");

  group[0]->fail(why);

  const Status there = failure_of([&] { group[1]->take(0, 1, soon()); });
  EXPECT_EQ(there.code(), why.code());
  EXPECT_EQ(there.message(), why.message());
  EXPECT_EQ(failure_of([&] { group[0]->take(1, 1, soon()); }), why);
}

TEST(WirePosts, EndTheWaitOfWhoeverSendsOrWaitsWhenTheyFail) {
  const auto group = group_of(2);
  Status sender, waiter;
  {
    const std::jthread sends(
        [&] { sender = failure_of([&] { group[0]->send(1, 1, torch::ones({50'000'000}), soon()); }); });
    const std::jthread waits([&] { waiter = failure_of([&] { group[0]->take(1, 1, soon()); }); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    group[0]->fail(Status(StatusCode::kAborted, "rank 0: enough"));
  }
  EXPECT_THAT(sender.message(), HasSubstr("enough"));
  EXPECT_THAT(waiter.message(), HasSubstr("enough"));
}

TEST(WirePosts, LookWhetherItIsWorthWaitingForRoom) {
  const auto group = group_of(2);
  int looks = 0;

  const Status status = failure_of([&] {
    group[0]->send(1, 1, torch::ones({50'000'000}), soon(), [&] {
      if (++looks == 3) throw unavailable("does not answer");
    });
  });

  EXPECT_EQ(looks, 3);
  EXPECT_THAT(status.message(), HasSubstr("does not answer"));
}

TEST(WirePosts, WaitNoLongerThanTheyMay) {
  const auto group = group_of(2);

  EXPECT_FALSE(group[0]->take(1, 1, Clock::now() + std::chrono::milliseconds(20)));
  const Status status = failure_of(
      [&] { group[0]->send(1, 1, torch::ones({50'000'000}), Clock::now() + std::chrono::milliseconds(20)); });
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
  // Half a message is none: nothing more can be sent.
  EXPECT_EQ(failure_of([&] { group[0]->send(1, 2, torch::ones({}), soon()); }).code(), StatusCode::kUnavailable);
}

TEST(WirePosts, LetWhoeverWaitsLookAgain) {
  const auto group = group_of(2);
  std::atomic<bool> looked = false;
  std::optional<at::Tensor> got;
  {
    const std::jthread waits([&] {
      got = group[0]->take(1, 1, soon());
      looked = true;
    });
    while (!looked) {
      group[0]->wake();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  EXPECT_FALSE(got);
}

TEST(WirePosts, RefuseWhatThereIsNoMemoryFor) {
  auto [ours, theirs] = connected();
  std::vector<Descriptor> sockets(2);
  sockets[1] = std::move(ours);
  WirePosts posts(std::move(sockets), std::chrono::microseconds(0));
  // As the header of a tensor has it: the word and the type, its number, bytes, dimensions; and the only size.
  constexpr int64_t kBytes = int64_t{1} << 50;
  const int32_t words[2] = {0x6d7057, static_cast<int32_t>(dtype_of(at::kByte))};
  const int64_t numbers[4] = {1, kBytes, 1, kBytes};
  ASSERT_EQ(::write(theirs.number(), words, sizeof words), static_cast<ssize_t>(sizeof words));
  ASSERT_EQ(::write(theirs.number(), numbers, sizeof numbers), static_cast<ssize_t>(sizeof numbers));

  const Status status = failure_of([&] { posts.take(1, 1, soon()); });

  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(status.message(), HasSubstr(str_cat("has sent ", kBytes, " bytes")));
}

TEST(WirePosts, RefuseWhatIsNoMessage) {
  const std::vector<std::string> hostile{
      std::string(200, 'x'),
      std::string("\x57\x70\x6d\0\xff\xff\xff\xff", 8) + std::string(8, 0) + std::string(8, '\xff') + std::string(8, 0),
      std::string("\x57\x70\x6d\0\x06\0\0\0", 8) + std::string(8, 0) + std::string(8, '\x7f') + std::string(8, '\x7f'),
      std::string("\x57\x70\x6d\0\x06\0\0\0", 8) + std::string(8, 0) + std::string(8, '\x7f') +
          std::string("\x02\0\0\0\0\0\0\0", 8) + std::string(16, '\x7f'),
      std::string("\x58\x70\x6d\0\x03\0\0\0", 8) + std::string(8, 0) + std::string(8, '\x7f') + std::string(8, 0)};
  for (const std::string& bytes : hostile) {
    auto [ours, theirs] = connected();
    std::vector<Descriptor> sockets(2);
    sockets[1] = std::move(ours);
    WirePosts posts(std::move(sockets), std::chrono::microseconds(0));
    ASSERT_EQ(::write(theirs.number(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));

    const Status status = failure_of([&] { posts.take(1, 1, soon()); });

    EXPECT_EQ(status.code(), StatusCode::kInternal) << status;
    EXPECT_THAT(status.message(), HasSubstr("has sent"));
  }
}

}  // namespace
}  // namespace muster

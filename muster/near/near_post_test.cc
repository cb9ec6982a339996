#include "muster/near/near_post.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <torch/torch.h>

#include <future>
#include <latch>
#include <random>
#include <thread>
#include <utility>

#include "muster/near/near_socket.h"
#include "muster/near/test_process.h"
#include "muster/runtime/worker/run_options.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::kPatience;
using testing_support::OtherProcess;

NearPost::Clock::time_point soon() { return NearPost::Clock::now() + std::chrono::milliseconds(50); }
NearPost::Clock::time_point later() { return NearPost::Clock::now() + std::chrono::milliseconds(kPatience); }

Status failure_in(const std::function<void()>& what) {
  try {
    what();
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

// Both ends in this process.
class NearPosts : public testing::Test {
 protected:
  NearPosts() {
    const std::string name = str_cat("muster-test-", random_id());
    const Descriptor listener = listen_at(name);
    std::optional<PostCaller> caller = call_at(name, 7, 1);
    auto answered = answer_callers(listener, 7);
    EXPECT_EQ(answered.size(), 1u);
    EXPECT_EQ(answered[0].first, 1);
    here_ = std::move(answered[0].second);
    there_ = finish(*std::move(caller), 7);
    here_->open([this](int64_t edge) { fetched_here_.push_back(edge); }, {});
    there_->open([this](int64_t edge) { fetched_there_.push_back(edge); }, std::chrono::microseconds(100));
  }

  std::unique_ptr<NearPost> here_, there_;
  std::vector<int64_t> fetched_here_, fetched_there_;
};

TEST_F(NearPosts, CarryTensorsOfAllSizesAndTypesBothWays) {
  int64_t edge = 0;
  for (const torch::Tensor& tensor :
       {torch::rand({3, 4}), torch::tensor(true), torch::empty({0, 5}), torch::rand({700, 300}).t(),
        torch::ones({2}, torch::kBFloat16), torch::arange(100'000), torch::rand({1, 1, 2, 1, 1, 2, 1, 1})}) {
    EXPECT_TRUE(here_->send(++edge, tensor, soon()));
    EXPECT_TRUE(there_->send(edge, tensor, soon()));
    EXPECT_TRUE(there_->take(edge, later())->equal(tensor));
    EXPECT_TRUE(here_->take(edge, later())->equal(tensor));
  }
}

TEST_F(NearPosts, GiveWhatIsAskedForInAnyOrder) {
  for (int i = 1; i <= 5; ++i) here_->send(i, torch::full({i * 1'000}, i), soon());

  for (int i = 5; i >= 1; --i) EXPECT_TRUE(there_->take(i, later())->equal(torch::full({i * 1'000}, i)));
}

TEST_F(NearPosts, TellOfAFailureThoughWhatWasSentBeforeIsThere) {
  here_->send(1, torch::ones({3}), soon());
  EXPECT_TRUE(there_->take(1, later()));
  here_->send(2, torch::ones({3}), soon());
  there_->check();
  here_->fail(Status(StatusCode::kAborted, "it was told to"));

  EXPECT_TRUE(there_->take(2, later())) << "sent before";
  EXPECT_THAT(failure_in([&] { there_->check(); }).message(), HasSubstr("it was told to"));
}

TEST_F(NearPosts, TakeNobodyForFailedWhoHasEndedAfterItHadReadAll) {
  here_->send(1, torch::ones({3}), soon());
  there_->send(1, torch::ones({3}), soon());
  EXPECT_TRUE(here_->take(1, later()));
  here_.reset();

  there_->check();
  EXPECT_TRUE(there_->take(1, later())) << "its last words";
  there_->check();
  EXPECT_THAT(failure_in([&] { there_->take(2, later()); }).message(), HasSubstr("has ended"));
}

TEST_F(NearPosts, TakeForFailedWhoHasEndedBeforeItHadReadAll) {
  there_->send(1, torch::ones({3}), soon());
  here_.reset();

  EXPECT_THAT(failure_in([&] { there_->check(); }).message(), HasSubstr("has ended"));
}

TEST_F(NearPosts, SayThatLargeTensorsAreToBeFetched) {
  EXPECT_FALSE(here_->send(1, torch::zeros({1'000'000}), soon()));
  EXPECT_FALSE(here_->send(2, torch::zeros({1, 1, 1, 1, 1, 1, 1, 1, 1}), soon()));

  EXPECT_FALSE(there_->take(1, soon()));
  EXPECT_THAT(fetched_there_, ElementsAre(1, 2));
  there_->deliver(1, {}, torch::ones({2}));
  EXPECT_TRUE(there_->take(1, later())->equal(torch::ones({2})));
}

TEST_F(NearPosts, GiveWhatWasFetchedToWhoeverWaitsForIt) {
  here_->send(1, torch::zeros({1'000'000}), soon());
  const std::jthread fetches([&] { there_->deliver(2, {}, torch::ones({2})); });
  std::optional<at::Tensor> taken;
  while (!taken) taken = there_->take(2, later());
  EXPECT_TRUE(taken->equal(torch::ones({2})));
  while (fetched_there_.empty()) there_->take(1, soon());
}

TEST_F(NearPosts, ServeSeveralWhoWaitAtOnce) {
  std::vector<std::future<bool>> waiters;
  for (int i = 1; i <= 4; ++i) {
    waiters.push_back(std::async(std::launch::async, [&, i] {
      const std::optional<at::Tensor> taken = there_->take(i, later());
      return taken && taken->equal(torch::full({1}, i));
    }));
  }
  for (int i = 4; i >= 1; --i) here_->send(i, torch::full({1}, i), soon());

  for (auto& waiter : waiters) EXPECT_TRUE(waiter.get());
}

TEST_F(NearPosts, LetWhoeverWaitsLookUpWhenWoken) {
  std::atomic<bool> woken = false;
  std::jthread wakes([&] {
    while (!woken) {
      here_->wake();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  EXPECT_FALSE(here_->take(1, NearPost::Clock::now() + std::chrono::hours(1)));
  woken = true;
}

TEST_F(NearPosts, TellWhatTheOtherOneHasFailedWithAfterWhatCameBefore) {
  here_->send(1, torch::ones({1}), soon());
  here_->fail(Status(StatusCode::kInvalidArgument, "a shape of its own"));

  EXPECT_TRUE(there_->take(1, later()));
  const Status failure = failure_in([&] { there_->take(2, later()); });
  EXPECT_EQ(failure.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(failure.message(), "a shape of its own");
}

TEST_F(NearPosts, GiveTheLastMessagesOfOneThatHasEnded) {
  here_->send(1, torch::arange(50'000), soon());
  here_.reset();

  const torch::Tensor last = *there_->take(1, later());
  EXPECT_TRUE(last.equal(torch::arange(50'000)));
  EXPECT_EQ(failure_in([&] { there_->take(2, later()); }).code(), StatusCode::kUnavailable);
  EXPECT_EQ(failure_in([&] { there_->send(2, last, soon()); }).code(), StatusCode::kUnavailable);
  there_.reset();
  EXPECT_EQ(last.sum().item<int64_t>(), int64_t{50'000} * 49'999 / 2) << "outlives both";
}

TEST_F(NearPosts, WaitForWhatIsFetchedFromOneThatHasEnded) {
  EXPECT_FALSE(here_->send(1, torch::zeros(std::vector<int64_t>(9, 1)), soon()));
  here_.reset();
  EXPECT_FALSE(there_->take(1, soon())) << "it is on its way";
  EXPECT_THAT(fetched_there_, testing::ElementsAre(1));

  there_->deliver(1, {}, torch::ones({3}));

  EXPECT_TRUE(there_->take(1, later())->equal(torch::ones({3})));
  EXPECT_EQ(failure_in([&] { there_->take(2, later()); }).code(), StatusCode::kUnavailable);
}

TEST_F(NearPosts, WaitForNothingThatCannotBeFetched) {
  here_->send(1, torch::zeros(std::vector<int64_t>(9, 1)), soon());
  here_.reset();
  EXPECT_FALSE(there_->take(1, soon()));

  there_->deliver(1, Status(StatusCode::kUnavailable, "gone"), {});

  EXPECT_EQ(failure_in([&] { there_->take(1, later()); }).code(), StatusCode::kUnavailable);
}

TEST_F(NearPosts, DoNotWaitForEverForOneThatReadsNothing) {
  const Status failure = failure_in([&] {
    for (int i = 0; i < 100'000; ++i) here_->send(i, torch::ones({1'000}), soon());
  });
  EXPECT_EQ(failure.code(), StatusCode::kDeadlineExceeded);
}

TEST_F(NearPosts, GoOnWhenBothSendMoreThanTheSocketHolds) {
  constexpr int kMessages = 2'000;
  auto sends = [&](NearPost& post) {
    return std::async(std::launch::async, [&] {
      for (int i = 0; i < kMessages; ++i) post.send(i, torch::full({900}, i), later());
      for (int i = 0; i < kMessages; ++i) {
        if (post.take(i, later())->sum().item<int64_t>() != 900 * i) return false;
      }
      return true;
    });
  };
  auto left = sends(*here_), right = sends(*there_);
  EXPECT_TRUE(left.get());
  EXPECT_TRUE(right.get());
}

// Sends until there is no room, which `stuck` hears of. What that ends with.
std::future<Status> sends_until_stuck(NearPost& post, std::latch& stuck) {
  return std::async(std::launch::async, [&] {
    bool told = false;
    const auto tell = [&] {
      if (!std::exchange(told, true)) stuck.count_down();
    };
    return failure_in([&] {
      for (int i = 0;; ++i) post.send(i, torch::ones({1'000}), later(), tell);
    });
  });
}

TEST_F(NearPosts, LetWhoeverHasNoRoomLookWhetherItStillWantsTo) {
  const Status failure = failure_in([&] {
    while (true)
      here_->send(1, torch::ones({1'000}), later(), [] { throw invalid_argument("somebody pressed a key"); });
  });

  EXPECT_EQ(failure.message(), "somebody pressed a key");
}

TEST_F(NearPosts, LetWhoeverComesAfterOneThatHasNoRoomLookToo) {
  std::latch stuck(1);
  std::future<Status> first = sends_until_stuck(*here_, stuck);
  stuck.wait();

  const Status second = failure_in(
      [&] { here_->send(1, torch::ones({1}), later(), [] { throw invalid_argument("somebody pressed a key"); }); });

  EXPECT_EQ(second.message(), "somebody pressed a key");
  here_->fail(Status(StatusCode::kAborted, "enough"));
  EXPECT_EQ(first.get().message(), "enough");
}

TEST(NearPost, IsNotMadeWithOneThatMeansAnotherGroup) {
  const std::string name = str_cat("muster-test-", random_id());
  const Descriptor listener = listen_at(name);
  std::optional<PostCaller> caller = call_at(name, 7, 1);

  EXPECT_TRUE(answer_callers(listener, 8).empty());
  EXPECT_EQ(finish(*std::move(caller), 7), nullptr);
  EXPECT_FALSE(call_at("nobody is there", 7, 1));
}

// Whoever is let in may be out of its mind: nothing it sends ends this process.
TEST(NearPost, EndsWithOneThatSendsWhatIsNoLetter) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    SharedMemory ours = *SharedMemory::make(), theirs = *SharedMemory::make();
    Descriptor here(ends[0]);
    NearProcess process = *NearProcess::behind(here);
    NearPost post(std::move(here), std::move(process), std::move(ours),
                  *SharedMemory::open(Descriptor(::dup(theirs.descriptor().number()))));
    post.open([](int64_t) {}, {});
    const Descriptor other(ends[1]);
    for (int i = 0; i < 20; ++i) {
      std::vector<char> bytes(random() % 5'000 + 1);
      for (char& byte : bytes) byte = static_cast<char>(random());
      // Most look like a letter at first sight: a word, a type, an edge, a place, sizes.
      if (bytes.size() > 48 && random() % 4 != 0) {
        const auto word = static_cast<uint32_t>(0x6d7051 + random() % 5);
        const auto type = static_cast<int32_t>(random() % 20);
        std::memcpy(bytes.data(), &word, sizeof word);
        std::memcpy(bytes.data() + 4, &type, sizeof type);
        for (size_t at = 8; at + 8 <= std::min<size_t>(bytes.size(), 112); at += 8) {
          const uint64_t number = random() % 3 == 0 ? random() % 5 * 64 : random() % 9 << (random() % 64);
          std::memcpy(bytes.data() + at, &number, sizeof number);
        }
      }
      send_message(other, bytes);
    }
    for (int i = 0; i < 20; ++i) (void)failure_in([&] { post.take(i, NearPost::Clock::now()); });
  }
}

// The end of the other process, which calls, and that of this one.
std::unique_ptr<NearPost> call_from(OtherProcess& test, const std::string& name) {
  std::optional<PostCaller> caller = call_at(name, 7, 1);
  test.tell(1);
  test.hear();
  std::unique_ptr<NearPost> post = finish(*std::move(caller), 7);
  post->open([](int64_t) {}, {});
  return post;
}

std::unique_ptr<NearPost> answer(OtherProcess& other, const Descriptor& listener) {
  EXPECT_EQ(other.hear(), 1u);
  auto answered = answer_callers(listener, 7);
  EXPECT_EQ(answered.size(), 1u);
  if (answered.size() != 1) return nullptr;
  answered[0].second->open([](int64_t) {}, {});
  other.tell(1);
  return std::move(answered[0].second);
}

TEST(NearPost, ReachesAnotherProcessAndSeesItsEnd) {
  const std::string name = str_cat("muster-test-", random_id());
  const Descriptor listener = listen_at(name);
  OtherProcess other([&](OtherProcess& test) {
    const std::unique_ptr<NearPost> post = call_from(test, name);
    const std::optional<at::Tensor> question = post->take(1, later());
    post->send(2, question->clone(), later());
    post->send(3, at::full({1}, reinterpret_cast<int64_t>(question->const_data_ptr()), at::kLong), later());
    test.hear();
  });
  const std::unique_ptr<NearPost> answered = answer(other, listener);
  ASSERT_TRUE(answered);
  NearPost& post = *answered;

  post.send(1, torch::arange(20'000), later());
  EXPECT_TRUE(post.take(2, later())->equal(torch::arange(20'000)));
  const auto place = static_cast<uint64_t>(post.take(3, later())->item<int64_t>());
  torch::Tensor copy = torch::zeros({20'000}, torch::kLong);
  const std::vector<NearPiece> pieces{{copy.mutable_data_ptr(), place, copy.nbytes()}};
  EXPECT_EQ(post.read_memory(pieces), read_memory(other.pid(), pieces));
  EXPECT_EQ(copy.equal(torch::arange(20'000)), read_memory(other.pid(), pieces));
  EXPECT_FALSE(post.read_memory({{copy.mutable_data_ptr(), 8, 8}})) << "nobody has memory there";
  other.end();
  EXPECT_FALSE(post.read_memory(pieces));
  const Status failure = failure_in([&] { post.take(4, later()); });
  EXPECT_EQ(failure.code(), StatusCode::kUnavailable);
  EXPECT_THAT(failure.message(), HasSubstr("has ended"));
}

TEST(NearPost, GivesUpOnAStoppedProcessWhenItFails) {
  const std::string name = str_cat("muster-test-", random_id());
  const Descriptor listener = listen_at(name);
  OtherProcess other([&](OtherProcess& test) {
    const std::unique_ptr<NearPost> post = call_from(test, name);
    test.tell(2);
    while (true) post->take(-1, later());  // reads all that comes
  });
  const std::unique_ptr<NearPost> answered = answer(other, listener);
  ASSERT_TRUE(answered);
  NearPost& post = *answered;
  ASSERT_EQ(other.hear(), 2u);
  ASSERT_EQ(::kill(other.pid(), SIGSTOP), 0);
  std::latch stuck(1);
  std::future<Status> sender = sends_until_stuck(post, stuck);
  stuck.wait();

  post.fail(Status(StatusCode::kAborted, "another rank has ended"));

  const Status failure = sender.get();
  EXPECT_EQ(failure.code(), StatusCode::kAborted) << failure;
  EXPECT_EQ(failure.message(), "another rank has ended");
  EXPECT_EQ(failure_in([&] { post.take(1, later()); }).message(), "another rank has ended");
}

}  // namespace
}  // namespace muster

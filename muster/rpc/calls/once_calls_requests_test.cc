// Which requests OnceCalls runs, and which answers it keeps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <numeric>

#include "muster/rpc/calls/once_calls.h"
#include "muster/rpc/rpc_server.h"
#include "muster/runtime/worker/restart.h"

namespace muster {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr ClientId kClient{1, 2}, kOther{1, 3};
constexpr int64_t kMuch = int64_t{1} << 30;

// A call that nobody has sent.
class FakeCall : public RpcCall {
 public:
  explicit FakeCall(milliseconds age = {}) : age_(age) {}

  const std::string& peer() const override { return peer_; }
  steady_clock::time_point deadline() const override { return steady_clock::now() + hours(1); }
  milliseconds age() const override { return age_; }
  void answer(Frame frame) override { got = frame.envelope.header(); }
  void fail(const Status& why) override { status = why; }

  std::string got = "nothing";
  Status status{};

 private:
  const std::string peer_ = "nobody";
  const milliseconds age_;
};

Frame text(const std::string& words) {
  Frame frame;
  frame.envelope.set_header(words);
  return frame;
}

class OnceRequests : public ::testing::Test {
 protected:
  OnceRequests() : OnceRequests(kMuch) {}
  explicit OnceRequests(int64_t most_bytes)
      : once_(
            {.grace = seconds(10), .most_bytes = most_bytes, .keep_silent = hours(1), .now = [this] { return now_; }}) {
  }

  // Whether the request was run, and answered with its own number.
  bool runs(const ClientId& client, uint64_t number, const std::vector<uint64_t>& wanted = {}, milliseconds age = {}) {
    last_ = std::make_shared<FakeCall>(age);
    std::shared_ptr<RpcCall> run = once_.begin({client, number}, wanted, last_);
    if (!run) return false;
    run->answer(text(std::to_string(number)));
    return true;
  }

  steady_clock::time_point now_ = steady_clock::now();
  std::shared_ptr<FakeCall> last_;
  OnceCalls once_;
};

TEST_F(OnceRequests, GetTheirFirstAnswerAfterAHundredThousandOthers) {
  constexpr uint64_t kOthers = 100'000;
  EXPECT_TRUE(runs(kClient, 1));

  for (uint64_t i = 2; i < kOthers; ++i) {
    ASSERT_TRUE(runs(kClient, i, {i - 1})) << "the first one is still wanted";
    ASSERT_TRUE(runs(kOther, i));
  }

  EXPECT_FALSE(runs(kClient, 1));
  EXPECT_EQ(last_->got, "1");
  EXPECT_EQ(once_.counts().requests, 3u) << "the one that is wanted, and the last one of each client";
}

TEST_F(OnceRequests, AreNeverRunOnceTheyAreDoneWith) {
  EXPECT_TRUE(runs(kClient, 1));
  EXPECT_TRUE(runs(kClient, 2));

  EXPECT_FALSE(runs(kClient, 1));

  EXPECT_EQ(last_->status.code(), StatusCode::kAborted);
  EXPECT_THAT(last_->status.message(), HasSubstr("done with"));
  EXPECT_FALSE(is_restart(last_->status));
}

TEST_F(OnceRequests, OfAClientThatHasLeftAreNeverRun) {
  EXPECT_TRUE(runs(kClient, 1));
  EXPECT_TRUE(runs(kOther, 1));
  once_.leave(kClient);
  EXPECT_EQ(once_.counts().clients, 1u);
  EXPECT_EQ(once_.counts().requests, 1u);

  EXPECT_FALSE(runs(kClient, 1)) << "it was under way for long, and is not asked again";
  EXPECT_EQ(last_->status.code(), StatusCode::kAborted);
  EXPECT_THAT(last_->status.message(), HasSubstr("has left"));
  once_.cancel({kClient, 1});
  EXPECT_EQ(once_.counts().clients, 1u);
  EXPECT_EQ(once_.counts().left, 1u);

  now_ += hours(2);
  EXPECT_TRUE(runs(kOther, 2));
  EXPECT_EQ(once_.counts().left, 0u) << "nobody remembers it";
  EXPECT_FALSE(runs(kClient, 1, {}, hours(3))) << "but that something was forgotten";
}

TEST_F(OnceRequests, OfAClientThatHasLeftEndBeforeItIsForgotten) {
  std::shared_ptr<RpcCall> run = once_.begin({kClient, 1}, {}, std::make_shared<FakeCall>(milliseconds(0)));
  ASSERT_TRUE(run);
  once_.leave(kClient);
  EXPECT_EQ(once_.counts().clients, 1u);
  run->answer(text("late"));
  EXPECT_EQ(once_.counts().clients, 0u);
  EXPECT_EQ(once_.counts().left, 1u);
  EXPECT_EQ(once_.counts().numbers, 0u);
  EXPECT_EQ(once_.counts().bytes, 0);
}

TEST_F(OnceRequests, ThatWereGivenUpBeforeTheyCameAreNeverRun) {
  EXPECT_TRUE(runs(kClient, 7, {2}));

  EXPECT_FALSE(runs(kClient, 6)) << "its caller no longer waits for it";
  EXPECT_TRUE(runs(kClient, 5, {2})) << "it was overtaken";
}

TEST_F(OnceRequests, ThatAreMadeAgainWaitForTheOneThatRuns) {
  auto first = std::make_shared<FakeCall>(), again = std::make_shared<FakeCall>(milliseconds(5));
  std::shared_ptr<RpcCall> run = once_.begin({kClient, 1}, {}, first);

  EXPECT_EQ(once_.begin({kClient, 1}, {}, again), nullptr);
  EXPECT_EQ(again->got, "nothing");
  run->answer(text("done"));

  EXPECT_EQ(first->got, "done");
  EXPECT_EQ(again->got, "done");
}

TEST_F(OnceRequests, ThatFailedFailAgainInTheSameWay) {
  std::shared_ptr<RpcCall> run = once_.begin({kClient, 1}, {}, std::make_shared<FakeCall>());
  run->fail(Status(StatusCode::kNotFound, "no such thing"));

  EXPECT_FALSE(runs(kClient, 1));

  EXPECT_EQ(last_->status, Status(StatusCode::kNotFound, "no such thing"));
}

TEST_F(OnceRequests, LeaveNothingOnceTheyAreAcknowledged) {
  std::shared_ptr<RpcCall> run = once_.begin({kClient, 1}, {}, std::make_shared<FakeCall>());
  Frame large;
  large.tensors.push_back(torch::zeros({1'000'000}));
  run->answer(large);
  run.reset();
  EXPECT_EQ(once_.counts().bytes, 4'000'000);

  once_.acknowledge({kClient, 2}, {});

  EXPECT_EQ(once_.counts().bytes, 0);
  EXPECT_EQ(once_.counts().requests, 0u);
  EXPECT_EQ(large.tensors[0].use_count(), 1u) << "who writes to it would have to copy it";
}

TEST_F(OnceRequests, ThatNobodyWantsAnyMoreRunToTheirEnd) {
  std::shared_ptr<RpcCall> run = once_.begin({kClient, 1}, {}, std::make_shared<FakeCall>());
  EXPECT_TRUE(runs(kClient, 2));
  EXPECT_FALSE(run->cancellation().cancelled());

  run->answer(text("late"));
  run.reset();

  EXPECT_EQ(once_.counts().requests, 1u);
  EXPECT_FALSE(runs(kClient, 1));
}

TEST_F(OnceRequests, CanBeCancelledByAWordThatOvertakesThemOrComesLate) {
  std::shared_ptr<RpcCall> running = once_.begin({kClient, 1}, {}, std::make_shared<FakeCall>());
  EXPECT_TRUE(runs(kClient, 2));
  once_.cancel({kClient, 1});
  once_.cancel({kClient, 3});

  std::shared_ptr<RpcCall> next = once_.begin({kClient, 3}, {}, std::make_shared<FakeCall>());

  EXPECT_TRUE(running->cancellation().cancelled());
  EXPECT_TRUE(next->cancellation().cancelled());
  running->fail(running->cancellation().status());
  next->fail(next->cancellation().status());
}

class ManyBytes : public OnceRequests {
 protected:
  ManyBytes() : OnceRequests(/*most_bytes=*/1'000) {}

  void answer_largely(const ClientId& client) {
    std::shared_ptr<RpcCall> run = once_.begin({client, 1}, {}, std::make_shared<FakeCall>());
    Frame large;
    large.tensors.push_back(torch::zeros({200}));
    run->answer(large);
  }
};

TEST_F(ManyBytes, AreKeptForTheOneWhoCameLast) {
  answer_largely(kClient);
  now_ += seconds(1);
  answer_largely(kOther);

  EXPECT_FALSE(runs(kClient, 1)) << "its answer is gone, but not that it was applied";
  EXPECT_EQ(last_->status.code(), StatusCode::kAborted);
  EXPECT_THAT(last_->status.message(), HasSubstr("was applied"));
  EXPECT_FALSE(is_restart(last_->status));
  EXPECT_FALSE(runs(kOther, 1));
  EXPECT_TRUE(last_->status.ok()) << last_->status;
  EXPECT_LE(once_.counts().bytes, 1'000);
}

TEST_F(OnceRequests, OfAClientThatIsSilentKeepNoLargeAnswers) {
  std::shared_ptr<RpcCall> run = once_.begin({kClient, 1}, {}, std::make_shared<FakeCall>());
  Frame large;
  large.tensors.push_back(torch::zeros({100'000}));
  run->answer(large);
  EXPECT_TRUE(runs(kOther, 1));
  now_ += minutes(1);
  once_.look();
  EXPECT_GE(once_.counts().bytes, 400'000);
  now_ += minutes(2);
  once_.look();
  EXPECT_LT(once_.counts().bytes, 1'000);
  EXPECT_FALSE(runs(kClient, 1, {}, minutes(3)));
  EXPECT_THAT(last_->status.message(), HasSubstr("was applied"));
  EXPECT_FALSE(runs(kOther, 1, {}, minutes(3)));
  EXPECT_TRUE(last_->status.ok()) << "small ones are kept: " << last_->status;
}

TEST_F(OnceRequests, OfAClientThatWasSilentForLongAreForgottenAndNotRunAgain) {
  EXPECT_TRUE(runs(kClient, 1));
  now_ += hours(2);
  EXPECT_TRUE(runs(kOther, 1));
  EXPECT_EQ(once_.counts().clients, 1u);

  EXPECT_FALSE(runs(kClient, 1, {}, hours(2)));
  EXPECT_THAT(last_->status.message(), HasSubstr("too long to tell"));
  EXPECT_FALSE(is_restart(last_->status));
  EXPECT_TRUE(runs(kClient, 3, {2, 1})) << "it is made for the first time";
  EXPECT_FALSE(runs(kClient, 1, {}, hours(2))) << "it may have been run before its client was forgotten";
}

TEST(OnceRequestsOfManyClients, AreBoundedInNumber) {
  auto now = steady_clock::now();
  OnceCalls once({.grace = seconds(10),
                  .most_bytes = kMuch,
                  .keep_silent = hours(1),
                  .most_clients = 1'000,
                  .most_numbers = 20'000,
                  .now = [&] { return now; }});
  std::vector<uint64_t> wanted(1'000);
  std::iota(wanted.rbegin(), wanted.rend(), 1);

  for (uint64_t client = 1; client < 200; ++client) {
    now += seconds(1);
    once.cancel({{client, client}, 5});
    std::shared_ptr<RpcCall> run = once.begin({{client, client}, 2'000}, wanted, std::make_shared<FakeCall>());
    ASSERT_NE(run, nullptr) << client;
    run->answer(text("done"));
    ASSERT_LE(once.counts().numbers, 21'000u + 2) << client;
  }
}

TEST_F(OnceRequests, WhoseFirstCallWasLostAreRun) {
  EXPECT_TRUE(runs(kClient, 1, {}, minutes(30))) << "of a client that is new";
  now_ += hours(2);
  EXPECT_TRUE(runs(kOther, 1)) << "a client is forgotten";
  now_ += minutes(10);

  EXPECT_TRUE(runs({5, 5}, 1, {}, minutes(10)));
}

TEST_F(OnceRequests, KeepTheirClientFromBeingForgottenWhileTheyRun) {
  std::shared_ptr<RpcCall> run = once_.begin({kClient, 1}, {}, std::make_shared<FakeCall>());
  now_ += hours(5);
  EXPECT_TRUE(runs(kOther, 1));
  run->answer(text("at last"));
  run.reset();
  now_ += minutes(30);

  EXPECT_FALSE(runs(kClient, 1, {}, hours(5)));

  EXPECT_EQ(last_->got, "at last");
}

TEST(RequestNumbers, TellWhichAnswersAreWanted) {
  RequestNumbers numbers, others;
  proto::Envelope first, second, third;

  RequestNumbers::Taken one = numbers.take(first), two = numbers.take(second);
  one.give_back();
  RequestNumbers::Taken three = numbers.take(third);

  EXPECT_THAT(first.wanted(), ElementsAre());
  EXPECT_THAT(second.wanted(), ElementsAre(1));
  EXPECT_THAT(third.wanted(), ElementsAre(1)) << "the second, and no longer the first";
  EXPECT_EQ(request_id_of(third).number, 3u);
  EXPECT_EQ(request_id_of(third).client, numbers.client());
  EXPECT_FALSE(numbers.client() == others.client());
}

}  // namespace
}  // namespace muster

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>

#include "muster/base/test_wait.h"
#include "muster/near/near_door.h"
#include "muster/near/near_visit.h"
#include "muster/rpc/rpc_channel.h"
#include "muster/rpc/rpc_server.h"
#include "muster/rpc/service_names.h"
#include "muster/rpc/test_say.h"

namespace muster {
namespace {

using testing_support::eventually;
using testing_support::say;

constexpr const char* kTask = "/job:ps/replica:0/task:0";
constexpr const char* kEcho = "/muster.Test/Echo";

bool memory_can_be_read() {
  uint64_t word = 7, copy = 0;
  return near_memory_wanted() && read_memory(::getpid(), {{&copy, reinterpret_cast<uint64_t>(&word), sizeof word}});
}

// Two ends of a connection, and a frame that goes from one to the other.
class LentFrames : public testing::Test {
 protected:
  void SetUp() override {
    if (!memory_can_be_read()) GTEST_SKIP() << "this machine does not let a process read another one's memory";
    visit_->meet([this](bool knocked, const NearVisit::Answered& answered) {
      if (knocked) door_.look();
      answered({}, knocked ? "" : door_.name());
    });
    sender_ = visit_->connection();
    ASSERT_TRUE(sender_);
    receiver_.lender = [this](uint64_t key) { return door_.find(key); };
    frame_.tensors = {torch::randn({5}), torch::randn({300, 300}), torch::randn({20'000})};
  }

  NearDoor door_{kTask};
  const std::shared_ptr<NearVisit> visit_ = std::make_shared<NearVisit>(kTask);
  std::shared_ptr<NearConnection> sender_;
  Borrowing receiver_;
  Frame frame_;
};

TEST_F(LentFrames, HoldTheSmallTensorsAndLendTheLargeOnes) {
  const LentFrame lent = encode_for({.near = sender_.get()}, frame_);

  EXPECT_LT(lent.message.Length(), 1000u);
  const Frame got = decode(lent.message, receiver_);
  ASSERT_EQ(got.tensors.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(torch::equal(got.tensors[i], frame_.tensors[i]));
}

TEST_F(LentFrames, AreLostWhenTheLenderHasTakenThemBack) {
  const LentFrame lent = encode_for({.near = sender_.get()}, frame_);
  sender_->ledger().end(lent.loan);

  EXPECT_THROW(decode(lent.message, receiver_), LoanLost);
  EXPECT_THROW(decode(lent.message), LoanLost) << "of nobody that is known";
}

TEST_F(LentFrames, CannotLendMoreThanTheReceiverTakes) {
  const LentFrame lent = encode_for({.near = sender_.get()}, frame_);
  Borrowing little = receiver_;
  little.most_bytes = 400'000;
  try {
    decode(lent.message, little);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kResourceExhausted);
  }
}

TEST_F(LentFrames, AreSentWhenTooManyAreLent) {
  while (sender_->ledger().lend({torch::ones({1})}).number != 0) {
  }

  const LentFrame plain = encode_for({.near = sender_.get()}, frame_);

  EXPECT_EQ(plain.loan.number, 0u);
  EXPECT_TRUE(torch::equal(decode(plain.message).tensors.at(1), frame_.tensors[1]));
}

// A server that gives back what it is given, and channels to it.
class NearCalls : public testing::Test {
 protected:
  void SetUp() override {
    if (!memory_can_be_read()) GTEST_SKIP() << "this machine does not let a process read another one's memory";
  }

  static std::unique_ptr<RpcServer> serve(const std::string& address = "127.0.0.1:0", const std::string& task = kTask,
                                          std::vector<RpcServer::MethodEntry> methods = {}) {
    methods.push_back({kEcho, [](const std::shared_ptr<RpcCall>& call) {
                         Frame answer;
                         answer.tensors = call->request().tensors;
                         call->answer(std::move(answer));
                       }});
    return std::make_unique<RpcServer>(RpcServerOptions{.address = address, .task = task}, std::move(methods));
  }

  // How many bytes went through the loopback device while 1 MB was echoed, after the two have met.
  static int64_t echo(RpcChannel& channel) {
    Frame request;
    request.tensors = {torch::randn({250'000})};
    const int64_t before = loopback_bytes();
    const Frame answer = channel.call(kEcho, request);
    EXPECT_TRUE(torch::equal(answer.tensors.at(0), request.tensors[0]));
    return loopback_bytes() - before;
  }

  static int64_t loopback_bytes() {
    std::ifstream table("/proc/net/dev");
    for (std::string line; std::getline(table, line);) {
      if (const size_t at = line.find("lo:"); at != std::string::npos) return std::stoll(line.substr(at + 3));
    }
    return 0;
  }

  static bool becomes_near(RpcChannel& channel) {
    return eventually([&] { return echo(channel) < 500'000; });
  }
};

TEST_F(NearCalls, CopyLargeTensorsFromMemoryToMemory) {
  auto server = serve();
  RpcChannel channel(server->address(), kTask, {});
  EXPECT_TRUE(becomes_near(channel));
}

TEST_F(NearCalls, SendThemWhenAskedTo) {
  auto server = serve();
  RpcChannel channel(server->address(), kTask, {.near_memory = false});
  for (int i = 0; i < 5; ++i) EXPECT_GT(echo(channel), 2'000'000);
}

TEST_F(NearCalls, GoOnWhenTheServerWasReplaced) {
  auto server = serve();
  const std::string address = server->address();
  RpcChannel channel(address, kTask, {});
  ASSERT_TRUE(becomes_near(channel));

  server.reset();
  server = serve(address);  // which has never heard of the channel
  Frame request;
  request.tensors = {torch::randn({250'000})};
  const Frame answer = channel.call(kEcho, request, {.wait_until_up = true});
  EXPECT_TRUE(torch::equal(answer.tensors.at(0), request.tensors[0]));
  EXPECT_TRUE(becomes_near(channel)) << "they meet again";
}

TEST_F(NearCalls, LeaveNothingLentBehind) {
  at::Tensor kept = torch::randn({250'000});
  auto server = serve("127.0.0.1:0", kTask, {{"/muster.Test/Kept", [&](const std::shared_ptr<RpcCall>& call) {
                                                Frame answer;
                                                answer.tensors = {kept};
                                                call->answer(std::move(answer));
                                              }}});
  RpcChannel channel(server->address(), kTask, {});
  ASSERT_TRUE(becomes_near(channel));

  for (int i = 0; i < 10; ++i) channel.call("/muster.Test/Kept", {});

  EXPECT_TRUE(eventually([&] {
    channel.call(kEcho, {});  // lets go of what was given back
    return kept.use_count() == 1;
  }));
}

TEST_F(NearCalls, LendNothingForANumberThatSomebodyShows) {
  auto server = serve();
  RpcChannel channel(server->address(), kTask, {});
  ASSERT_TRUE(becomes_near(channel));  // somebody is known; the number of that is not

  proto::Envelope forged;
  proto::TensorHeader& tensor = *forged.add_tensors();
  tensor.set_dtype(6);
  tensor.add_sizes(100'000);
  tensor.set_lent(true);
  forged.mutable_loan()->set_number(1);
  for (const uint64_t key : {uint64_t{0}, uint64_t{1}, uint64_t{4711}, ~uint64_t{0}}) {
    forged.set_near_key(key);
    const proto::Envelope answer = say(server->address(), kEcho, forged, testing_support::kSaysHeavy);
    EXPECT_TRUE(answer.loan_refused());
    EXPECT_EQ(answer.tensors_size(), 0);
  }
}

TEST_F(NearCalls, DoNotBelieveATaskThatNamesTheDoorOfAnotherOne) {
  auto honest = serve();
  proto::MeetRequest knock;
  knock.set_knocked(true);
  const std::string door = header_of<proto::MeetAnswer>(say(honest->address(), call_rpc::kMeet, {})).door();
  ASSERT_FALSE(door.empty());
  std::atomic<int> relayed = 0;
  auto hostile = serve("127.0.0.1:0", "/job:ps/replica:0/task:1",
                       {{call_rpc::kMeet, [&](const std::shared_ptr<RpcCall>& call) {
                           proto::MeetAnswer answer;
                           if (header_of<proto::MeetRequest>(call->request().envelope).knocked()) {
                             say(honest->address(), call_rpc::kMeet, with_header(knock).envelope);
                             ++relayed;
                           } else {
                             answer.set_door(door);
                           }
                           call->answer(with_header(answer));
                         }}});
  RpcChannel channel(hostile->address(), "/job:ps/replica:0/task:1", {});

  EXPECT_TRUE(eventually([&] { return echo(channel) > 0 && relayed == 1; }));
  for (int i = 0; i < 5; ++i) EXPECT_GT(echo(channel), 2'000'000) << "its tensors are sent";
  EXPECT_EQ(relayed, 1);
}

}  // namespace
}  // namespace muster

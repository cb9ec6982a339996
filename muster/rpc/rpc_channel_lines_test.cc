#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <future>
#include <thread>

#include "muster/base/test_wait.h"
#include "muster/rpc/credentials/certificates.h"
#include "muster/rpc/rpc_channel.h"
#include "muster/rpc/rpc_server.h"
#include "muster/rpc/test_relay.h"
#include "muster/rpc/test_say.h"

namespace muster {
namespace {

using testing_support::eventually;
using testing_support::Relay;
using testing_support::say;

constexpr const char* kServer = "/job:ps/replica:0/task:0";
constexpr const char* kGiveBack = "/muster.Test/GiveBack";
constexpr const char* kRefuse = "/muster.Test/Refuse";
constexpr int64_t kLarge = 5'000'000;  // floats: more than the kernel keeps of a connection

// A server that gives back what it is given, and channels to it as from another machine.
class FarCalls : public testing::Test {
 protected:
  static std::unique_ptr<RpcServer> serve(const std::string& address = "127.0.0.1:0",
                                          const Credentials& credentials = {}) {
    const auto echo = [](const std::shared_ptr<RpcCall>& call) {
      Frame answer;
      answer.tensors = call->request().tensors;
      call->answer(std::move(answer));
    };
    const auto refuse = [](const std::shared_ptr<RpcCall>&) { throw invalid_argument("nobody wants this"); };
    return std::make_unique<RpcServer>(
        RpcServerOptions{.address = address, .task = kServer, .credentials = credentials},
        std::vector<RpcServer::MethodEntry>{{kGiveBack, echo, /*once=*/true}, {kRefuse, refuse}});
  }

  static void echo(RpcChannel& channel, int64_t numbers = kLarge, const CallOptions& options = {}) {
    Frame request;
    request.tensors = {torch::randn({numbers}), torch::arange(3)};
    const Frame answer = channel.call(kGiveBack, request, options);
    ASSERT_EQ(answer.tensors.size(), 2u);
    EXPECT_TRUE(torch::equal(answer.tensors[0], request.tensors[0]));
    EXPECT_TRUE(torch::equal(answer.tensors[1], request.tensors[1]));
  }

  // Calls until there is a line each way.
  static bool lay_lines(RpcServer& server, RpcChannel& channel) {
    return eventually([&] {
      echo(channel, 100'000);
      return server.lines() >= 2;
    });
  }

  static ChannelOptions far(const Credentials& credentials = {}) {
    return {.credentials = credentials, .near_memory = false};
  }
};

TEST_F(FarCalls, SendLargeTensorsOverLinesOfTheirOwn) {
  auto server = serve();
  RpcChannel channel(server->address(), kServer, far());
  echo(channel, 100);
  EXPECT_EQ(server->lines(), 0u) << "nothing large was sent";
  ASSERT_TRUE(lay_lines(*server, channel));
  for (int i = 0; i < 50; ++i) echo(channel);
  // One more may have been asked for before the caller knew of the first, or of its last parcel's end.
  EXPECT_LT(server->lines(), 2 * kMostLines) << "one each way is enough for one call at a time";
}

TEST_F(FarCalls, LayMoreLinesForCallsAtTheSameTime) {
  auto server = serve();
  RpcChannel channel(server->address(), kServer, far());
  ASSERT_TRUE(lay_lines(*server, channel));
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 5; ++round) echo(channel, kLarge / 4);
    });
  }
  threads.clear();
  EXPECT_LE(server->lines(), 8u);
}

TEST_F(FarCalls, ThatNobodyWaitsForUseThemToo) {
  auto server = serve();
  RpcChannel channel(server->address(), kServer, far());
  ASSERT_TRUE(lay_lines(*server, channel));
  const at::Tensor sent = torch::randn({kLarge});
  std::vector<std::promise<Frame>> answers(20);
  for (std::promise<Frame>& answer : answers) {
    Frame request;
    request.tensors = {sent};
    channel.start(kGiveBack, request, {.once = true}, [&](const Status& status, Frame frame) {
      EXPECT_TRUE(status.ok()) << status;
      answer.set_value(std::move(frame));
    });
  }
  for (std::promise<Frame>& answer : answers) {
    EXPECT_TRUE(torch::equal(answer.get_future().get().tensors.at(0), sent));
  }
}

TEST_F(FarCalls, GoOnWhenTheServerWasReplaced) {
  auto server = serve();
  const std::string address = server->address();
  RpcChannel channel(address, kServer, far());
  ASSERT_TRUE(lay_lines(*server, channel));
  server.reset();
  server = serve(address);  // which has never heard of the lines
  echo(channel, kLarge, {.wait_until_up = true});
  EXPECT_TRUE(lay_lines(*server, channel)) << "and anew";
}

TEST_F(FarCalls, GoOnWhenTheirLinesBreak) {
  auto server = serve();
  RpcChannel channel(server->address(), kServer, far());
  ASSERT_TRUE(lay_lines(*server, channel));
  std::atomic<bool> done = false;
  std::jthread breaker([&] {
    while (!done) {
      server->break_lines();
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
  });
  for (int i = 0; i < 40; ++i) echo(channel, kLarge, {.once = true});
  done = true;
}

TEST_F(FarCalls, AreFreeAtOnceWhenNobodyWantsWhatTheySend) {
  auto server = serve();
  RpcChannel channel(server->address(), kServer, far());
  ASSERT_TRUE(lay_lines(*server, channel));
  Frame request;
  request.tensors = {torch::randn({kLarge})};
  for (const char* method : {kRefuse, "/muster.Test/Unknown"}) {
    try {
      channel.call(method, request, {.timeout = kStalled / 2});
      FAIL() << method;
    } catch (const Error& error) {
      EXPECT_NE(error.code(), StatusCode::kDeadlineExceeded) << method << " was waited for: " << error.what();
    }
  }
  echo(channel);
}

TEST_F(FarCalls, CanBeCancelledWhileTheySend) {
  auto server = serve();
  Relay relay(server->address());
  RpcChannel channel(relay.address(), kServer, far());
  ASSERT_TRUE(lay_lines(*server, channel));
  for (int i = 0; i < 20; ++i) {
    Cancellation cancellation;
    std::jthread canceller([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(i));
      cancellation.cancel();
    });
    Frame request;
    request.tensors = {torch::randn({kLarge})};
    try {
      channel.call(kGiveBack, request, {.cancellation = &cancellation, .once = true});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), StatusCode::kCancelled) << error.what();
    }
  }
  echo(channel);
}

TEST_F(FarCalls, OfManyCallersLeaveNothingBehind) {
  auto server = serve();
  for (int i = 0; i < 20; ++i) {
    RpcChannel channel(server->address(), kServer, far());
    ASSERT_TRUE(lay_lines(*server, channel));
  }
  EXPECT_TRUE(eventually([&] { return server->lines() == 0; })) << server->lines() << " lines of those who have gone";
}

TEST_F(FarCalls, ThatAreEncryptedStayInOneConnection) {
  const Identity authority = make_authority("test authority", std::chrono::days(30));
  const auto issue = [&](const std::string& name, const std::string& task) {
    const Identity made = make_certificate(authority, {.name = name, .use = {.task = task}});
    return Credentials{.tls = Tls{.ca = authority.certificate, .certificate = made.certificate, .key = made.key}};
  };
  auto server = serve("127.0.0.1:0", issue("ps", kServer));
  RpcChannel channel(server->address(), kServer, far(issue("chief", "")));
  for (int i = 0; i < 5; ++i) echo(channel, kLarge / 4);
  EXPECT_EQ(server->lines(), 0u);
}

TEST_F(FarCalls, WithATokenLayLinesAndWithAWrongOneDoNot) {
  auto server = serve("127.0.0.1:0", {.token = "right"});
  RpcChannel stranger(server->address(), kServer, far({.token = "wrong"}));
  EXPECT_THROW(echo(stranger), Error);
  EXPECT_EQ(server->lines(), 0u);
  RpcChannel channel(server->address(), kServer, far({.token = "right"}));
  EXPECT_TRUE(lay_lines(*server, channel));
}

TEST_F(FarCalls, RefuseAParcelThatNobodySends) {
  constexpr uint32_t kHeavy = testing_support::kSaysHeavy, kWithParcel = (uint32_t{1} << 31) | kHeavy;
  auto server = serve();
  RpcChannel channel(server->address(), kServer, far());
  ASSERT_TRUE(lay_lines(*server, channel));
  proto::Envelope forged;
  proto::TensorHeader& tensor = *forged.add_tensors();
  tensor.set_dtype(6);
  tensor.add_sizes(100'000);
  tensor.set_lent(true);
  forged.set_caller(~uint64_t{0});
  forged.mutable_parcel()->set_line(4711);
  forged.mutable_parcel()->set_number(1);
  EXPECT_TRUE(say(server->address(), kGiveBack, forged, kWithParcel).loan_refused());
  EXPECT_EQ(say(server->address(), kGiveBack, forged, kHeavy).error().code(), static_cast<int>(StatusCode::kDataLoss))
      << "which says nothing of it in time";
  tensor.set_sizes(0, int64_t{1} << 40);
  EXPECT_EQ(say(server->address(), kGiveBack, forged, kWithParcel).error().code(),
            static_cast<int>(StatusCode::kResourceExhausted));
  forged.clear_parcel();
  tensor.set_sizes(0, 100'000);
  EXPECT_EQ(say(server->address(), kGiveBack, forged, kWithParcel).error().code(),
            static_cast<int>(StatusCode::kDataLoss));
  echo(channel);
}

}  // namespace
}  // namespace muster

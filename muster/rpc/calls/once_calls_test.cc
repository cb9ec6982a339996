#include "muster/rpc/calls/once_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "muster/base/test_wait.h"
#include "muster/rpc/calls/request_numbers.h"
#include "muster/rpc/rpc_channel.h"
#include "muster/rpc/rpc_server.h"
#include "muster/rpc/test_relay.h"

namespace muster {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using testing_support::eventually;
using testing_support::kPatience;
using testing_support::Relay;

constexpr const char* kWait = "/muster.Test/Wait";

// A server with one method, which waits until the test lets it go on or its run is cancelled.
class Holding {
 public:
  explicit Holding(milliseconds grace) {
    server = std::make_unique<RpcServer>(
        RpcServerOptions{.address = "127.0.0.1:0", .task = "/job:test/replica:0/task:0", .grace = grace},
        std::vector<RpcServer::MethodEntry>{{kWait, [this](const auto& call) { wait(*call); }, true}});
  }
  ~Holding() { go_on = true; }

  std::atomic<int> runs = 0, cancelled = 0;
  std::atomic<bool> go_on = false;
  std::unique_ptr<RpcServer> server;

 private:
  void wait(RpcCall& call) {
    ++runs;
    EXPECT_TRUE(eventually([&] { return go_on || call.cancellation().cancelled(); }));
    if (call.cancellation().cancelled()) {
      ++cancelled;
      throw Error(call.cancellation().status());
    }
    call.answer({});
  }
};

// A call whose end can be awaited, by either way to make one.
enum class Way { kCall, kStart };
std::future<Status> make_call(RpcChannel& channel, Way way, CallOptions options = {}) {
  const Frame request;
  options.once = true;
  if (way == Way::kCall) {
    return std::async(std::launch::async, [&channel, request, options] {
      try {
        channel.call(kWait, request, options);
      } catch (const Error& error) {
        return error.status();
      }
      return Status();
    });
  }
  auto result = std::make_shared<std::promise<Status>>();
  channel.start(kWait, request, options, [result](const Status& status, const Frame&) { result->set_value(status); });
  return result->get_future();
}

Status end_of(std::future<Status>& call) {
  if (call.wait_for(kPatience) != std::future_status::ready) return Status(StatusCode::kUnknown, "no end in sight");
  return call.get();
}

class OnceCallsOver : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, OnceCallsOver, ::testing::Values(Way::kCall, Way::kStart),
                         [](const auto& info) { return info.param == Way::kCall ? "Call" : "Start"; });

TEST_P(OnceCallsOver, RunOnWhenTheirConnectionIsLostAndAnswerWhoAsksAgain) {
  Holding waiting(hours(1));
  Relay wire(waiting.server->address());
  RpcChannel channel(wire.address(), "", {.reconnect = kPatience});
  std::future<Status> call = make_call(channel, GetParam());
  ASSERT_TRUE(eventually([&] { return waiting.runs == 1; }));

  wire.cut();
  ASSERT_TRUE(eventually([&] { return waiting.server->requests() >= 2; })) << "the call was not made again";
  waiting.go_on = true;

  EXPECT_TRUE(end_of(call).ok());
  EXPECT_EQ(waiting.runs, 1);
  EXPECT_EQ(waiting.cancelled, 0);
}

TEST_P(OnceCallsOver, EndAtOnceWhenTheirCallerCancelsThem) {
  Holding waiting(hours(1));
  RpcChannel channel(waiting.server->address(), "", {});
  Cancellation cancellation;
  std::future<Status> call = make_call(channel, GetParam(), {.cancellation = &cancellation});
  ASSERT_TRUE(eventually([&] { return waiting.runs == 1; }));

  cancellation.cancel();

  EXPECT_EQ(end_of(call).code(), StatusCode::kCancelled);
  EXPECT_TRUE(eventually([&] { return waiting.cancelled == 1; }));
}

TEST_P(OnceCallsOver, EndWithTheDeadlineOfTheirCaller) {
  Holding waiting(hours(1));
  RpcChannel channel(waiting.server->address(), "", {});

  std::future<Status> call = make_call(channel, GetParam(), {.timeout = milliseconds(300)});

  EXPECT_EQ(end_of(call).code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(eventually([&] { return waiting.cancelled == waiting.runs; }));
}

TEST(OnceCalls, EndWhenTheGraceIsOverAndNobodyHasAskedAgain) {
  Holding waiting(milliseconds(50));
  Relay wire(waiting.server->address());
  RpcChannel channel(wire.address(), "", {.attempts = 1});
  std::future<Status> call = make_call(channel, Way::kCall);
  ASSERT_TRUE(eventually([&] { return waiting.runs == 1; }));

  wire.cut();

  EXPECT_EQ(end_of(call).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(eventually([&] { return waiting.cancelled == 1; }));
}

TEST(OnceCalls, AreNotEndedByTheGraceOfACallerThatHasComeBack) {
  Holding waiting(milliseconds(500));
  Relay wire(waiting.server->address()), other_wire(waiting.server->address());
  RpcChannel channel(wire.address(), "", {.reconnect = kPatience}),
      impatient(other_wire.address(), "", {.attempts = 1});
  std::future<Status> call = make_call(channel, Way::kCall);
  ASSERT_TRUE(eventually([&] { return waiting.runs == 1; }));
  wire.cut();
  ASSERT_TRUE(eventually([&] { return waiting.server->requests() >= 2; }));

  // The grace of another call, which begins later, ends later.
  std::future<Status> lost = make_call(impatient, Way::kCall);
  ASSERT_TRUE(eventually([&] { return waiting.runs == 2; }));
  other_wire.cut();
  EXPECT_EQ(end_of(lost).code(), StatusCode::kUnavailable);
  ASSERT_TRUE(eventually([&] { return waiting.cancelled > 0; }));
  waiting.go_on = true;

  EXPECT_TRUE(end_of(call).ok());
  EXPECT_EQ(waiting.cancelled, 1);
}

TEST(OnceCalls, EndWithTheirServerAlsoWhenTheirCallerIsGone) {
  Holding waiting(hours(1));
  Relay wire(waiting.server->address());
  RpcChannel channel(wire.address(), "", {.attempts = 1});
  std::future<Status> call = make_call(channel, Way::kCall);
  ASSERT_TRUE(eventually([&] { return waiting.runs == 1; }));
  wire.cut();
  EXPECT_EQ(end_of(call).code(), StatusCode::kUnavailable);

  waiting.server.reset();

  EXPECT_EQ(waiting.cancelled, 1);
}

TEST(OnceCalls, MayBeCancelledBeforeTheyBegin) {
  Holding waiting(hours(1));
  RpcChannel channel(waiting.server->address(), "", {});
  Frame request;
  set_request_id(request.envelope, {{47, 11}, 1});
  channel.call("/muster.Calls/Cancel", request);

  const Status status = [&] {
    try {
      channel.call(kWait, request);
    } catch (const Error& error) {
      return error.status();
    }
    return Status();
  }();

  EXPECT_EQ(status.code(), StatusCode::kCancelled);
}

TEST(OnceCalls, MayOutliveTheChannelThatHasStartedThem) {
  Holding waiting(hours(1));
  Relay wire(waiting.server->address());
  auto channel = std::make_unique<RpcChannel>(wire.address(), "", ChannelOptions{.reconnect = kPatience});
  Cancellation cancellation;
  std::future<Status> call = make_call(*channel, Way::kStart),
                      cancelled = make_call(*channel, Way::kStart, {.cancellation = &cancellation});
  ASSERT_TRUE(eventually([&] { return waiting.runs == 2; }));

  channel.reset();
  cancellation.cancel();
  EXPECT_EQ(end_of(cancelled).code(), StatusCode::kCancelled);
  ASSERT_TRUE(eventually([&] { return waiting.cancelled == 1; })) << "the server was not told";
  wire.cut();
  ASSERT_TRUE(eventually([&] { return waiting.server->requests() >= 4; })) << "the call was not made again";
  waiting.go_on = true;

  EXPECT_TRUE(end_of(call).ok());
  EXPECT_EQ(waiting.runs, 2);
}

TEST(OnceCalls, KeepNoTensorsThatAreFleeting) {
  constexpr const char* kRead = "/muster.Test/Read";
  at::Tensor variable = at::ones({4});
  RpcServer server({.address = "127.0.0.1:0", .task = "/job:test/replica:0/task:0"},
                   {{kRead,
                     [&](const std::shared_ptr<RpcCall>& call) {
                       Frame answer;
                       answer.tensors = {at::zeros({}), variable};
                       answer.fleeting = 1;
                       call->answer(std::move(answer));
                     },
                     true}});
  RpcChannel channel(server.address(), "", {});
  RequestNumbers numbers;
  Frame request;
  const RequestNumbers::Taken wanted = numbers.take(request.envelope);

  const Frame first = channel.call(kRead, request), again = channel.call(kRead, request);

  EXPECT_EQ(first.tensors.size(), 2u);
  EXPECT_EQ(again.tensors.size(), 1u);
  EXPECT_TRUE(eventually([&] { return variable.use_count() == 1; })) << "it cannot be written in place";
}

}  // namespace
}  // namespace muster

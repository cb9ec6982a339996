#include "muster/rpc/rpc_server.h"

#include <ATen/ops/zeros.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <future>
#include <optional>
#include <thread>

#include "muster/base/blocking.h"
#include "muster/base/test_wait.h"
#include "muster/rpc/rpc_channel.h"
#include "muster/rpc/service_names.h"
#include "muster/runtime/worker/lost_device.h"

namespace muster {
namespace {

using testing_support::eventually;
using testing_support::kPatience;

using Pace = RpcServer::Pace;

// Those who wait, and whether they say so.
struct Waiters {
  std::string name;
  Pace pace;
  bool say_so;
};

class WaitingCalls : public ::testing::TestWithParam<Waiters> {};
INSTANTIATE_TEST_SUITE_P(Of, WaitingCalls,
                         ::testing::Values(Waiters{"Usual", Pace::kUsual, false}, Waiters{"Runs", Pace::kRun, false},
                                           Waiters{"UsualThatSaySo", Pace::kUsual, true},
                                           Waiters{"RunsThatSaySo", Pace::kRun, true}),
                         [](const auto& info) { return info.param.name; });

TEST_P(WaitingCalls, KeepNoOtherFromBeingAnswered) {
  std::promise<void> go_on;
  const std::shared_future<void> gone_on = go_on.get_future().share();
  std::atomic<size_t> begun = 0;
  auto wait = [&, gone_on](const std::shared_ptr<RpcCall>& call) {
    std::optional<Waiting> waiting;
    if (GetParam().say_so) waiting.emplace();
    ++begun;
    EXPECT_EQ(gone_on.wait_for(kPatience), std::future_status::ready);
    call->answer({});
  };
  auto look = [](const auto& call) { call->answer({}); };
  RpcServer server({.address = "127.0.0.1:0", .task = "/job:test/replica:0/task:0", .max_threads = 4},
                   {{.name = "/muster.Test/Wait", .method = wait, .pace = GetParam().pace},
                    {.name = "/muster.Test/Usual", .method = look},
                    {.name = "/muster.Test/Run", .method = look, .pace = Pace::kRun},
                    {.name = "/muster.Test/Short", .method = look, .pace = Pace::kShort},
                    {.name = "/muster.Test/Quick", .method = look, .pace = Pace::kQuick}});
  RpcChannel channel(server.address(), "", {}), other(server.address(), "", {});
  constexpr size_t kCalls = 20;
  std::vector<std::future<Status>> calls;
  for (size_t i = 0; i < kCalls; ++i) {
    auto end = std::make_shared<std::promise<Status>>();
    calls.push_back(end->get_future());
    channel.start("/muster.Test/Wait", {}, {}, [end](const Status& status, const Frame&) { end->set_value(status); });
  }
  EXPECT_TRUE(eventually([&] { return begun == kCalls; })) << "they keep each other from being begun";

  for (const char* method : {"/muster.Test/Short", "/muster.Test/Quick", "/muster.Test/Usual", "/muster.Test/Run"}) {
    EXPECT_NO_THROW(other.call(method, {}, {.timeout = kPatience / 2})) << method;
  }
  go_on.set_value();

  for (std::future<Status>& call : calls) {
    ASSERT_EQ(call.wait_for(kPatience), std::future_status::ready);
    EXPECT_TRUE(call.get().ok());
  }
}

TEST(RpcServer, MayEndWhileCallsArrive) {
  std::atomic<int> under_way = 0, given_up = 0;
  for (int round = 0; round < 30; ++round) {
    auto server = std::make_unique<RpcServer>(
        RpcServerOptions{.address = "127.0.0.1:0", .task = "/job:test/replica:0/task:0"},
        std::vector<RpcServer::MethodEntry>{
            {.name = "/muster.Test/Look", .method = [](const auto& call) { call->answer({}); }, .pace = Pace::kQuick}});
    RpcChannel channel(server->address(), "", {.attempts = 1});
    channel.call("/muster.Test/Look", {});

    for (int i = 0; i < 10; ++i) {
      ++under_way;
      channel.start("/muster.Test/Look", {}, {}, [&](const Status& status, const Frame&) {
        if (!status.ok() && status.code() != StatusCode::kUnavailable) ++given_up;
        --under_way;
      });
    }
    server.reset();
  }
  EXPECT_TRUE(eventually([&] { return under_way == 0; }));
  EXPECT_EQ(given_up, 0) << "a server that is gone is unavailable, whatever gRPC calls it";
}

TEST(RpcServer, AnswersThreadsThatAreAboutToEnd) {
  std::atomic<int> answered = 0;
  RpcServer server({.address = "127.0.0.1:0", .task = "/job:test/replica:0/task:0"},
                   {{.name = "/muster.Test/Look", .method = [](const auto& call) { call->answer({}); }}});
  RpcChannel channel(server.address(), "", {.near_memory = false});
  const auto call = [&] {
    channel.call("/muster.Test/Look", {});
    ++answered;
  };

  std::thread([&] {
    // Destroyed behind what calls keep for the thread, as the statics of a program are.
    struct CallsAtItsEnd {
      ~CallsAtItsEnd() { call(); }
      std::function<void()> call;
    };
    thread_local CallsAtItsEnd last{call};
    last.call();
  }).join();

  EXPECT_EQ(answered, 2);
}

TEST(RpcServer, IsToldOnlyOfThoseAnswersThatItKeeps) {
  std::atomic<int> told = 0;
  auto large = [](const auto& call) {
    Frame answer;
    answer.tensors = {at::zeros({100'000})};
    call->answer(std::move(answer));
  };
  auto count = [&](const auto& call) {
    ++told;
    call->answer({});
  };
  RpcServer server({.address = "127.0.0.1:0", .task = "/job:test/replica:0/task:0"},
                   {{.name = "/muster.Test/Large", .method = large, .once = true},
                    {.name = call_rpc::kAcknowledge, .method = count, .pace = Pace::kQuick}});
  RpcChannel channel(server.address(), "", {});

  channel.call("/muster.Test/Large", {}, {.once = true, .kept_tensors = 0});
  channel.call("/muster.Test/Large", {}, {.once = true});

  EXPECT_TRUE(eventually([&] { return told > 0; }));
  EXPECT_EQ(told, 1);
}

TEST(RpcServer, KeepsNoAnswersForAChannelThatIsGone) {
  RpcServer server({.address = "127.0.0.1:0", .task = "/job:test/replica:0/task:0"},
                   {{.name = "/muster.Test/Once", .method = [](const auto& call) { call->answer({}); }, .once = true}});
  std::optional<RpcChannel> channel(std::in_place, server.address(), "", ChannelOptions{});
  channel->call("/muster.Test/Once", {}, {.once = true});
  EXPECT_EQ(server.remembered_requests(), 1u) << "it may ask again";
  channel.reset();
  EXPECT_TRUE(eventually([&] { return server.remembered_requests() == 0; }));
}

// The bytes of a HealthCheckResponse: field 1 is 1, SERVING, or 2, NOT_SERVING.
std::string health_of(const std::string& address) {
  grpc::GenericStub stub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  grpc::CompletionQueue queue;
  const grpc::Slice nothing("");
  const auto call =
      stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::ByteBuffer(&nothing, 1), &queue);
  grpc::ByteBuffer answer;
  grpc::Status status;
  call->StartCall();
  call->Finish(&answer, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (!status.ok()) return status.error_message();
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (answer.Dump(&slices).ok()) {
    for (const grpc::Slice& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

// A process that has lost its device stays so: it is this program, begun anew for the statement that has to end it.
TEST(RpcServerDeathTest, IsNotHealthyWhoseGpuIsLost) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const RpcServer server({.address = "127.0.0.1:0", .task = "/job:test/replica:0/task:0"}, {});
        const std::string before = health_of(server.address());

        says_device_lost("CUDA error: unspecified launch failure");

        const std::string after = health_of(server.address());
        std::_Exit(before == "\x08\x01" && after == "\x08\x02" ? 0 : 1);
      },
      testing::ExitedWithCode(0), "unspecified launch failure");
}

}  // namespace
}  // namespace muster

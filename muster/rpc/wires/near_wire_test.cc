#include "muster/rpc/wires/near_wire.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <torch/torch.h>

#include <future>

#include "muster/base/test_wait.h"
#include "muster/near/near_socket.h"
#include "muster/rpc/rpc_channel.h"
#include "muster/rpc/rpc_server.h"
#include "muster/rpc/service_names.h"
#include "muster/rpc/test_say.h"
#include "muster/rpc/wires/near_wire_door.h"

namespace muster::near_wire_test {
namespace {

using testing_support::eventually;
using testing_support::kPatience;
using testing_support::say;

constexpr const char* kTask = "/job:ps/replica:0/task:0";
constexpr const char *kWho = "/muster.Test/Who", *kHold = "/muster.Test/Hold", *kLarge = "/muster.Test/Large";
constexpr const char* kNear = "a process of this machine";

struct Ended {
  Status status;
  Frame answer{};
};
enum class Way { kCall, kStart };

// A server, and a channel that has laid a wire to it. Calls are made by either way to make one.
class Wires : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    uint64_t word = 7, copy = 0;
    const bool readable = read_memory(::getpid(), {{&copy, reinterpret_cast<uint64_t>(&word), sizeof word}});
    if (!near_memory_wanted() || !readable) GTEST_SKIP() << "this machine does not let processes read others' memory";
    serve("127.0.0.1:0");
    channel_ = std::make_unique<RpcChannel>(server_->address(), kTask, ChannelOptions{});
    ASSERT_TRUE(eventually([&] { return who() == kNear; }));
  }
  void TearDown() override { go_on_ = true; }

  void serve(const std::string& address) {
    using Call = std::shared_ptr<RpcCall>;
    server_ = std::make_unique<RpcServer>(
        RpcServerOptions{.address = address, .task = kTask},
        std::vector<RpcServer::MethodEntry>{{kWho,
                                             [](const Call& call) {
                                               Frame answer;
                                               answer.envelope.set_header(call->peer());
                                               call->answer(std::move(answer));
                                             }},
                                            {kHold, [this](const Call& call) { hold(*call); }, true},
                                            {kLarge,
                                             [this](const Call& call) {
                                               Frame answer;
                                               for (int i = 0; i < 100; ++i)
                                                 answer.tensors.push_back(torch::full({500}, ++runs_));  // none is lent
                                               call->answer(std::move(answer));
                                             },
                                             true}});
  }

  void hold(RpcCall& call) {
    ++runs_;
    EXPECT_TRUE(eventually([&] { return go_on_ || call.cancellation().cancelled(); }));
    if (call.cancellation().cancelled()) ++cancelled_;
    call.cancellation().throw_if_cancelled();
    call.answer({});
  }

  std::future<Ended> make(const std::string& method, const Cancellation* cancellation = nullptr, bool once = true) {
    const CallOptions options{.cancellation = cancellation, .patient = true, .once = once};
    if (GetParam() == Way::kCall) {
      return std::async(std::launch::async, [this, method, options]() -> Ended {
        try {
          return {{}, channel_->call(method, {}, options)};
        } catch (const Error& error) {
          return {error.status()};
        }
      });
    }
    auto ended = std::make_shared<std::promise<Ended>>();
    channel_->start(method, {}, options,
                    [ended](const Status& status, Frame answer) { ended->set_value({status, std::move(answer)}); });
    return ended->get_future();
  }
  static Ended end_of(std::future<Ended> call) {
    if (call.wait_for(kPatience) != std::future_status::ready) return {Status(StatusCode::kUnknown, "does not end")};
    return call.get();
  }
  std::string who() { return end_of(make(kWho, nullptr, /*once=*/false)).answer.envelope.header(); }

  std::atomic<int> runs_ = 0, cancelled_ = 0;
  std::atomic<bool> go_on_ = false;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<RpcChannel> channel_;
};
INSTANTIATE_TEST_SUITE_P(Ways, Wires, testing::Values(Way::kCall, Way::kStart),
                         [](const auto& info) { return info.param == Way::kCall ? "Call" : "Start"; });

TEST_P(Wires, CarryOneCallAfterTheOther) {
  for (int i = 0; i < 100; ++i) EXPECT_EQ(who(), kNear);

  EXPECT_EQ(server_->wires(), 1u);
}

TEST_P(Wires, CarryCallsAtTheSameTime) {
  std::vector<std::future<Ended>> calls;
  for (int i = 0; i < 4; ++i) calls.push_back(make(kHold));
  EXPECT_TRUE(eventually([&] { return runs_ == 4; }));
  EXPECT_EQ(server_->wires(), 4u);

  go_on_ = true;
  for (auto& call : calls) EXPECT_TRUE(end_of(std::move(call)).status.ok());
}

TEST_P(Wires, LeaveToGrpcWhatHasADeadline) {
  Frame answer = channel_->call(kWho, {});
  EXPECT_NE(answer.envelope.header(), kNear);
}

TEST_P(Wires, CarryErrors) {
  const Ended ended = end_of(make("/muster.Test/Nothing"));
  EXPECT_EQ(ended.status.code(), StatusCode::kUnimplemented) << ended.status.message();
  EXPECT_EQ(who(), kNear);
}

TEST_P(Wires, LeaveToGrpcAnAnswerThatIsTooLargeAndWasMadeOnce) {
  const Ended ended = end_of(make(kLarge));

  ASSERT_TRUE(ended.status.ok()) << ended.status.message();
  EXPECT_EQ(ended.answer.tensors.size(), 100u);
  EXPECT_EQ(ended.answer.tensors[99].sum().item<int>(), 100 * 500);
  EXPECT_EQ(runs_, 100) << "it ran again";
}

TEST_P(Wires, EndACallThatIsCancelledAtBothEnds) {
  Cancellation cancellation;
  auto call = make(kHold, &cancellation);
  ASSERT_TRUE(eventually([&] { return runs_ == 1; }));

  cancellation.cancel();

  EXPECT_EQ(end_of(std::move(call)).status.code(), StatusCode::kCancelled);
  EXPECT_TRUE(eventually([&] { return cancelled_ == 1; }));
  EXPECT_EQ(who(), kNear) << "there are others";
}

TEST_P(Wires, EndARepeatableCallOfACallerThatGivesUp) {
  Cancellation cancellation;
  auto call = make(kHold, &cancellation, /*once=*/false);
  ASSERT_TRUE(eventually([&] { return runs_ == 1; }));

  cancellation.cancel();

  EXPECT_EQ(end_of(std::move(call)).status.code(), StatusCode::kCancelled);
  EXPECT_TRUE(eventually([&] { return cancelled_ == 1; })) << "only the end of the wire says so";
}

TEST_P(Wires, ThatBreakLoseNoAnswer) {
  auto call = make(kHold);
  ASSERT_TRUE(eventually([&] { return runs_ == 1; }));

  server_->break_wires();
  go_on_ = true;

  const Ended ended = end_of(std::move(call));
  EXPECT_TRUE(ended.status.ok()) << ended.status.message();
  EXPECT_EQ(runs_, 1) << "it ran again";
  EXPECT_EQ(who(), kNear) << "there are others";
}

TEST_P(Wires, EndWithTheirServerAndAreLaidToTheNextOne) {
  auto call = make(kHold);
  ASSERT_TRUE(eventually([&] { return runs_ == 1; }));
  const std::string address = server_->address();

  server_.reset();
  EXPECT_EQ(end_of(std::move(call)).status.code(), StatusCode::kUnavailable);

  serve(address);
  channel_->call(kWho, {}, {.wait_until_up = true});
  EXPECT_TRUE(eventually([&] { return who() == kNear; }));
}

TEST_P(Wires, AreClosedToThoseWhoDoNotKnowTheSecret) {
  proto::MeetRequest request;
  request.set_wires(true);
  const auto met =
      header_of<proto::MeetAnswer>(say(server_->address(), call_rpc::kMeet, with_header(request).envelope));
  const NearWireSecret right{met.wire_secret_high(), met.wire_secret_low()};
  const NearWireSecret wrong{right.high, right.low + 1};
  const std::string method = kWho;
  auto answer_to = [&](const NearWireSecret* secret) {
    NearWire wire(connect_to(met.wire_door()), 1);
    const std::string_view words(reinterpret_cast<const char*>(secret), sizeof *secret);
    if (secret != nullptr) send_on_near_wire(wire.socket(), {NearWireWord::kHello}, words);
    wire.send(method, encode(Frame{}));
    return wire.wait([] { return true; }).status;
  };

  EXPECT_TRUE(answer_to(&right).ok());
  EXPECT_FALSE(answer_to(&wrong).ok());
  EXPECT_FALSE(answer_to(nullptr).ok());
}

// A door whose one reader is busy while a caller says all that it has to say, and goes.
TEST(NearWireDoors, ReadAllThatHasComeOnAWireAtOnce) {
  struct Event final : NetworkEvent {
    void happened(bool) override {
      begun = true;
      EXPECT_TRUE(eventually([&] { return go_on.load(); }));
    }
    std::atomic<bool> begun = false, go_on = false;
  } first, second;
  std::atomic<bool> gone = false;
  NearWireDoor door(
      [&](const NearWireDoor::Arrived& arrived) {
        const bool is_first = arrived.method == "first";
        return NearWireDoor::Handling{.event = is_first ? &first : &second, .gone = [&gone, is_first] {
                                        if (!is_first) gone = true;
                                      }};
      },
      {.most_turns = 1});
  ASSERT_FALSE(door.name().empty());
  const NearWireSecret secret = door.secret();
  const std::string_view words(reinterpret_cast<const char*>(&secret), sizeof secret);
  NearWire one(connect_to(door.name()), 1);
  ASSERT_TRUE(send_on_near_wire(one.socket(), {NearWireWord::kHello}, words));
  ASSERT_TRUE(one.send("first", encode(Frame{})));
  ASSERT_TRUE(eventually([&] { return first.begun.load(); }));

  {
    NearWire other(connect_to(door.name()), 2);
    ASSERT_TRUE(send_on_near_wire(other.socket(), {NearWireWord::kHello}, words));
    ASSERT_TRUE(other.send("second", encode(Frame{})));
  }
  first.go_on = second.go_on = true;

  EXPECT_TRUE(eventually([&] { return second.begun && gone; }));
  EXPECT_TRUE(eventually([&] { return door.wires() == 1; }));
}

TEST(LookOutHabits, AreForWiresWhoseAnswersComeSoon) {
  LookOutHabit habit;
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(habit.looks_out());
    habit.learn(/*came_soon=*/true);
  }
}

TEST(LookOutHabits, AreGivenUpWhereEveryOtherAnswerComesLate) {
  LookOutHabit habit;
  int in_vain = 0;
  for (int i = 0; i < 1'000; ++i) {
    habit.learn(/*came_soon=*/true);
    if (habit.looks_out()) ++in_vain;
    habit.learn(/*came_soon=*/false);
  }
  EXPECT_LE(in_vain, 1);

  for (int i = 0; i < 10; ++i) habit.learn(/*came_soon=*/true);
  EXPECT_TRUE(habit.looks_out()) << "they come soon again";
}

}  // namespace
}  // namespace muster::near_wire_test

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/base/strings.h"
#include "muster/base/test_wait.h"
#include "muster/lines/tcp_socket.h"
#include "muster/rpc/rpc_channel.h"
#include "muster/rpc/rpc_server.h"

namespace muster {
namespace {

using testing_support::eventually;
using Clock = std::chrono::steady_clock;

constexpr const char* kBehindDoor = "/job:ps/replica:0/task:0";
constexpr const char* kKnock = "/muster.Test/Look";

// A port at which every connection is closed as soon as it is there.
class ShutDoor {
 public:
  std::string address() const { return "127.0.0.1:" + std::to_string(door_.port); }
  int visits() const { return visits_; }

 private:
  void turn_away(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (const Descriptor visitor = accept_at(door_)) {
        // It is cut off: one that is closed in order keeps the port from the next who wants to listen, for a minute.
        const linger at_once{.l_onoff = 1, .l_linger = 0};
        ::setsockopt(visitor.number(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        ++visits_;
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }

  const TcpDoor door_ = listen_at_any_port("127.0.0.1");
  std::atomic<int> visits_ = 0;
  std::jthread thread_{[this](const std::stop_token& stop) { turn_away(stop); }};
};

// A job of a thousand tasks is not to spend its time on those that are gone.
TEST(Reconnecting, PausesForLongWhileNobodyHasACallToMake) {
  ShutDoor door;
  RpcChannel channel(door.address(), kBehindDoor, {});
  EXPECT_THROW(channel.call(kKnock, {}), Error);

  const Clock::time_point begin = Clock::now();
  const int before = door.visits();
  ASSERT_TRUE(eventually([&] { return door.visits() >= before + 3; })) << "it goes on by itself";

  EXPECT_GT(Clock::now() - begin, std::chrono::milliseconds(250));
}

TEST(Reconnecting, IsTriedForTheNextCallByOneThatIsMadeOnce) {
  ShutDoor door;
  RpcChannel channel(door.address(), kBehindDoor, {.attempts = 1});
  auto call = [&] {
    auto ended = std::make_shared<std::promise<Status>>();
    std::future<Status> end = ended->get_future();
    channel.start(kKnock, {}, {}, [ended](const Status& status, const Frame&) { ended->set_value(status); });
    return end.get();
  };
  EXPECT_EQ(call().code(), StatusCode::kUnavailable);

  // By itself gRPC would come a few times, and once a second somebody looks whether anybody listens.
  constexpr int kMany = 30;
  const int before = door.visits();
  for (int calls = 0; calls < 400 && door.visits() - before <= kMany; ++calls) {
    EXPECT_EQ(call().code(), StatusCode::kUnavailable);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }

  EXPECT_GT(door.visits() - before, kMany);
}

TEST(Reconnecting, SaysOnceAndWithoutTheWordsOfTheNetworkForWhomItWaits) {
  LogCapture log;
  const std::string address = "127.0.0.1:" + std::to_string(listen_at_any_port("127.0.0.1").port);  // not any more
  RpcChannel channel(address, kBehindDoor, {.connect_timeout = std::chrono::milliseconds(3'400)});

  EXPECT_THROW(channel.call(kKnock, {}, {.wait_until_up = true}), Error);

  std::vector<std::string> said;
  for (const LogLine& line : log.lines()) said.push_back(line.text);
  EXPECT_EQ(said, std::vector<std::string>{str_cat("waiting for ", kBehindDoor, " at ", address, ", for 3 s at most")});
}

TEST(Reconnecting, FindsATaskThatIsStartedWhileItIsWaitedFor) {
  auto door = std::make_unique<ShutDoor>();
  const std::string address = door->address();
  RpcChannel channel(address, kBehindDoor, {});
  auto answer = std::async(std::launch::async, [&] { channel.call(kKnock, {}, {.wait_until_up = true}); });
  ASSERT_TRUE(eventually([&] { return door->visits() >= 4; }));

  door.reset();
  RpcServer server({.address = address, .task = kBehindDoor},
                   {{.name = kKnock, .method = [](const std::shared_ptr<RpcCall>& call) { call->answer({}); }}});

  EXPECT_NO_THROW(answer.get());
}

}  // namespace
}  // namespace muster

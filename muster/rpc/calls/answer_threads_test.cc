#include "muster/rpc/calls/answer_threads.h"

#include <grpcpp/alarm.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <future>
#include <list>
#include <thread>
#include <vector>

#include "muster/base/test_wait.h"
#include "muster/rpc/rpc_channel.h"
#include "muster/rpc/rpc_server.h"

namespace muster {
namespace {

using testing_support::eventually;

gpr_timespec in(std::chrono::microseconds time) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_micros(time.count(), GPR_TIMESPAN));
}

// Bursts, which make turns, and lulls, which take them away, and what is started by an answer.
TEST(AnswerThreads, ReceiveAllThatIsExpectedHoweverManyTakeTurns) {
  constexpr int kStarters = 3, kBursts = 60, kBurst = 100;
  for (const int turns : {2, 4, 16}) {
    std::list<grpc::Alarm> alarms;  // outlive the threads
    AnswerThreads threads(turns);
    absl::Mutex mu;
    std::atomic<int> received = 0;
    std::function<void(int, std::chrono::microseconds)> start = [&](int others, std::chrono::microseconds time) {
      grpc::Alarm* alarm = nullptr;
      {
        absl::MutexLock lock(&mu);
        alarm = &alarms.emplace_back();
      }
      void* const tag = threads.when_done([&, others] {
        if (others > 0) start(others - 1, std::chrono::microseconds(0));
        ++received;
      });
      alarm->Set(&threads.queue(), in(time), tag);
    };
    std::vector<std::jthread> starters;
    for (int i = 0; i < kStarters; ++i) {
      starters.emplace_back([&] {
        for (int burst = 0; burst < kBursts; ++burst) {
          for (int one = 0; one < kBurst; ++one) start(/*others=*/1, std::chrono::microseconds(0));
          start(/*others=*/1, std::chrono::milliseconds(3));
        }
      });
    }
    starters.clear();

    EXPECT_TRUE(eventually([&] { return received == 2 * kStarters * kBursts * (kBurst + 1); }))
        << turns << " turns: " << received;

    for (int i = 1; i <= 20; ++i) {
      const int before = received;
      start(/*others=*/0, std::chrono::milliseconds(i % 4));
      EXPECT_TRUE(eventually([&] { return received == before + 1; })) << turns << " turns, one after a lull";
    }
  }
}

TEST(AnswerThreads, EndOnceAllIsReceived) {
  std::atomic<int> received = 0;
  std::list<grpc::Alarm> alarms;
  {
    AnswerThreads threads(2);
    for (int i = 0; i < 100; ++i) {
      alarms.emplace_back().Set(&threads.queue(), in(std::chrono::milliseconds(i % 5)),
                                threads.when_done([&] { ++received; }));
    }
  }
  EXPECT_EQ(received, 100);
}

TEST(AnswerThreads, ReceiveOthersWhileALargeAnswerIsCopied) {
  constexpr const char *kSmall = "/muster.Test/Small", *kLarge = "/muster.Test/Large";
  using Call = std::shared_ptr<RpcCall>;
  RpcServer server({.address = "127.0.0.1:0", .task = "/job:ps/replica:0/task:0"},
                   {{kSmall, [](const Call& call) { call->answer({}); }}, {kLarge, [](const Call& call) {
                                                                             Frame answer;
                                                                             answer.tensors = {torch::zeros({1 << 20})};
                                                                             call->answer(std::move(answer));
                                                                           }}});
  RpcChannel channel(server.address(), "/job:ps/replica:0/task:0", {.near_memory = false, .lines = false});
  auto thread_of = [&](const char* method) {
    std::promise<std::thread::id> thread;
    channel.start(method, {}, {.timeout = std::chrono::seconds(60)}, [&](const Status& status, const Frame&) {
      EXPECT_TRUE(status.ok()) << status;
      thread.set_value(std::this_thread::get_id());
    });
    return thread.get_future().get();
  };
  thread_of(kSmall);

  // A thread that needs long to begin finds that the other one is done, and has its turn again.
  EXPECT_TRUE(eventually([&] {
    const std::thread::id large = thread_of(kLarge);
    return thread_of(kSmall) != large;
  })) << "it has kept its turn";
}

}  // namespace
}  // namespace muster

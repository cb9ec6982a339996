#include <absl/synchronization/mutex.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <future>
#include <vector>

#include "muster/base/test_wait.h"
#include "muster/rpc/rpc_channel.h"
#include "muster/rpc/rpc_server.h"

namespace muster::rpc_server_bytes_test {
namespace {

using testing_support::eventually;
using testing_support::kPatience;

constexpr int64_t kCallBytes = 4'000'000, kMost = 10'000'000;
constexpr const char* kPush = "/muster.Test/Push";

struct Way {
  std::string name;
  ChannelOptions options;
};

// A server whose calls are held up until they are let go, and callers that reach it in all ways.
class BytesUnderWay : public ::testing::TestWithParam<Way> {
 protected:
  ~BytesUnderWay() override { let_go(); }

  void push(const std::shared_ptr<RpcCall>& call) {
    absl::MutexLock lock(&mu_);
    most_seen_ = std::max(most_seen_, server_.bytes_under_way());
    held_.push_back(call);
    if (gone_) answer_all();
  }
  void let_go() {
    absl::MutexLock lock(&mu_);
    gone_ = true;
    answer_all();
  }
  void answer_all() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (const auto& call : held_) call->answer({});
    held_.clear();
  }
  size_t held() {
    absl::MutexLock lock(&mu_);
    return held_.size();
  }

  static Frame request(int64_t bytes, uint64_t answer = 0) {
    Frame frame;
    frame.tensors = {torch::zeros({bytes}, torch::kByte)};
    frame.envelope.set_answer_bytes(answer);
    return frame;
  }
  void start(const Frame& frame) {
    auto end = std::make_shared<std::promise<Status>>();
    ends_.push_back(end->get_future());
    channel_.start(kPush, frame, {.patient = true},
                   [end](const Status& status, const Frame&) { end->set_value(status); });
  }
  void expect_all_answered() {
    for (std::future<Status>& end : ends_) {
      ASSERT_EQ(end.wait_for(kPatience), std::future_status::ready);
      const Status status = end.get();
      EXPECT_TRUE(status.ok()) << status;
    }
  }

  absl::Mutex mu_;
  bool gone_ ABSL_GUARDED_BY(mu_) = false;
  int64_t most_seen_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::shared_ptr<RpcCall>> held_ ABSL_GUARDED_BY(mu_);
  RpcServer server_{
      {.address = "127.0.0.1:0",
       .task = "/job:ps/replica:0/task:0",
       .max_bytes_under_way = kMost,
       .bytes_patience = std::chrono::hours(1)},
      {{.name = kPush, .method = [this](const auto& call) { push(call); }, .pace = RpcServer::Pace::kRun}}};
  RpcChannel channel_{server_.address(), "", GetParam().options};
  std::vector<std::future<Status>> ends_;
};
INSTANTIATE_TEST_SUITE_P(By, BytesUnderWay,
                         ::testing::Values(Way{"Memory", {}}, Way{"Lines", {.near_memory = false}},
                                           Way{"Grpc", {.near_memory = false, .lines = false}}),
                         [](const auto& info) { return info.param.name; });

TEST_P(BytesUnderWay, AreBoundedHoweverManyCallsAreHeldUp) {
  for (int i = 0; i < 30; ++i) start(request(kCallBytes));

  ASSERT_TRUE(eventually([&] { return held() == 2 && server_.calls_kept_back() == 28; }));
  EXPECT_LE(server_.bytes_under_way(), kMost);

  let_go();
  expect_all_answered();
  EXPECT_TRUE(eventually([&] { return server_.bytes_under_way() == 0; })) << server_.bytes_under_way();
  absl::MutexLock lock(&mu_);
  EXPECT_LE(most_seen_, kMost);
}

TEST_P(BytesUnderWay, LetALargerCallPassAlone) {
  start(request(kCallBytes));
  ASSERT_TRUE(eventually([&] { return held() == 1; }));
  start(request(3 * kMost));
  ASSERT_TRUE(eventually([&] { return server_.calls_kept_back() == 1; }));
  EXPECT_EQ(held(), 1u);

  let_go();

  expect_all_answered();
}

TEST_P(BytesUnderWay, CountWhatTheAnswerWillHave) {
  for (int i = 0; i < 5; ++i) start(request(100, kCallBytes));

  EXPECT_TRUE(eventually([&] { return held() == 2 && server_.calls_kept_back() == 3; }));

  let_go();
  expect_all_answered();
}

TEST_P(BytesUnderWay, AreThoseOfTensorsAsTheyAreWhenTheyAreUnpacked) {
  Frame packed;
  packed.tensors = {torch::randint(16, {kCallBytes}, torch::kByte)};  // half of it on the wire
  packed.forms = {{.deflate = true}};
  for (int i = 0; i < 10; ++i) start(packed);

  EXPECT_TRUE(eventually([&] { return held() == 2 && server_.calls_kept_back() == 8; })) << held() << " are inside";

  let_go();
  expect_all_answered();
}

TEST_P(BytesUnderWay, KeepNoSmallCallWaiting) {
  for (int i = 0; i < 10; ++i) start(request(kCallBytes));
  ASSERT_TRUE(eventually([&] { return server_.calls_kept_back() == 8; }));

  for (int i = 0; i < 10; ++i) start(request(100));

  EXPECT_TRUE(eventually([&] { return held() == 12; }));
}

}  // namespace
}  // namespace muster::rpc_server_bytes_test

#include "muster/rpc/rpc_server.h"

#include <gtest/gtest.h>

#include <future>

#include "muster/base/test_wait.h"
#include "muster/rpc/rpc_channel.h"

namespace muster {
namespace {

using testing_support::eventually;
using testing_support::kPatience;

TEST(RpcServer, AnswersShortCallsWhileRunsHaveAllTheThreadsThatTheyMayHave) {
  std::promise<void> go_on;
  const std::shared_future<void> gone_on = go_on.get_future().share();
  auto wait = [gone_on](const std::shared_ptr<RpcCall>& call) {
    EXPECT_EQ(gone_on.wait_for(kPatience), std::future_status::ready);
    call->answer({});
  };
  RpcServer server({.address = "127.0.0.1:0", .task = "/job:test/replica:0/task:0", .max_threads = 4},
                   {{.name = "/muster.Test/Run", .method = wait, .pace = RpcServer::Pace::kRun},
                    {.name = "/muster.Test/Look", .method = [](const auto& call) { call->answer({}); }}});
  RpcChannel channel(server.address(), "", {}), other(server.address(), "", {});
  constexpr size_t kRuns = 20;
  std::vector<std::future<Status>> runs;
  for (size_t i = 0; i < kRuns; ++i) {
    auto end = std::make_shared<std::promise<Status>>();
    runs.push_back(end->get_future());
    channel.start("/muster.Test/Run", {}, {}, [end](const Status& status, const Frame&) { end->set_value(status); });
  }
  eventually([&] { return server.requests() >= kRuns; });
  ASSERT_EQ(server.requests(), kRuns);

  EXPECT_NO_THROW(other.call("/muster.Test/Look", {}, {.timeout = kPatience / 2}));
  go_on.set_value();

  for (std::future<Status>& run : runs) {
    ASSERT_EQ(run.wait_for(kPatience), std::future_status::ready);
    EXPECT_TRUE(run.get().ok());
  }
}

}  // namespace
}  // namespace muster

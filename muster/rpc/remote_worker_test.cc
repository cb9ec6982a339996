#include "muster/rpc/remote_worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <map>

#include "muster/base/test_wait.h"
#include "muster/rpc/remote_master.h"
#include "muster/rpc/rpc_server.h"
#include "muster/rpc/service_names.h"

namespace muster {
namespace {

using testing_support::kPatience;

TEST(RemoteWorker, LimitsNoCallThatTakesAsLongAsItTakes) {
  std::map<std::string, std::chrono::steady_clock::time_point> deadlines;
  std::vector<RpcServer::MethodEntry> methods;
  for (const std::string name : {worker_rpc::kRun, worker_rpc::kRunAll, worker_rpc::kReceive, worker_rpc::kSave,
                                 worker_rpc::kRestore, worker_rpc::kVariables, master_rpc::kRun}) {
    methods.push_back({.name = name, .method = [&deadlines, name](const std::shared_ptr<RpcCall>& call) {
                         deadlines[name] = call->deadline();
                         call->answer({});
                       }});
  }
  RpcServer server({.address = "127.0.0.1:0", .task = "/job:test/replica:0/task:0"}, std::move(methods));
  auto channel = std::make_shared<RpcChannel>(server.address(), "", ChannelOptions{});
  RemoteWorker worker(channel);
  RemoteMaster master(channel);
  auto end = std::make_shared<std::promise<void>>();

  worker.run({1}, {});
  worker.start_runs({}, {}, [&](const Status&, const auto&) { end->set_value(); });
  ASSERT_EQ(end->get_future().wait_for(kPatience), std::future_status::ready);
  end = std::make_shared<std::promise<void>>();
  worker.receive(1, 1, {}, [&](const Status&, const auto&) { end->set_value(); });
  ASSERT_EQ(end->get_future().wait_for(kPatience), std::future_status::ready);
  worker.save("", {}, {});
  worker.restore("", {}, RestoreStage::kApply);
  worker.variables();
  master.run("", {1}, {});

  ASSERT_EQ(deadlines.size(), 7u);
  for (const auto& [name, deadline] : deadlines) {
    const bool limited = deadline < std::chrono::steady_clock::now() + std::chrono::hours(24 * 300);
    EXPECT_EQ(limited, name == worker_rpc::kVariables) << name;
  }
}

TEST(RemoteWorker, KeepsToTheTimeThatARunIsGiven) {
  std::chrono::steady_clock::time_point deadline{};
  RpcServer server({.address = "127.0.0.1:0", .task = "/job:test/replica:0/task:0"},
                   {{.name = worker_rpc::kRun, .method = [&](const std::shared_ptr<RpcCall>& call) {
                       deadline = call->deadline();
                       call->answer({});
                     }}});
  RemoteWorker worker(std::make_shared<RpcChannel>(server.address(), "", ChannelOptions{}));

  worker.run({1}, {}, {.timeout = kPatience});

  const auto rounding = std::chrono::seconds(1);  // gRPC sends three digits of it
  EXPECT_LE(deadline, std::chrono::steady_clock::now() + kPatience + rounding);
}

}  // namespace
}  // namespace muster

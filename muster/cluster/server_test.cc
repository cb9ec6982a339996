#include "muster/cluster/server.h"
#include "muster/cluster/cluster_peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/torch.h>

#include <cstdlib>
#include <future>
#include <thread>

#include "muster/base/log.h"
#include "muster/cluster/resolvers/simple_cluster_resolver.h"
#include "muster/cluster/test_environment.h"
#include "muster/graph/serialize.h"
#include "muster/rpc/remote_master.h"
#include "muster/rpc/remote_worker.h"
#include "muster/rpc/rpc_faults.h"
#include "muster/rpc/service_names.h"
#include "muster/runtime/worker/lost_device.h"
#include "muster/runtime/worker/restart.h"
#include "muster/session/session.h"
#include "muster/trace/device_scope.h"

namespace muster {
namespace {

using ::muster::testing_support::caught;
using ::muster::testing_support::eventually;
using ::muster::testing_support::kPatience;
using ::testing::HasSubstr;

ServerOptions local(const std::string& address = "127.0.0.1:0") {
  return {.cluster = ClusterSpec({{"local", {address}}}), .task = {"local", 0}};
}

TEST(Server, MultipliesMatricesForOneAndForTwoSessions) {
  Server server(local());
  auto product = function([](at::Tensor a, at::Tensor b) { return torch::matmul(a, b); });
  at::Tensor a = torch::tensor({{2.0F, 1.0F}}), b = torch::tensor({{1.0F}, {2.0F}});

  Session one({.target = server.target()}), two({.target = server.target()});

  EXPECT_TRUE(torch::equal(one.run(product, a, b), torch::tensor({{4.0F}})));
  EXPECT_TRUE(torch::equal(two.run(product, a, b), torch::tensor({{4.0F}})));
}

TEST(Server, PicksAPortAndFreesItAgain) {
  std::string address;
  {
    Server server(local());
    address = server.address();
    EXPECT_THAT(address, ::testing::Not(HasSubstr(":0")));
  }

  EXPECT_NO_THROW(Server again(local(address)));
}

TEST(Server, RefusesAPortThatIsTaken) {
  Server server(local());

  const Status status = caught([&] { Server second(local(server.address())); });

  EXPECT_EQ(status.code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(status.message(), HasSubstr(server.address()));
}

TEST(Server, RefusesAnAddressWithoutAPort) {
  ServerOptions options = local();
  options.address = "127.0.0.1";

  const Status status = caught([&] { Server server(options); });

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("port"));
}

TEST(Server, RefusesToListenBeyondThisMachineWithoutCredentials) {
  ServerOptions options = local();
  options.address = "0.0.0.0:0";

  const Status status = caught([&] { Server server(options); });

  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("insecure"));
}

TEST(Server, ListensBeyondThisMachineIfItIsToldSo) {
  ServerOptions options = local();
  options.address = "0.0.0.0:0";
  options.insecure = true;
  LogCapture capture;

  Server server(options);

  EXPECT_TRUE(capture.contains("without encryption"));
}

TEST(Server, SaysWhichOfItsDirectoriesIsMissing) {
  ServerOptions options = local();
  options.worker.data = {testing::TempDir(), "/nowhere/data"};
  options.worker.storage = {"/nowhere/checkpoints"};
  LogCapture capture;

  Server server(options);

  EXPECT_TRUE(capture.contains("\"/nowhere/data\" for files of datasets (--data) is not there"));
  EXPECT_TRUE(capture.contains("\"/nowhere/checkpoints\" for checkpoints"));
  EXPECT_FALSE(capture.contains(testing::TempDir()));
}

TEST(Server, LetsACallerNameNoDirectoryForCheckpointsUnlessItIsToldSo) {
  Server server(local());
  ServerOptions told = local();
  told.worker.storage = {testing::TempDir()};
  Server with_storage(told);
  const std::string directory = testing::TempDir() + "nobody-asked-for-this";

  EXPECT_EQ(caught([&] { server.worker().save(directory, {}, {}); }).code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(caught([&] { with_storage.worker().save("/elsewhere", {}, {}); }).code(), StatusCode::kPermissionDenied);
  EXPECT_NE(caught([&] { with_storage.worker().save(directory, {}, {}); }).code(), StatusCode::kPermissionDenied);
}

TEST(Server, IsTheTaskThatItsResolverSays) {
  SimpleClusterResolver resolver(ClusterSpec({{"worker", {"127.0.0.1:0"}}, {"ps", {"127.0.0.1:0"}}}),
                                 {.task_type = "ps", .task_index = 0});

  Server server(resolver);

  EXPECT_EQ(server.task(), "/job:ps/replica:0/task:0");
}

TEST(Server, SaysThatItsResolverDoesNotKnowTheTask) {
  SimpleClusterResolver resolver(ClusterSpec({{"worker", {"127.0.0.1:0"}}}), {});

  EXPECT_EQ(caught([&] { Server server(resolver); }).code(), StatusCode::kInvalidArgument);
}

TEST(Server, RunsOpsPinnedToTheOnlyTaskOfASparseJob) {
  Server server({.cluster = ClusterSpec::sparse({{"local", {{37, "127.0.0.1:0"}}}}), .task = {"local", 37}});
  auto step = function([](at::Tensor x) {
    DeviceScope on("/job:local/task:37");
    return x + 1;
  });

  Session session({.target = server.target()});

  EXPECT_TRUE(torch::equal(session.run(step, torch::ones({2})), torch::full({2}, 2.0F)));
}

TEST(Server, TellsAnOldSessionThatTheMasterWasRestarted) {
  auto server = std::make_unique<Server>(local());
  const std::string address = server->address(), target = server->target();
  auto step = function([](at::Tensor x) { return x + 1; });
  Session old({.target = target});
  old.run(step, torch::ones({2}));

  server.reset();
  server = std::make_unique<Server>(local(address));

  Status status;  // connections may have been tried in between
  EXPECT_TRUE(eventually([&] {
    status = caught([&] { old.run(step, torch::ones({2})); });
    return status.code() != StatusCode::kUnavailable;
  }));
  EXPECT_EQ(status.code(), StatusCode::kAborted);
  EXPECT_FALSE(is_restart(status)) << "it may as well have been closed";
  EXPECT_THAT(status.message(), HasSubstr("Session handle is not found"));
  Session fresh({.target = target});
  EXPECT_NO_THROW(fresh.run(step, torch::ones({2})));
}

TEST(Server, NamesTheTaskThatCannotBeReached) {
  Server server({.cluster = ClusterSpec({{"local", {"127.0.0.1:0", "127.0.0.1:1", "127.0.0.1:2"}}}),
                 .task = {"local", 0},
                 .connect_timeout = std::chrono::milliseconds(20)});
  auto step = function([](at::Tensor x) {
    at::Tensor y;
    {
      DeviceScope on("/job:local/task:1");
      y = x + 1;
    }
    DeviceScope on("/job:local/task:2");
    return y + 1;
  });
  Session session({.target = server.target()});

  const Status status = caught([&] { session.run(step, torch::ones({2})); });

  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_THAT(status.message(), HasSubstr("/job:local/replica:0/task:1 at 127.0.0.1:1"));
  EXPECT_THAT(status.message(), HasSubstr("/job:local/replica:0/task:2 at 127.0.0.1:2"));
}

TEST(Server, NeverWaitsForATaskThatNobodyUses) {
  Server server(
      {.cluster = ClusterSpec({{"worker", {"127.0.0.1:0"}}, {"evaluator", {"127.0.0.1:1"}}}), .task = {"worker", 0}});
  auto step = function([](at::Tensor x) { return x + 1; });

  Session session({.target = server.target()});

  EXPECT_NO_THROW(session.run(step, torch::ones({2})));
  LogCapture capture;
  EXPECT_EQ(session.list_devices().size(), LocalDevices().names().size());
  EXPECT_TRUE(capture.contains("/job:evaluator/replica:0/task:0 is left out"));
}

TEST(Server, CarriesAVeryLongErrorToTheClient) {
  Server server(local());
  const std::string long_name(60'000, 'x');
  auto step = function([](at::Tensor x) { return x.index_select(0, torch::tensor({9})) + 1; }, {.name = long_name});
  Session session({.target = server.target()});
  auto index = function([](at::Tensor x, at::Tensor i) { return x.index_select(0, i); },
                        {.name = "y" + std::string(3'000, 'y')});
  session.run(index, torch::ones({2}), torch::tensor({0}));

  const Status status = caught([&] { session.run(index, torch::ones({2}), torch::tensor({5})); });

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr(std::string(3'000, 'y')));
}

TEST(Server, RefusesMoreProgramsThanItsLimitAndGoesOn) {
  ServerOptions options = local();
  options.worker.max_programs = 2;
  Server server(options);
  auto step = function([](at::Tensor x) { return x + 1; });
  Session session({.target = server.target()});
  session.run(step, torch::ones({1}));
  session.run(step, torch::ones({2}));

  const Status status = caught([&] { session.run(step, torch::ones({3})); });

  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
  EXPECT_NO_THROW(session.run(step, torch::ones({1})));
}

TEST(Server, RefusesAMessageOverItsLimitAndGoesOn) {
  ServerOptions options = local();
  options.max_message_bytes = 1 << 20;
  Server server(options);
  auto step = function([](at::Tensor x) { return x.sum(); });
  Session session({.target = server.target()});

  const Status status = caught([&] { session.run(step, torch::ones({1 << 20})); });

  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
  EXPECT_NO_THROW(session.run(step, torch::ones({2})));
}

TEST(Server, RefusesMoreSessionsThanItsLimitAndGoesOn) {
  ServerOptions options = local();
  options.max_sessions = 2;
  Server server(options);
  auto step = function([](at::Tensor x) { return x + 1; });
  Session one({.target = server.target()}), two({.target = server.target()});

  const Status status = caught([&] { Session three({.target = server.target()}); });

  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(status.message(), HasSubstr("/job:local/replica:0/task:0 has 2 sessions"));
  EXPECT_NO_THROW(two.run(step, torch::ones({2})));
  one.close();
  EXPECT_NO_THROW(Session({.target = server.target()}).run(step, torch::ones({2})));
}

TEST(Server, EndsTheSessionsOfClientsThatAreGoneAndKeepsThoseThatAreIdle) {
  ServerOptions options = local();
  options.lease = std::chrono::milliseconds(1'000);
  Server server(options);
  auto step = function([](at::Tensor x) { return x + 1; });
  Session idle({.target = server.target()});
  idle.run(step, torch::ones({2}));
  RemoteMaster silent(std::make_shared<RpcChannel>(server.address(), server.task(), ChannelOptions{}));
  RemoteWorker worker(std::make_shared<RpcChannel>(server.address(), server.task(), ChannelOptions{}));

  const std::string session = silent.create_session({});
  silent.extend(session, step.program(torch::ones({2})));
  EXPECT_EQ(worker.status().sessions, 2u);

  EXPECT_TRUE(eventually([&] { return worker.status().sessions == 1; }));
  EXPECT_TRUE(eventually([&] { return worker.status().programs == 1; }));
  const Status status = caught([&] { silent.release(session, {1}); });
  EXPECT_EQ(status.code(), StatusCode::kAborted) << status;
  EXPECT_THAT(status.message(), HasSubstr("not used for long"));
  EXPECT_NO_THROW(idle.run(step, torch::ones({2})));
}

TEST(Server, DropsWhatAClientThatGaveNoNameHasNotUsedForLong) {
  ServerOptions options = local();
  options.lease = std::chrono::milliseconds(40);
  Server server(options);
  RemoteWorker worker(std::make_shared<RpcChannel>(server.address(), server.task(), ChannelOptions{}));
  auto step = function([](at::Tensor x) { return x + 1; });

  worker.register_program(step.program(torch::ones({2})));

  EXPECT_TRUE(eventually([&] { return worker.status().programs == 0; }));
}

TEST(Server, HearsWithTheNextRenewalOfAStepThatHasFailed) {
  Server server(local());
  auto faults = std::make_shared<RpcFaults>(1);
  faults->set(worker_rpc::kAbort, {.request_lost = 1});
  RemoteWorker worker(std::make_shared<RpcChannel>(server.address(), server.task(), ChannelOptions{.faults = faults}));
  std::promise<Status> told;
  server.worker().receive(7, 1, {}, [&](const Status& status, const at::Tensor&) { told.set_value(status); });
  std::future<Status> end = told.get_future();

  worker.abort(7, Status(StatusCode::kInternal, "it failed"));
  const Lease lease{{random_id(), "somebody"}, {}};
  EXPECT_TRUE(eventually([&] {
    worker.renew(lease, [](const Status&, const LeaseTerms&) {});
    return end.wait_for(std::chrono::milliseconds(1)) == std::future_status::ready;
  }));

  EXPECT_EQ(end.get().code(), StatusCode::kCancelled);
}

TEST(Server, RefusesMoreCallsOfAConnectionThanItsLimitAndGoesOn) {
  ServerOptions options = local();
  options.max_calls_per_connection = 2;
  Server server(options);
  RemoteWorker worker(std::make_shared<RpcChannel>(server.address(), server.task(), ChannelOptions{}));
  RemoteWorker other(std::make_shared<RpcChannel>(server.address(), server.task(), ChannelOptions{}));
  std::vector<std::future<Status>> ends;
  for (int64_t edge = 0; edge < 3; ++edge) {
    auto end = std::make_shared<std::promise<Status>>();
    ends.push_back(end->get_future());
    worker.receive(1, edge, {}, [end](const Status& status, const at::Tensor&) { end->set_value(status); });
  }
  auto is_ready = [](std::future<Status>& end) {
    return end.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  ASSERT_TRUE(eventually([&] { return std::any_of(ends.begin(), ends.end(), is_ready); }));
  ASSERT_EQ(std::count_if(ends.begin(), ends.end(), is_ready), 1) << "two wait, and one is too many";

  other.abort(1, Status(StatusCode::kAborted, "no more"));
  std::map<StatusCode, int> codes;
  for (std::future<Status>& end : ends) {
    ASSERT_EQ(end.wait_for(kPatience), std::future_status::ready);
    ++codes[end.get().code()];
  }

  EXPECT_EQ(codes, (std::map<StatusCode, int>{{StatusCode::kResourceExhausted, 1}, {StatusCode::kAborted, 2}}));
  EXPECT_NO_THROW(worker.status());
}

// A server for `task` at the address that another one had.
std::unique_ptr<Server> serve(const std::string& job, const std::string& address) {
  return std::make_unique<Server>(ServerOptions{.cluster = ClusterSpec({{job, {address}}}), .task = {job, 0}});
}

TEST(Server, IsNotMistakenForTheTaskThatHadItsPortBefore) {
  auto ps = serve("ps", "127.0.0.1:0");
  const std::string address = ps->address();
  Server master({.cluster = ClusterSpec({{"worker", {"127.0.0.1:0"}}, {"ps", {address}}}), .task = {"worker", 0}});
  auto step = function([](at::Tensor x) {
    DeviceScope on("/job:ps/task:0");
    return x + 1;
  });
  Session session({.target = master.target()});
  session.run(step, torch::ones({2}));
  ps.reset();
  auto intruder = serve("evaluator", address);

  const Status status = caught([&] { session.run(step, torch::ones({2})); });

  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_EQ(status.task(), "/job:ps/replica:0/task:0");
  EXPECT_THAT(status.message(), HasSubstr("here is /job:evaluator/replica:0/task:0, not /job:ps/replica:0/task:0"));
}

TEST(Server, IsWaitedForWhileAnotherTaskHasItsPort) {
  auto intruder = serve("evaluator", "127.0.0.1:0");
  const std::string address = intruder->address();
  ClusterPeers peers(ClusterSpec({{"ps", {address}}}), {});
  RemoteWorker any(std::make_shared<RpcChannel>(address, "", ChannelOptions{}));
  std::future<WorkerStatus> ps_status =
      std::async(std::launch::async, [&] { return peers.worker("/job:ps/replica:0/task:0")->status(/*wait=*/true); });
  uint64_t asked = 0;
  ASSERT_TRUE(eventually([&] { return any.status().requests >= ++asked + 3; })) << "the other task was not asked again";

  intruder.reset();
  auto ps = serve("ps", address);

  ASSERT_EQ(ps_status.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(ps_status.get().task, "/job:ps/replica:0/task:0");
}

TEST(Server, StopsWhenItIsToldTo) {
  Server server(local());

  std::thread stopper([&] { server.stop(); });

  EXPECT_EQ(server.join(), 0);
  stopper.join();
}

TEST(Server, AnswersOthersWhileMoreCallsThanItHasThreadsWaitForATaskThatIsDown) {
  const std::string down = std::make_unique<Server>(local())->address();  // a port that is free again
  const ClusterSpec cluster({{"local", {"127.0.0.1:0", down}}});
  Server server({.cluster = cluster, .task = {"local", 0}});
  auto channel = std::make_shared<RpcChannel>(server.address(), server.task(), ChannelOptions{});
  RemoteMaster master(channel);
  proto::SessionRequest extend;
  extend.set_session(master.create_session({}));
  auto there = function([](at::Tensor x) {
    DeviceScope on("/job:local/task:1");
    return x + 1;
  });
  extend.set_program(serialize(there.program(torch::ones({2}))));
  constexpr int kWaiting = 200;
  std::atomic<int> ended = 0, failed = 0;
  for (int i = 0; i < kWaiting; ++i) {
    channel->start(master_rpc::kExtend, with_header(extend), {.once = true}, [&](const Status& status, const Frame&) {
      if (!status.ok()) ++failed;
      ++ended;
    });
  }
  ASSERT_TRUE(eventually([&] { return RemoteWorker(channel).status().requests >= kWaiting; }));

  Session session({.target = server.target()});
  auto here = function([](at::Tensor x) { return x * 2; });
  EXPECT_TRUE(torch::equal(session.run(here, torch::ones({2})), torch::full({2}, 2.0F)));
  EXPECT_NO_THROW(RemoteWorker(channel).status());
  EXPECT_EQ(ended, 0) << "nobody waited";

  Server other({.cluster = cluster, .task = {"local", 1}});
  EXPECT_TRUE(eventually([&] { return ended == kWaiting; }));
  EXPECT_EQ(failed, 0);
}

TEST(Server, IsNotResetThroughATargetThatIsUnknownOrCannotBeReached) {
  EXPECT_EQ(caught([&] { Session::reset({.target = "unknown"}); }).code(), StatusCode::kNotFound);

  const Status unreachable = caught(
      [&] { Session::reset({.target = "grpc://127.0.0.1:1", .connect_timeout = std::chrono::milliseconds(5)}); });
  EXPECT_TRUE(unreachable.code() == StatusCode::kUnavailable || unreachable.code() == StatusCode::kDeadlineExceeded)
      << unreachable;
}

// A server that a session uses, joined by another thread.
class ServerThatIsUsed : public ::testing::Test {
 protected:
  void SetUp() override {
    (void)session_->run(add_, torch::ones({2}));
    joined_ = std::async(std::launch::async, [&] { return server_.join(); });
    ASSERT_TRUE(eventually([] {
      struct sigaction now {};
      ::sigaction(SIGTERM, nullptr, &now);
      return now.sa_handler != SIG_DFL;
    }));
    ::raise(SIGTERM);
    ASSERT_TRUE(eventually([&] { return log_.contains("is told to end, and goes on while it is used"); }));
  }
  ~ServerThatIsUsed() override { server_.stop(); }

  static ServerOptions that_lingers() {
    ServerOptions options = local();
    options.linger = std::chrono::hours(1);
    return options;
  }

  LogCapture log_;
  Server server_{that_lingers()};
  Function<std::function<at::Tensor(at::Tensor)>> add_ =
      function(std::function<at::Tensor(at::Tensor)>([](at::Tensor x) { return x + 1; }));
  std::unique_ptr<Session> session_ = std::make_unique<Session>(SessionOptions{.target = server_.target()});
  std::future<int> joined_{};
};

TEST_F(ServerThatIsUsed, GoesOnAfterASignalUntilNobodyUsesIt) {
  EXPECT_TRUE(torch::equal(session_->run(add_, torch::ones({2})), torch::full({2}, 2.0F)));
  EXPECT_EQ(joined_.wait_for(std::chrono::seconds(0)), std::future_status::timeout);

  session_.reset();

  ASSERT_EQ(joined_.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(joined_.get(), 0);
}

TEST_F(ServerThatIsUsed, EndsWithTheSecondSignal) {
  ::raise(SIGTERM);

  EXPECT_EQ(joined_.wait_for(kPatience), std::future_status::ready);
}

TEST(Server, WaitsForASignalOfItsOwnAfterOneThatHasEndedAnother) {
  Server first(local()), second(local()), third(local());
  ::signal(SIGTERM, SIG_IGN);  // while nobody is joined
  std::vector<std::future<int>> joined;
  joined.push_back(std::async(std::launch::async, [&] { return first.join(); }));
  joined.push_back(std::async(std::launch::async, [&] { return second.join(); }));
  auto is_ready = [](std::future<int>& end) {
    return end.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };

  ASSERT_TRUE(eventually([&] {
    ::raise(SIGTERM);
    return std::all_of(joined.begin(), joined.end(), is_ready);
  }));
  ::signal(SIGTERM, SIG_DFL);
  LogCapture capture;
  third.stop();
  third.join();

  EXPECT_TRUE(capture.contains("stops"));
  EXPECT_FALSE(capture.contains("as a signal asks"));
}

// A process that has lost its device stays so: it is this program, begun anew for the statement that has to end it.
TEST(ServerDeathTest, EndsWhenItsGpuIsLost) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        Server server(local());
        says_device_lost("CUDA error: device-side assert triggered");
        std::_Exit(server.join());
      },
      testing::ExitedWithCode(EXIT_FAILURE), "ends, to be started anew: .*device-side assert triggered");
}

}  // namespace
}  // namespace muster

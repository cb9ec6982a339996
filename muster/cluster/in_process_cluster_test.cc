#include "muster/cluster/in_process_cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <future>
#include <thread>

#include "muster/base/log.h"
#include "muster/cluster/test_environment.h"
#include "muster/rpc/rpc_faults.h"
#include "muster/runtime/worker/restart.h"
#include "muster/trace/control_flow.h"
#include "muster/trace/device_scope.h"

namespace muster {
namespace {

using ::muster::testing_support::caught;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Everything that a cluster does it does over both transports.
class Clusters : public ::testing::TestWithParam<Transport> {
 protected:
  InProcessCluster cluster_{{.workers = 2, .ps = 2, .transport = GetParam()}};
};

INSTANTIATE_TEST_SUITE_P(Transports, Clusters, ::testing::Values(Transport::kGrpc, Transport::kLocal),
                         [](const auto& info) { return info.param == Transport::kGrpc ? "Grpc" : "Local"; });

TEST_P(Clusters, RunVariablesOnServersAndArithmeticOnAWorker) {
  Variable w1(torch::randn({8, 4}), {.name = "w1", .device = "/job:ps/task:0"});
  Variable w2(torch::randn({4, 2}), {.name = "w2", .device = "/job:ps/task:1"});
  auto predict = function([&](at::Tensor x) {
    DeviceScope on("/job:worker/task:0/device:CPU:0");
    return torch::matmul(torch::relu(torch::matmul(x, w1)), w2);
  });
  at::Tensor x = torch::randn({3, 8});
  auto session = cluster_.session();

  session->run(initializer(w1, w2));
  at::Tensor result = session->run(predict, x);

  at::Tensor expected = torch::matmul(torch::relu(torch::matmul(x, w1.state()->initial)), w2.state()->initial);
  EXPECT_TRUE(torch::allclose(result, expected));
  EXPECT_EQ(cluster_.worker({"ps", 0}).status().variables, 1u);
  EXPECT_EQ(cluster_.worker({"ps", 1}).status().variables, 1u);
}

TEST_P(Clusters, GiveOneTensorAsOftenAsItIsAskedFor) {
  auto twice = function([](at::Tensor x) {
    DeviceScope on("/job:worker/task:1");
    at::Tensor y = x + 1;
    return std::vector<at::Tensor>{y, y, x};
  });

  const std::vector<at::Tensor> given = cluster_.session()->run(twice, torch::ones({2}));

  ASSERT_EQ(given.size(), 3u);
  EXPECT_TRUE(torch::equal(given[0], torch::full({2}, 2.0F)));
  EXPECT_TRUE(torch::equal(given[1], given[0]));
  EXPECT_TRUE(torch::equal(given[2], torch::ones({2})));
}

TEST_P(Clusters, KeepVariablesAfterTheirSession) {
  Variable v(torch::zeros({2}), {.name = "v", .device = "/job:ps/task:0"});
  auto add = function([&](at::Tensor x) { return v.assign_add(x).value() + 0; });
  cluster_.session()->run(initializer(v));
  cluster_.session()->run(add, torch::ones({2}));

  at::Tensor seen = cluster_.session({"worker", 1})->run(add, torch::ones({2}));

  EXPECT_TRUE(torch::equal(seen, torch::full({2}, 2.0F)));
}

TEST_P(Clusters, TrainAModelOnFourTasksToTheSameWeightsAsOnOne) {
  const std::vector<std::string> devices = {"/job:worker/task:0", "/job:ps/task:0", "/job:ps/task:1",
                                            "/job:worker/task:1"};
  torch::manual_seed(1);
  std::vector<at::Tensor> initial;
  for (int i = 0; i < 4; ++i) initial.push_back(torch::randn({6, 6}) * 0.5);
  at::Tensor x = torch::randn({5, 6}), y = torch::randn({5, 6});
  auto train = [&](const std::vector<Variable>& layers, const std::vector<std::string>& places) {
    return function([&layers, places](at::Tensor x, at::Tensor y) {
      at::Tensor h = x;
      for (size_t i = 0; i < layers.size(); ++i) {
        std::optional<DeviceScope> on;
        if (!places.empty()) on.emplace(places[i]);
        h = torch::tanh(torch::matmul(h, layers[i]));
      }
      at::Tensor loss = torch::mse_loss(h, y);
      std::vector<at::Tensor> gradients = gradient(loss, layers);
      for (size_t i = 0; i < layers.size(); ++i) Variable(layers[i]).assign_sub(0.1 * gradients[i]);
      return loss;
    });
  };
  std::vector<Variable> far, near;
  for (int i = 0; i < 4; ++i) {
    far.emplace_back(initial[i], VariableOptions{.name = str_cat("far", i), .device = devices[i]});
    near.emplace_back(initial[i], VariableOptions{.name = str_cat("near", i)});
  }
  auto far_step = train(far, devices);
  auto near_step = train(near, {});
  auto session = cluster_.session({"ps", 1});  // Any task can be the master.
  session->run(initializer(far));

  for (int i = 0; i < 5; ++i) {
    at::Tensor far_loss = session->run(far_step, x, y), near_loss = near_step(x, y).cpu();
    EXPECT_TRUE(torch::allclose(far_loss, near_loss, 1e-4, 1e-5)) << i;
  }

  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(torch::allclose(session->value(far[i]), near[i].value().cpu(), 1e-4, 1e-5)) << i;
  }
}

TEST_P(Clusters, RunTenStepsAsOneLoopOnTheWorker) {
  Variable w(torch::zeros({4}), {.name = "loop_w", .device = "/job:ps/task:0"});
  auto steps = function([&](at::Tensor x) {
    return repeat(
        10,
        [&](at::Tensor, at::Tensor sum) {
          w.assign_add(x);
          return sum + w;
        },
        torch::zeros({4}));
  });
  auto session = cluster_.session();
  session->run(initializer(w));

  at::Tensor sum = session->run(steps, torch::ones({4}));

  EXPECT_TRUE(torch::equal(session->value(w), torch::full({4}, 10.0F)));
  EXPECT_TRUE(torch::equal(sum, torch::full({4}, 55.0F)));
}

TEST_P(Clusters, TellTheRootOfAFailureWithItsOpDeviceAndTask) {
  Variable v(torch::ones({2}), {.name = "fails", .device = "/job:ps/task:1"});
  auto step = function([&](at::Tensor index) {
    at::Tensor picked;
    {
      DeviceScope on("/job:ps/task:1");
      picked = torch::index_select(v.value(), 0, index);
    }
    DeviceScope on("/job:ps/task:0");
    return picked + 1;
  });
  auto session = cluster_.session();
  session->run(initializer(v));
  session->run(step, torch::tensor({1}));

  const Status status = caught([&] { session->run(step, torch::tensor({7})); });

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(status.task(), "/job:ps/replica:0/task:1");
  EXPECT_THAT(status.message(), HasSubstr("aten::index_select"));
  EXPECT_THAT(status.message(), HasSubstr("/job:ps/replica:0/task:1/device:CPU:0"));
  for (const TaskId& task : cluster_.spec().all_tasks())
    EXPECT_EQ(cluster_.worker(task).rendezvous().waiting_values(), 0u);
  EXPECT_NO_THROW(session->run(step, torch::tensor({0}))) << "the session goes on";
}

TEST_P(Clusters, EndAStepThatIsCancelledEverywhere) {
  auto forever = function([](at::Tensor x) {
    DeviceScope on("/job:ps/task:0");
    return while_loop([](at::Tensor value) { return value.sum() >= 0; }, [](at::Tensor value) { return value + 0; }, x);
  });
  auto session = cluster_.session();

  const Status status =
      caught([&] { session->run_with({.timeout = std::chrono::milliseconds(200)}, forever, torch::ones({2})); });

  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
}

TEST_P(Clusters, LetSeveralClientsIncrementOneVariable) {
  Variable v(torch::zeros({}), {.name = "shared", .device = "/job:ps/task:0"});
  auto add = function([&] { return v.assign_add(torch::ones({})).value() + 0; });
  auto first = cluster_.session(), second = cluster_.session({"worker", 1});
  first->run(initializer(v));
  auto learner = [&](Session& session, int times) {
    return std::thread([&session, &add, times] {
      for (int i = 0; i < times; ++i) session.run(add);
    });
  };

  std::thread one = learner(*first, 10), other = learner(*second, 9);
  one.join();
  other.join();

  EXPECT_EQ(first->value(v).item<float>(), 19.0F);
}

TEST_P(Clusters, ResetContainersAndEndTheSessions) {
  Variable v0(torch::zeros({}), {.name = "v0", .device = "/job:ps/task:0"});
  Variable v1(torch::zeros({}), {.name = "v1", .device = "/job:ps/task:0"});
  auto in = [&](const std::string& container) { return cluster_.session({"worker", 0}, {.container = container}); };
  auto old = in("test0");
  old->run(initializer(v0));
  auto other = in("test1");
  auto add = function([&] { return v1.assign_add(torch::full({}, 2.0F)).value() + 0; });
  other->run(initializer(v1));
  other->run(add);
  Session::reset({.target = GetParam() == Transport::kGrpc ? cluster_.target() : ""}, {"unknown"});
  if (GetParam() == Transport::kLocal) return;  // a session without a target resets this process

  Session::reset({.target = cluster_.target()}, {"test0"});

  EXPECT_EQ(caught([&] { old->value(v0); }).code(), StatusCode::kAborted);
  EXPECT_EQ(caught([&] { in("test0")->value(v0); }).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(in("test1")->value(v1).item<float>(), 2.0F);
}

TEST_P(Clusters, ListTheDevicesOfAllTasks) {
  std::vector<std::string> expected;
  for (const char* task : {"/job:worker/replica:0/task:0", "/job:worker/replica:0/task:1", "/job:ps/replica:0/task:0",
                           "/job:ps/replica:0/task:1"}) {
    const LocalDevices devices({.task = task});  // with the GPUs of this machine
    expected.insert(expected.end(), devices.names().begin(), devices.names().end());
  }

  EXPECT_THAT(expected, ::testing::IsSupersetOf(
                            {"/job:worker/replica:0/task:1/device:CPU:0", "/job:ps/replica:0/task:1/device:CPU:0"}));
  EXPECT_THAT(cluster_.session()->list_devices(), ::testing::UnorderedElementsAreArray(expected));
}

TEST_P(Clusters, RefuseADeviceOutsideOfTheFilters) {
  auto step = function([](at::Tensor x) {
    DeviceScope on("/job:ps/task:1");
    return x + 1;
  });
  auto session = cluster_.session({"worker", 0}, {.device_filters = {"/job:ps/task:0"}});

  const Status status = caught([&] { session->run(step, torch::ones({2})); });

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("/job:ps/task:1"));
}

TEST_P(Clusters, NeverMistakeARestartedTaskForTheOldOne) {
  Variable v(torch::ones({2}), {.name = "v", .device = "/job:ps/task:0"});
  auto read = function([&](at::Tensor x) { return v + x; });
  auto session = cluster_.session();
  session->run(initializer(v));
  session->run(read, torch::ones({2}));

  cluster_.stop({"ps", 0});
  const Status down = caught([&] { session->run(read, torch::ones({2})); });
  cluster_.start({"ps", 0});
  const Status restarted = caught([&] { session->run(read, torch::ones({2})); });

  if (GetParam() == Transport::kGrpc) {
    EXPECT_EQ(down.code(), StatusCode::kUnavailable) << down;
    EXPECT_TRUE(is_restart(restarted)) << restarted;
    EXPECT_EQ(restarted.task(), "/job:ps/replica:0/task:0");
  }
  auto again = cluster_.session();
  EXPECT_EQ(caught([&] { again->run(read, torch::ones({2})); }).code(), StatusCode::kFailedPrecondition)
      << "a new session sees that it has no value";
}

TEST_P(Clusters, LogWhereEverythingRuns) {
  Variable v(torch::ones({2}), {.name = "logged", .device = "/job:ps/task:1"});
  auto step = function([&](at::Tensor x) { return v + x; });
  auto session = cluster_.session({"worker", 0}, {.log_device_placement = true});
  session->run(initializer(v));

  LogCapture capture;
  session->run(step, torch::ones({2}));

  EXPECT_TRUE(capture.contains("variable logged"));
  EXPECT_TRUE(capture.contains("/job:ps/replica:0/task:1/device:CPU:0"));
}

TEST(InProcessCluster, AppliesEveryStepOnceWhateverTheNetworkDoes) {
  auto faults = std::make_shared<RpcFaults>(7);
  const ScopedRpcFaults lossy(faults);
  InProcessCluster cluster({.workers = 1, .ps = 2, .attempts = 30});
  Variable v(torch::zeros({}), {.name = "chaos_v", .device = "/job:ps/task:0"});
  Variable w(torch::zeros({}), {.name = "chaos_w", .device = "/job:ps/task:1"});
  auto step = function([&](at::Tensor x) {
    w.assign_add(v.assign_add(x).value());  // from one server to the other, directly
    return w.value() + 0;
  });
  faults->set("", {.request_lost = 0.15, .response_lost = 0.15, .in_flight = 0.15});
  auto session = cluster.session();
  session->run(initializer(v, w));

  constexpr int kSteps = 60;
  for (int i = 0; i < kSteps; ++i) session->run(step, torch::ones({}));

  EXPECT_EQ(session->value(v).item<float>(), kSteps);
  EXPECT_EQ(session->value(w).item<float>(), kSteps * (kSteps + 1) / 2);
  EXPECT_GT(faults->drawn(), kSteps) << "the network was well behaved after all";
}

TEST(InProcessCluster, BlamesTheParameterServerWhicheverOfManyWorkersAsks) {
  constexpr int kWorkers = 16;
  InProcessCluster cluster({.workers = kWorkers, .ps = 2});
  Variable v(torch::zeros({}), {.name = "asked_by_many", .device = "/job:ps/task:0"});
  auto add = function([&](at::Tensor x) { return v.assign_add(x).value() + 0; });
  std::vector<std::unique_ptr<Session>> sessions;
  for (int i = 0; i < kWorkers; ++i) sessions.push_back(cluster.session({"worker", i}));
  sessions[0]->run(initializer(v));
  for (auto& session : sessions) session->run(add, torch::ones({}));

  cluster.stop({"ps", 0});
  std::vector<std::future<Status>> asked;
  for (auto& session : sessions) {
    asked.push_back(
        std::async(std::launch::async, [&] { return caught([&] { session->run(add, torch::ones({})); }); }));
  }

  for (std::future<Status>& answer : asked) {
    const Status status = answer.get();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
    EXPECT_EQ(status.task(), "/job:ps/replica:0/task:0") << status;
  }
}

TEST(InProcessCluster, RunsAProgramOfATaskWithAHighNumber) {
  InProcessCluster cluster({.workers = 0, .jobs = {{"local", 1}}});
  auto step = function([](at::Tensor x) {
    DeviceScope on("/job:local/task:0");
    return x * 2;
  });

  auto session = cluster.session({"local", 0});

  EXPECT_TRUE(torch::equal(session->run(step, torch::ones({2})), torch::full({2}, 2.0F)));
}

TEST(InProcessCluster, CarriesAHundredMegabytesBothWays) {
  InProcessCluster cluster({.workers = 1, .ps = 1});
  auto step = function([](at::Tensor x) {
    DeviceScope on("/job:ps/task:0");
    return x + 1;
  });
  auto session = cluster.session();
  at::Tensor x = torch::ones({10'000, 3'000});

  EXPECT_TRUE(torch::equal(session->run(step, x), x + 1));
}

}  // namespace
}  // namespace muster

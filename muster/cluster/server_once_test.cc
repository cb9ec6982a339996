// Every method of a server that changes something is applied once, whatever the network does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <future>
#include <numeric>
#include <set>

#include "muster/cluster/test_environment.h"
#include "muster/graph/placement/placer.h"
#include "muster/graph/placement/split.h"
#include "muster/graph/serialize.h"
#include "muster/graph/test_program.h"
#include "muster/rpc/calls/request_numbers.h"
#include "muster/rpc/master_service.h"
#include "muster/rpc/remote_master.h"
#include "muster/rpc/remote_worker.h"
#include "muster/rpc/rpc_faults.h"
#include "muster/rpc/rpc_server.h"
#include "muster/rpc/service_names.h"
#include "muster/rpc/worker_service.h"
#include "muster/session/local_master.h"
#include "muster/trace/variable_programs.h"

namespace muster {
namespace {

using testing_support::caught;
using testing_support::eventually;
using testing_support::kPatience;
using testing_support::ScopedDirectory;

constexpr const char* kTask = "/job:test/replica:0/task:0";

class NoElements : public ElementSource {
  std::optional<Element> next() override { return std::nullopt; }
};

LocalWorkerOptions worker_options(const std::string& storage) {
  LocalWorkerOptions options;
  options.storage = {storage};
  options.devices.task = kTask;
  options.open_source = [](const std::string&, Worker&) { return std::make_unique<NoElements>(); };
  return options;
}

// A task whose methods count how often they are run.
class CountingTask {
 public:
  explicit CountingTask(const std::string& storage) : worker(worker_options(storage)) {
    std::vector<RpcServer::MethodEntry> methods = worker_methods(worker, {});
    for (RpcServer::MethodEntry& method : master_methods(master)) methods.push_back(std::move(method));
    for (RpcServer::MethodEntry& method : methods) {
      std::atomic<int>& count = runs[method.name];
      if (method.once) once.insert(method.name);
      method.method = [&count, inner = method.method](std::shared_ptr<RpcCall> call) {
        ++count;
        inner(std::move(call));
      };
    }
    server = std::make_unique<RpcServer>(
        RpcServerOptions{.address = "127.0.0.1:0", .task = kTask, .incarnation = worker.incarnation()}, methods);
  }

  LocalWorker worker;
  LocalMaster master{worker, {}};
  std::map<std::string, std::atomic<int>> runs;
  std::set<std::string> once;  // the methods that are to be run once for each request
  std::unique_ptr<RpcServer> server;
};

class EveryMethod : public ::testing::Test {
 protected:
  std::vector<StoredVariable> stored() const {
    return {{.name = "counted", .spec = {DType::kFloat, {}}, .device = device_, .whole = "counted"}};
  }
  Program adding() const { return writing(*v_.state(), VariableHome::Write::kAdd, torch::ones({})).program; }

  ScopedDirectory directory_;
  CountingTask task_{directory_.path()};
  const std::string device_ = std::string(kTask) + "/device:CPU:0";
  Variable v_{torch::zeros({}), {.name = "counted", .device = device_}};
};

// ---- F31 to F33: the channel makes the calls again by itself
struct Loss {
  std::string name;
  FaultRates rates;
};
class EveryMethodOver : public EveryMethod, public ::testing::WithParamInterface<Loss> {};
const auto kNetworks =
    ::testing::Values(Loss{"ThatLosesRequests", {.request_lost = 0.4}},
                      Loss{"ThatLosesAnswers", {.response_lost = 0.4}}, Loss{"ThatRepeatsRequests", {.in_flight = 0.6}},
                      Loss{"ThatDoesAllOfThat", {.request_lost = 0.2, .response_lost = 0.2, .in_flight = 0.3}});
INSTANTIATE_TEST_SUITE_P(Networks, EveryMethodOver, kNetworks, [](const auto& info) { return info.param.name; });

TEST_P(EveryMethodOver, IsRunOncePerCall) {
  auto faults = std::make_shared<RpcFaults>(23);
  faults->set("", GetParam().rates);
  auto channel =
      std::make_shared<RpcChannel>(task_.server->address(), kTask, ChannelOptions{.attempts = 100, .faults = faults});
  RemoteWorker worker(channel);
  RemoteMaster master(channel);
  VariableProgram initial = initializing({v_});
  const ProgramHandle initialize = worker.register_program(initial.program);
  worker.run(initialize, initial.arguments);

  constexpr int kTimes = 10;
  for (int i = 0; i < kTimes; ++i) {
    const ProgramHandle add = worker.register_program(adding());
    worker.run(add, {torch::ones({})});
    std::promise<Status> ran;
    worker.start_runs({{.handle = add, .arguments = {torch::ones({})}}}, {},
                      [&](const Status& status, const std::vector<RunOutcome>&) { ran.set_value(status); });
    EXPECT_TRUE(ran.get_future().get().ok());
    worker.deregister_program(add);
    worker.open_source(i + 1, "");
    worker.close_source(i + 1);
    worker.release({.owner = {.id = 99}});
    const std::string checkpoint = str_cat(directory_.path(), "/", i);
    std::filesystem::create_directory(checkpoint);
    worker.save(checkpoint, stored(), {});
    EXPECT_FALSE(caught([&] { worker.restore(directory_.path() + "/none", stored(), RestoreStage::kApply); }).ok());
    worker.reset({"nothing"});
    const std::string session = master.create_session({});
    const ProgramHandle step = master.extend(session, adding());
    master.run(session, step, {torch::ones({})});
    master.release(session, step);
    master.close_session(session);
    master.reset({"nothing"});
    std::promise<Status> received;
    worker.receive(i + 1, 0, {}, [&](const Status& status, const at::Tensor&) { received.set_value(status); });
    worker.abort(i + 1, Status(StatusCode::kInternal, "no value"));
    EXPECT_EQ(received.get_future().get().code(), StatusCode::kInternal);
  }

  for (const std::string& method : task_.once) {
    const bool also_before = method == worker_rpc::kRegister || method == worker_rpc::kRun;
    EXPECT_EQ(task_.runs[method], kTimes + (also_before ? 1 : 0)) << method;
  }
  const ProgramHandle read = worker.register_program(reading(*v_.state()).program);
  EXPECT_EQ(worker.run(read, {}).at(0).item<float>(), 3 * kTimes);
  EXPECT_GT(faults->drawn(), kTimes) << "the network was well behaved after all";
}

// ---- A write that reads for the next step
class OnePeer : public Peers {
 public:
  explicit OnePeer(std::shared_ptr<RpcChannel> channel) : worker_(std::make_shared<RemoteWorker>(std::move(channel))) {}
  std::shared_ptr<Worker> worker(const std::string&) override { return worker_; }

 private:
  const std::shared_ptr<Worker> worker_;
};

// Steps of another task with a variable of this one, which each adds 1 to what it has read.
class Steps : public EveryMethod {
 protected:
  // What each of them has read.
  std::vector<float> run(int count, ChannelOptions options) {
    options.attempts = 100;
    OnePeer peers(std::make_shared<RpcChannel>(task_.server->address(), kTask, options));
    LocalWorker driver({.devices = {.task = kDriver, .gpus = false}}, &peers);
    task_.worker.store().declare("v", {DType::kFloat, {2, 2}}, at::kCPU)->assign(torch::zeros({2, 2}));
    testing_support::Builder b;
    const std::string here = str_cat(kDriver, "/device:CPU:0");
    const ValueId one = b.argument(), v = b.variable("v", device_);
    const ValueId read = b.relu(v, here);
    const ValueId sum = b.add(read, one, here);
    b.op("aten::sub_.Tensor", {testing_support::ref(v), testing_support::ref(read), testing_support::integer(1)});
    b.add_(v, sum);
    const Program placed = place(b.finish({read}), {.devices = {here, device_}, .default_device = here});
    const ProgramHandle step = driver.register_program(split(placed, kDriver));

    std::vector<float> values;
    driver.run_in_turn(std::vector<ProgramRun>(count, {.handle = step, .arguments = {torch::ones({2, 2})}}), {},
                       [&](const std::vector<RunOutcome>& outcomes) {
                         for (const RunOutcome& outcome : outcomes) {
                           ASSERT_TRUE(outcome.status.ok()) << outcome.status.to_string();
                           values.push_back(outcome.outputs[0][0][0].item<float>());
                         }
                       });
    return values;
  }
  static std::vector<float> expected(int count) {
    std::vector<float> values(count);
    std::iota(values.begin(), values.end(), 0.0F);
    return values;
  }

  static constexpr const char* kDriver = "/job:driver/replica:0/task:0";
};

TEST_F(Steps, AreOneCallEach) {
  constexpr int kSteps = 100;

  EXPECT_EQ(run(kSteps, {}), expected(kSteps));
  EXPECT_EQ(task_.runs[worker_rpc::kRun], kSteps + 1);
}

class StepsOver : public Steps, public ::testing::WithParamInterface<Loss> {};
INSTANTIATE_TEST_SUITE_P(Networks, StepsOver, kNetworks, [](const auto& info) { return info.param.name; });

TEST_P(StepsOver, ReadWhatTheOneBeforeHasWrittenOnce) {
  constexpr int kSteps = 100;
  auto faults = std::make_shared<RpcFaults>(23);
  faults->set(worker_rpc::kRun, GetParam().rates);

  EXPECT_EQ(run(kSteps, {.faults = faults}), expected(kSteps));
  EXPECT_GT(faults->drawn(), kSteps / 10) << "the network was well behaved after all";
}

// ---- A call and its repetition with 100,000 others between them
TEST_F(EveryMethod, GivesTheFirstAnswerAgainAfterAHundredThousandOtherRequests) {
  RemoteWorker worker(std::make_shared<RpcChannel>(task_.server->address(), kTask, ChannelOptions{}));
  VariableProgram initial = initializing({v_});
  worker.run(worker.register_program(initial.program), initial.arguments);
  const ProgramHandle add = worker.register_program(adding()), unused = worker.register_program(adding());
  const std::string session = task_.master.create_session({}), other_session = task_.master.create_session({});
  const ProgramHandle step = task_.master.extend(session, adding()), spare = task_.master.extend(session, adding());
  task_.worker.abort(77, Status(StatusCode::kInternal, "no value"));

  proto::RegisterRequest registering;
  registering.set_program(serialize(adding()));
  proto::RunRequest run, deregister, run_step;
  run.set_handle(add.id);
  deregister.set_handle(unused.id);
  run_step.set_session(session);
  run_step.set_handle(step.id);
  proto::RunsRequest runs;
  runs.add_runs()->set_handle(add.id);
  runs.mutable_runs(0)->set_tensors(1);
  proto::SourceRequest open, close;
  open.set_number(5);
  close.set_number(6);
  proto::LeaseRequest release_owner;
  release_owner.mutable_owner()->set_id(98);
  proto::ReceiveRequest receive;
  receive.set_meeting(77);
  proto::StorageRequest save, restore;
  save.set_path(directory_.path());
  save.add_variables()->set_name("counted");
  save.mutable_variables(0)->set_dtype(static_cast<int32_t>(DType::kFloat));
  save.mutable_variables(0)->set_device(device_);
  save.mutable_variables(0)->set_whole("counted");
  restore.set_path(directory_.path() + "/none");
  proto::ResetRequest reset;
  reset.add_containers("nothing");
  proto::CreateSessionRequest create;
  proto::SessionRequest extend, release, end;
  extend.set_session(session);
  extend.set_program(serialize(adding()));
  release.set_session(session);
  release.set_handle(spare.id);
  end.set_session(other_session);
  std::map<std::string, Frame> requests{
      {worker_rpc::kRegister, with_header(registering)},
      {worker_rpc::kRun, with_header(run)},
      {worker_rpc::kDeregister, with_header(deregister)},
      {worker_rpc::kRunAll, with_header(runs)},
      {worker_rpc::kOpenSource, with_header(open)},
      {worker_rpc::kCloseSource, with_header(close)},
      {worker_rpc::kReceive, with_header(receive)},
      {worker_rpc::kSave, with_header(save)},
      {worker_rpc::kRestore, with_header(restore)},
      {worker_rpc::kReset, with_header(reset)},
      {master_rpc::kCreate, with_header(create)},
      {master_rpc::kExtend, with_header(extend)},
      {master_rpc::kRun, with_header(run_step)},
      {master_rpc::kRelease, with_header(release)},
      {master_rpc::kClose, with_header(end)},
      {worker_rpc::kReleaseOwner, with_header(release_owner)},
  };
  // A reset of the master ends its sessions: it is the last one to be made.
  std::vector<std::pair<std::string, Frame>> order(requests.begin(), requests.end());
  order.emplace_back(master_rpc::kReset, with_header(reset));
  for (auto& [method, request] : order) {
    if (method == worker_rpc::kRun || method == worker_rpc::kRunAll || method == master_rpc::kRun) {
      request.tensors.push_back(torch::ones({}));
    }
  }
  std::set<std::string> named;
  for (const auto& [method, request] : order) named.insert(method);
  ASSERT_EQ(named, task_.once) << "a method that changes something, and has no request here";

  // The client of these requests never hears of an answer, so that it wants all of them.
  RpcChannel channel(task_.server->address(), kTask, {});
  RequestNumbers numbers;
  std::vector<RequestNumbers::Taken> wanted;
  for (auto& [method, request] : order) wanted.push_back(numbers.take(request.envelope));
  using Answer = std::pair<Status, std::string>;
  auto answer_of = [&](const std::string& method, const Frame& request) -> Answer {
    try {
      const Frame answer = channel.call(method, request);
      std::string text = answer.envelope.header();
      for (const at::Tensor& tensor : answer.tensors) text += str_cat(" ", tensor.item<float>());
      return {Status(), text};
    } catch (const Error& error) {
      return {error.status(), ""};
    }
  };
  std::vector<Answer> answers;
  for (const auto& [method, request] : order) answers.push_back(answer_of(method, request));
  std::map<std::string, int> ran;
  for (const auto& [method, count] : task_.runs) ran[method] = count;

  constexpr int kOthers = 100'000, kAtOnce = 100;
  std::atomic<int> under_way = 0, failed = 0;
  for (int i = 0; i < kOthers; ++i) {
    while (under_way.load() >= kAtOnce) std::this_thread::yield();
    ++under_way;
    Frame other = with_header(close);
    auto number = std::make_shared<RequestNumbers::Taken>(numbers.take(other.envelope));
    channel.start(worker_rpc::kCloseSource, std::move(other), {}, [&, number](const Status& status, const Frame&) {
      if (!status.ok()) ++failed;
      number->give_back();
      --under_way;
    });
  }
  ASSERT_TRUE(eventually([&] { return under_way == 0; }));
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(task_.runs[worker_rpc::kCloseSource], ran[worker_rpc::kCloseSource] + kOthers);

  for (size_t i = 0; i < order.size(); ++i) {
    const auto& [method, request] = order[i];
    EXPECT_EQ(answer_of(method, request), answers[i]) << method;
    const int others = method == worker_rpc::kCloseSource ? kOthers : 0;
    EXPECT_EQ(task_.runs[method], ran[method] + others) << method;
  }
}

}  // namespace
}  // namespace muster

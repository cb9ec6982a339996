#include "muster/session/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <barrier>
#include <thread>

#include "muster/base/test_errors.h"
#include "muster/session/local_master.h"
#include "muster/trace/control_flow.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using testing_support::caught;

TEST(Session, RunsAFunctionInThisProcessWithoutAServer) {
  auto product = function([](at::Tensor a, at::Tensor b) { return torch::matmul(a, b); });

  Session session;
  at::Tensor result = session.run(product, torch::tensor({{2.0F, 1.0F}}), torch::tensor({{1.0F}, {2.0F}}));

  EXPECT_TRUE(torch::equal(result, torch::tensor({{4.0F}})));
}

TEST(Session, SharesVariablesWithFunctionsThatAreCalledDirectly) {
  Variable counter(torch::zeros({}), {.name = "counter"});
  auto add = function([&](at::Tensor x) { return counter.assign_add(x).value() + 0; });

  Session session;
  session.run(add, torch::tensor(2.0F));
  add(torch::tensor(3.0F));

  EXPECT_EQ(session.value(counter).item<float>(), 5.0F);
}

TEST(Session, SaysWhichFunctionCouldNotBeTracedForWhatItWasGiven) {
  auto product = function([](at::Tensor a, at::Tensor b) { return torch::matmul(a, b); }, {.name = "product"});

  Session session;
  const Status status = caught([&] { session.run(product, torch::ones({2, 3}), torch::ones({2, 3})); });

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("function \"product\" (session_test.cc:"));
  EXPECT_THAT(status.message(), HasSubstr("argument 1: float32[2, 3]"));
}

TEST(Session, TakesArgumentsInAnyOrderOfMemoryIntoControlFlow) {
  auto choose = function([](at::Tensor x) { return cond(x.sum() > 0, [&] { return x * 1; }, [&] { return x * 2; }); });
  const at::Tensor numbers = torch::arange(12, torch::kFloat).view({3, 4});

  Session session;
  EXPECT_TRUE(torch::equal(session.run(choose, numbers.t()), numbers.t()));
  EXPECT_TRUE(torch::equal(session.run(choose, numbers.slice(1, 1, 3)), numbers.slice(1, 1, 3)));
}

TEST(Session, EndsARunThatTakesTooLong) {
  auto forever = function([](at::Tensor x) {
    return while_loop([](at::Tensor value) { return value.sum() >= 0; }, [](at::Tensor value) { return value + 0; }, x);
  });

  Session session;
  const Status status =
      caught([&] { session.run_with({.timeout = std::chrono::milliseconds(50)}, forever, torch::ones({2})); });

  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
}

TEST(Session, IsNotNeededToEndACallThatTakesTooLong) {
  auto forever = function([](at::Tensor x) {
    return while_loop([](at::Tensor value) { return value.sum() >= 0; }, [](at::Tensor value) { return value + 0; }, x);
  });

  const Status status = caught([&] { forever.run({.timeout = std::chrono::milliseconds(50)}, torch::ones({2})); });

  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
}

TEST(Session, EndsWhatRunsWhenItIsClosed) {
  auto forever = function([](at::Tensor x) {
    return while_loop([](at::Tensor value) { return value.sum() >= 0; }, [](at::Tensor value) { return value + 0; }, x);
  });
  Session session;
  static_cast<void>(
      caught([&] { session.run_with({.timeout = std::chrono::milliseconds(1)}, forever, torch::ones({2})); }));
  Status status;

  std::thread runner([&] { status = caught([&] { session.run(forever, torch::ones({2})); }); });
  session.close();
  runner.join();

  EXPECT_EQ(status.code(), StatusCode::kCancelled) << status;
  EXPECT_EQ(caught([&] { session.run(forever, torch::ones({2})); }).code(), StatusCode::kCancelled);
  EXPECT_EQ(caught([&] { session.value(Variable(torch::ones({2}))); }).code(), StatusCode::kCancelled);
  EXPECT_EQ(caught([&] { session.list_devices(); }).code(), StatusCode::kCancelled);
}

TEST(Session, CanBeCancelled) {
  auto forever = function([](at::Tensor x) {
    return while_loop([](at::Tensor value) { return value.sum() >= 0; }, [](at::Tensor value) { return value + 0; }, x);
  });
  Session session;
  Cancellation cancellation;
  std::thread canceller([&] { cancellation.cancel(); });

  const Status status = caught([&] { session.run_with({.cancellation = &cancellation}, forever, torch::ones({2})); });
  canceller.join();

  EXPECT_EQ(status.code(), StatusCode::kCancelled) << status;
}

// The master of this process, with two threads made to extend a session at the same time.
class TwoAtOnce : public LocalMaster {
 public:
  TwoAtOnce() : LocalMaster(local_worker(), {}) {}
  ProgramHandle extend(const std::string& session, const Program& program) override {
    const ProgramHandle handle = LocalMaster::extend(session, program);
    both_.arrive_and_wait();
    return handle;
  }
  // The one that was slower must not take the program away that the other one is about to run.
  std::vector<at::Tensor> run(const std::string& session, ProgramHandle handle, std::vector<at::Tensor> arguments,
                              const RunOptions& options) override {
    both_.arrive_and_wait();
    return LocalMaster::run(session, handle, std::move(arguments), options);
  }

 private:
  std::barrier<> both_{2};
};

TEST(Session, RunsAFunctionThatTwoThreadsBringAtTheSameTime) {
  Session session(std::make_shared<TwoAtOnce>(), {});
  auto twice = function([](at::Tensor x) { return x * 2; });
  twice.program(torch::ones({2}));
  Status other;

  std::thread thread([&] { other = caught([&] { session.run(twice, torch::ones({2})); }); });
  const Status status = caught([&] { session.run(twice, torch::ones({2})); });
  thread.join();

  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(other.ok()) << other;
}

TEST(Session, KeepsTheVariablesOfAnIsolatedSessionToItself) {
  Variable counter(torch::zeros({}), {.name = "isolated_counter"});
  auto add = function([&] { return counter.assign_add(torch::ones({})).value() + 0; });
  Session shared, isolated({.isolated = true});

  isolated.run(initializer(counter));
  isolated.run(add);
  isolated.run(add);

  EXPECT_EQ(isolated.value(counter).item<float>(), 2.0F);
  EXPECT_EQ(shared.value(counter).item<float>(), 0.0F);
}

TEST(Session, SaysThatAVariableOfAContainerHasNoValue) {
  Variable v(torch::ones({}), {.name = "contained"});
  Session session({.container = "test0"});

  const Status status = caught([&] { session.value(v); });

  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("contained"));
}

TEST(Session, RefusesATargetThatItDoesNotKnow) {
  const Status status = caught([] { Session session({.target = "http://x:1"}); });

  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("grpc://host:port"));
}

TEST(Session, RefusesATargetWithoutAPort) {
  for (const char* target : {"grpc://localhost", "grpc://[::1]", "grpc://"}) {
    const Status status = caught([&] { Session session({.target = target}); });

    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << target;
    EXPECT_THAT(status.message(), HasSubstr("has no port"));
  }
}

TEST(Session, SaysSoonThatNobodyIsThere) {
  const Status status = caught(
      [] { Session session({.target = "grpc://127.0.0.1:1", .connect_timeout = std::chrono::milliseconds(20)}); });

  EXPECT_TRUE(status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(status.message(), HasSubstr("127.0.0.1:1"));
}

TEST(Session, SaysThatAVariableOfAnotherTaskMustBeReadThere) {
  Variable remote(torch::ones({2}), {.name = "remote", .device = "/job:ps/task:0"});

  const Status status = caught([&] { remote.value(); });

  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("/job:ps/task:0"));
}

TEST(Session, LeavesNoProgramBehindWhenAValueCannotBeRead) {
  LocalWorker worker({.devices = {.cpus = 1, .gpus = false}});
  auto master = std::make_shared<LocalMaster>(worker, LocalMasterOptions{});
  Variable v(torch::ones({}), {.name = "unread"});
  Session session(master, {.container = "empty"});

  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(caught([&] { session.value(v); }).code(), StatusCode::kFailedPrecondition);
  }

  EXPECT_EQ(worker.status().programs, 0u);
}

TEST(Session, LeavesNoProgramBehindWhenAnInitializerFails) {
  LocalWorker worker({.devices = {.cpus = 1, .gpus = false}});
  auto master = std::make_shared<LocalMaster>(worker, LocalMasterOptions{});
  Variable v(torch::ones({2}), {.name = "v"});
  Session session(master, {.container = "some"});
  Initializer broken = initializer(v);
  broken.values = {torch::ones({3})};

  EXPECT_FALSE(caught([&] { session.run(broken); }).ok());

  EXPECT_EQ(worker.status().programs, 0u);
}

TEST(Session, DropsTheProgramsOfFunctionsThatAreGone) {
  LocalWorker worker({.devices = {.cpus = 1, .gpus = false}});
  auto master = std::make_shared<LocalMaster>(worker, LocalMasterOptions{});
  Session session(master, {});

  for (int i = 0; i < 200; ++i) {
    auto add = function([i](at::Tensor x) { return x + i; });
    EXPECT_EQ(session.run(add, torch::zeros({})).item<float>(), static_cast<float>(i));
  }

  EXPECT_LE(worker.status().programs, 32u);
}

TEST(Session, LetsProgramsGiveWayThatWereNotUsedForLongest) {
  LocalWorker worker({.devices = {.cpus = 1, .gpus = false}});
  auto master = std::make_shared<LocalMaster>(worker, LocalMasterOptions{});
  Session session(master, {.max_programs = 8});
  auto make = [](int i) { return function([i](at::Tensor x) { return x + i; }); };
  std::vector<decltype(make(0))> functions;
  for (int i = 0; i < 20; ++i) functions.push_back(make(i));

  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(session.run(functions[i], torch::zeros({})).item<float>(), static_cast<float>(i));
      EXPECT_EQ(session.run(functions[0], torch::zeros({})).item<float>(), 0.0F);
      EXPECT_LE(worker.status().programs, 8u);
    }
  }
}

TEST(Session, RunsAFunctionThatTwoThreadsRunFirst) {
  LocalWorker worker({.devices = {.cpus = 1, .gpus = false}});
  auto master = std::make_shared<LocalMaster>(worker, LocalMasterOptions{});
  for (int round = 0; round < 50; ++round) {
    Session session(master, {});
    auto add = function([](at::Tensor x) { return x + 1; });
    add.program(torch::zeros({}));
    std::vector<Status> ends(4);
    std::vector<std::thread> threads;
    for (Status& end : ends) {
      threads.emplace_back([&] { end = caught([&] { session.run(add, torch::zeros({})); }); });
    }
    for (std::thread& thread : threads) thread.join();

    for (const Status& end : ends) EXPECT_TRUE(end.ok()) << end;
  }
}

TEST(Session, ToleratesAFunctionWhoseProgramAResetHasDropped) {
  Variable v(torch::ones({}), {.name = "reset//with_its_function"});
  {
    auto read = function([&] { return v.value() + 1; });
    read();
    Session::reset({}, {"reset"});
  }

  EXPECT_EQ(local_worker().store().find("reset//with_its_function"), nullptr);
}

}  // namespace
}  // namespace muster

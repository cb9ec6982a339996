// Checkpoints that are saved while training goes on.
#include <absl/synchronization/notification.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <future>
#include <memory>
#include <span>
#include <thread>

#include "muster/base/log.h"
#include "muster/base/test_errors.h"
#include "muster/cluster/in_process_cluster.h"
#include "muster/distribute/coordinator/cluster_coordinator.h"
#include "muster/distribute/local_strategies.h"
#include "muster/io/checkpoint_reader.h"
#include "muster/io/disk.h"
#include "muster/runtime/memory/memory_pool.h"
#include "muster/trace/rows.h"
#include "muster/train/checkpoints.h"

namespace muster::checkpoints_async_test {
namespace {

using testing_support::caught;

class SaveAsync : public testing::Test {
 protected:
  ~SaveAsync() override { std::filesystem::remove_all(directory_); }

  static bool is_write_of_data(std::string_view call, const std::string& path) {
    return call == "write" && path.ends_with(".safetensors");
  }
  static int full_disk(std::string_view call, const std::string& path) {
    return is_write_of_data(call, path) ? ENOSPC : 0;
  }

  const std::string directory_ = testing::TempDir() + "async-" + std::to_string(random_id());
  InProcessCluster cluster_{{.workers = 1, .ps = 2, .worker = {.storage = {testing::TempDir()}}}};
  ParameterServerStrategy strategy_{cluster_.resolver()};
  Variable a_ = strategy_.make<Variable>(torch::zeros({}), VariableOptions{.name = "a"});
  Variable b_ = strategy_.make<Variable>(torch::zeros({}), VariableOptions{.name = "b"});
};

TEST_F(SaveAsync, LetsStepsGoOnWhileTheDiskTakesItsTime) {
  Checkpoints checkpoints(strategy_, {.directory = directory_});
  ClusterCoordinator coordinator(strategy_);
  auto step = function([&] {
    a_.assign_add(torch::ones({}));
    b_.assign_add(torch::ones({}));
  });
  absl::Notification disk_goes_on;
  disk::ScopedFaults faults([&](std::string_view call, const std::string& path) {
    if (is_write_of_data(call, path)) disk_goes_on.WaitForNotification();
    return 0;
  });

  checkpoints.save_async(1);
  for (int i = 0; i < 10; ++i) coordinator.schedule(step);
  coordinator.join();
  const float trained = a_.value().item<float>();
  const bool visible = std::filesystem::exists(directory_ + "/ckpt-1");
  disk_goes_on.Notify();
  checkpoints.wait();

  EXPECT_EQ(trained, 10);
  EXPECT_FALSE(visible);
  EXPECT_EQ(checkpoints.newest(), 1);
  EXPECT_EQ(checkpoints.restore(), 1);
}

TEST_F(SaveAsync, SavesOneAfterTheOther) {
  Checkpoints checkpoints(strategy_, {.directory = directory_});

  for (int step = 1; step <= 3; ++step) {
    a_.assign(torch::full({}, static_cast<float>(step)));
    checkpoints.save_async(step, {{"step", std::to_string(step)}});
    checkpoints.wait();
  }
  checkpoints.save_async(4);
  checkpoints.save_async(5);
  checkpoints.save(6);

  EXPECT_EQ(checkpoints.restore({.step = 4}), 4);
  EXPECT_EQ(checkpoints.restore(), 6);
  EXPECT_EQ(a_.value().item<float>(), 3);
}

TEST_F(SaveAsync, HasRemovedOlderOnesForWhoWaits) {
  Checkpoints checkpoints(strategy_, {.directory = directory_, .keep = 1});

  for (int step = 1; step <= 4; ++step) checkpoints.save_async(step);
  checkpoints.wait();

  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) left.push_back(entry.path().filename());
  EXPECT_THAT(left, testing::ElementsAre("ckpt-4"));
}

TEST_F(SaveAsync, TellsWhoWaitsWhatWentWrong) {
  Checkpoints checkpoints(strategy_, {.directory = directory_});
  {
    disk::ScopedFaults full(full_disk);
    checkpoints.save_async(1);
    EXPECT_EQ(caught([&] { checkpoints.wait(); }).code(), StatusCode::kResourceExhausted);
  }

  EXPECT_EQ(caught([&] { checkpoints.wait(); }).code(), StatusCode::kOk) << "it is told once";
  EXPECT_EQ(checkpoints.newest(), std::nullopt);
}

TEST_F(SaveAsync, TellsWhoSavesNextWhatWentWrong) {
  Checkpoints checkpoints(strategy_, {.directory = directory_});
  disk::ScopedFaults full(full_disk);

  checkpoints.save_async(1);

  EXPECT_EQ(caught([&] { checkpoints.save_async(2); }).code(), StatusCode::kResourceExhausted);
}

TEST_F(SaveAsync, HasNoValuesOfBeforeAndAfterARestoreOfAnotherThread) {
  int64_t number = 0;
  Checkpoints checkpoints(strategy_, {.directory = directory_,
                                      .keep = 1'000,
                                      .objects = {{"a", a_}, {"b", b_}, {"number", CheckpointObject(&number)}}});
  int64_t last = 2;
  for (int64_t step = 1; step <= last; ++step) {
    for (Variable* each : {&a_, &b_}) each->assign(torch::full({}, static_cast<float>(step)));
    number = step;
    checkpoints.save(step);
  }
  {
    std::atomic<bool> restored = false;
    std::jthread restoring([&] {
      for (int i = 0; i < 100; ++i) checkpoints.restore({.step = 1 + i % 2});
      restored = true;
    });
    while (!restored) {
      checkpoints.save_async(++last);
      checkpoints.save(++last);
    }
  }

  for (int64_t step = 3; step <= last; ++step) {
    checkpoints.restore({.step = step});
    EXPECT_EQ(a_.value().item<int64_t>(), number) << step;
    EXPECT_EQ(b_.value().item<int64_t>(), number) << step;
  }
}

TEST_F(SaveAsync, LogsWhatWentWrongWhenNobodyAsks) {
  LogCapture log;
  disk::ScopedFaults full(full_disk);

  { Checkpoints(strategy_, {.directory = directory_}).save_async(1); }

  EXPECT_TRUE(log.contains("was not saved: "));
  EXPECT_TRUE(log.contains("No space left on device"));
}

// Under a strategy of this process, with a disk that takes its time until it is told to go on.
class SaveAsyncHere : public testing::Test {
 protected:
  ~SaveAsyncHere() override { std::filesystem::remove_all(directory_); }

  static std::vector<Strategy> strategies() {
    const std::vector<std::string> devices{"/device:CPU:0", "/device:CPU:1"};
    return {Strategy(), OneDeviceStrategy("/device:CPU:1"), MirroredStrategy(devices), CentralStorageStrategy()};
  }
  static Variable made(const Strategy& strategy, const at::Tensor& value, const std::string& name = "here") {
    return strategy.make<Variable>(value, VariableOptions{.name = name});
  }

  int hold(std::string_view call, const std::string& path) {
    if (call != "write" || !path.ends_with(".safetensors")) return 0;
    if (!writing_.HasBeenNotified()) writing_.Notify();
    goes_on_.WaitForNotification();
    return 0;
  }

  const std::string directory_ = testing::TempDir() + "async-here-" + std::to_string(random_id());
  absl::Notification writing_, goes_on_;
};

TEST_F(SaveAsyncHere, LetsStepsGoOnUnderEveryStrategy) {
  for (const Strategy& strategy : strategies()) {
    absl::Notification goes_on;
    disk::ScopedFaults faults([&](std::string_view call, const std::string& path) {
      if (call == "write" && path.ends_with(".safetensors")) goes_on.WaitForNotification();
      return 0;
    });
    const auto v = strategy.make<Variable>(
        torch::zeros({4}), VariableOptions{.name = "here", .aggregation = Aggregation::kOnlyFirstReplica});
    auto step = function([&] { Variable(v).assign_add(torch::ones({4})); });
    Checkpoints checkpoints(strategy, {.directory = directory_, .objects = {{"v", v}}});

    checkpoints.save_async(1);
    for (int i = 0; i < 10; ++i) strategy.run(step);
    const float trained = v.value()[3].item<float>();
    const bool visible = std::filesystem::exists(directory_ + "/ckpt-1");
    goes_on.Notify();
    checkpoints.wait();

    EXPECT_EQ(trained, 10);
    EXPECT_FALSE(visible);
    EXPECT_EQ(checkpoints.restore(), 1);
    std::filesystem::remove_all(directory_);
  }
}

TEST_F(SaveAsyncHere, SavesWhatIsDroppedMeanwhileAndNothingThatIsMadeMeanwhile) {
  disk::ScopedFaults faults([&](std::string_view call, const std::string& path) { return hold(call, path); });
  auto first = std::make_unique<Variable>(made(Strategy(), torch::full({2}, 3.0F), "dropped_a"));
  auto second = std::make_unique<Variable>(made(Strategy(), torch::full({2}, 4.0F), "dropped_b"));
  Checkpoints checkpoints(Strategy(), {.directory = directory_});

  checkpoints.save_async(1);
  first.reset();
  second.reset();
  const Variable later = made(Strategy(), torch::ones({2}), "later");
  goes_on_.Notify();
  checkpoints.wait();

  const CheckpointReader reader(directory_ + "/ckpt-1");
  EXPECT_FALSE(reader.has("later"));
  for (const auto& [name, expected] : {std::pair("dropped_a", 3.0F), {"dropped_b", 4.0F}}) {
    std::array<float, 2> values{};
    reader.read(name, 0, 2, std::as_writable_bytes(std::span(values)));
    EXPECT_THAT(values, testing::Each(expected));
  }
}

TEST_F(SaveAsyncHere, SavesASmallVariableAsItWasWhenItWasReadWhoeverAssignsToIt) {
  disk::ScopedFaults faults([&](std::string_view call, const std::string& path) { return hold(call, path); });
  Variable v = made(Strategy(), torch::ones({1024}));
  Checkpoints checkpoints(Strategy(), {.directory = directory_, .objects = {{"v", v}}});

  checkpoints.save_async(1);
  writing_.WaitForNotification();  // it has been read
  v.assign(torch::full({1024}, 2.0F));
  goes_on_.Notify();
  checkpoints.wait();
  checkpoints.restore();

  EXPECT_TRUE(torch::equal(v.value(), torch::ones({1024})));
}

TEST_F(SaveAsyncHere, HasWhatIsRestoredMeanwhileByAnotherAsWholeVariables) {
  Variable a = made(Strategy(), torch::ones({64}), "a"), b = made(Strategy(), torch::ones({64}), "b");
  const std::map<std::string, CheckpointObject> objects{{"a", a}, {"b", b}};
  Checkpoints other(Strategy(), {.directory = directory_ + "/other", .objects = objects});
  for (int64_t step = 1; step <= 2; ++step) {
    for (Variable* each : {&a, &b}) each->assign(torch::full({64}, static_cast<float>(step)));
    other.save(step);
  }
  Checkpoints checkpoints(Strategy(), {.directory = directory_ + "/own", .keep = 100, .objects = objects});
  {
    const std::jthread restoring([&](const std::stop_token& stop) {
      for (int64_t i = 0; !stop.stop_requested(); ++i) other.restore({.step = 1 + i % 2});
    });
    for (int64_t step = 1; step <= 20; ++step) checkpoints.save_async(step);
    checkpoints.wait();
  }

  for (int64_t step = 1; step <= 20; ++step) {
    checkpoints.restore({.step = step});
    for (const Variable& each : {a, b}) {
      const at::Tensor value = each.value();
      EXPECT_TRUE(torch::equal(value, torch::full({64}, value[0].item<float>()))) << step;
    }
  }
}

TEST_F(SaveAsyncHere, IsWaitedForByWhoSavesRestoresOrDestroys) {
  disk::ScopedFaults faults([&](std::string_view call, const std::string& path) { return hold(call, path); });
  Variable v = made(Strategy(), torch::ones({2}));
  const CheckpointsOptions options{.directory = directory_, .objects = {{"v", v}}};
  std::jthread lets_go_on([&] {
    writing_.WaitForNotification();
    goes_on_.Notify();
  });

  { Checkpoints(Strategy(), options).save_async(1); }
  const bool there = std::filesystem::exists(directory_ + "/ckpt-1");
  Checkpoints checkpoints(Strategy(), options);
  checkpoints.save_async(2);
  checkpoints.save(3);
  checkpoints.save_async(4);

  EXPECT_TRUE(there);
  EXPECT_EQ(checkpoints.restore(), 4);
}

TEST_F(SaveAsyncHere, TellsWhoWaitsOrSavesNextWhatWentWrong) {
  const Variable v = made(Strategy(), torch::ones({2}));
  Checkpoints checkpoints(Strategy(), {.directory = directory_, .objects = {{"v", v}}});
  const auto full = [](std::string_view call, const std::string& path) {
    return call == "write" && path.ends_with(".safetensors") ? ENOSPC : 0;
  };
  {
    disk::ScopedFaults faults(full);
    checkpoints.save_async(1);
    EXPECT_EQ(caught([&] { checkpoints.wait(); }).code(), StatusCode::kResourceExhausted);
    checkpoints.save_async(2);
    EXPECT_EQ(caught([&] { checkpoints.save(3); }).code(), StatusCode::kResourceExhausted);
  }

  EXPECT_EQ(checkpoints.newest(), std::nullopt);
  checkpoints.save(4);
  EXPECT_EQ(checkpoints.restore(), 4);
}

TEST_F(SaveAsyncHere, IsNotWhatASaveBetweenStepsIs) {
  const Variable v = made(Strategy(), torch::ones({2}));
  Checkpoints checkpoints(Strategy(), {.directory = directory_, .objects = {{"v", v}}});

  checkpoints.save_between_steps(1);

  EXPECT_TRUE(std::filesystem::exists(directory_ + "/ckpt-1"));
}

TEST_F(SaveAsyncHere, BetweenStepsIsOfThatMomentThoughItAppearsAfterSavesOfOthers) {
  Variable v = made(Strategy(), torch::ones({2}));
  Checkpoints checkpoints(Strategy(), {.directory = directory_, .objects = {{"v", v}}});
  std::promise<Status> another;

  checkpoints.save_between_steps(1, {}, {another.get_future().share()});
  v.assign(torch::zeros({2}));
  const bool shown_before = std::filesystem::exists(directory_ + "/ckpt-1");
  const bool under_way = checkpoints.save_is_under_way();
  another.set_value(Status());
  checkpoints.wait();

  EXPECT_FALSE(shown_before);
  EXPECT_TRUE(under_way);
  EXPECT_FALSE(checkpoints.being_saved().valid());
  EXPECT_EQ(checkpoints.restore(), 1);
  EXPECT_TRUE(v.value().equal(torch::ones({2})));
}

TEST_F(SaveAsyncHere, BetweenStepsFailsWithASaveOfAnotherAndLeavesNothing) {
  const Variable v = made(Strategy(), torch::ones({2}));
  Checkpoints checkpoints(Strategy(), {.directory = directory_, .objects = {{"v", v}}});
  std::promise<Status> another;

  checkpoints.save_between_steps(1, {}, {another.get_future().share()});
  another.set_value(Status(StatusCode::kResourceExhausted, "the disk of another is full"));
  const Status own = checkpoints.being_saved().get();
  const Status thrown = caught([&] { checkpoints.wait(); });

  EXPECT_EQ(own.code(), StatusCode::kResourceExhausted) << own;
  EXPECT_EQ(thrown.message(), "a checkpoint that this one knows of was not saved: the disk of another is full");
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(SaveAsyncHere, BetweenStepsStoresNothingForASaveOfAnotherThatHasFailed) {
  const Variable v = made(Strategy(), torch::ones({2}));
  Checkpoints checkpoints(Strategy(), {.directory = directory_, .objects = {{"v", v}}});
  std::promise<Status> another;
  another.set_value(Status(StatusCode::kResourceExhausted, "the disk of another is full"));
  std::atomic<int> writes = 0;
  disk::ScopedFaults faults([&](std::string_view call, const std::string& path) {
    if (call == "write" && path.ends_with(".safetensors")) ++writes;
    return 0;
  });

  checkpoints.save_between_steps(1, {}, {another.get_future().share()});

  EXPECT_EQ(caught([&] { checkpoints.wait(); }).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(writes, 0);
}

TEST_F(SaveAsyncHere, HoldsAFewPiecesOfALargeVariableAndNoCopyOfIt) {
  constexpr int64_t kBytes = 32 << 20;
  Variable v = made(Strategy(), torch::zeros({kBytes / 4096, 1024}));
  auto step = function([&] { scatter(v, Scatter::kUpdate, torch::zeros({1}, torch::kLong), torch::ones({1, 1024})); });
  step();
  int64_t before = 0, most = 0;  // of this process, while it is written
  disk::ScopedFaults faults([&](std::string_view call, const std::string& path) {
    if (call != "write" || !path.ends_with(".safetensors")) return 0;
    if (!writing_.HasBeenNotified()) writing_.Notify();
    goes_on_.WaitForNotification();
    step();  // between any two pieces
    most = std::max(most, resident_memory());
    return 0;
  });
  Checkpoints checkpoints(Strategy(), {.directory = directory_, .objects = {{"v", v}}});

  checkpoints.save_async(1);
  writing_.WaitForNotification();
  before = resident_memory();
  goes_on_.Notify();
  checkpoints.wait();

  EXPECT_LT(most - before, kBytes / 2);
}

}  // namespace
}  // namespace muster::checkpoints_async_test

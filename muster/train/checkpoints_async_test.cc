// Checkpoints that are saved while training goes on.
#include <absl/synchronization/notification.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <thread>

#include "muster/base/log.h"
#include "muster/base/test_errors.h"
#include "muster/cluster/in_process_cluster.h"
#include "muster/distribute/cluster_coordinator.h"
#include "muster/io/disk.h"
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

TEST(SaveAsyncHere, HasSavedWhenItReturnsWhereStepsChangeAllVariablesTogether) {
  const std::string directory = testing::TempDir() + "async-here-" + std::to_string(random_id());
  const Variable v(torch::ones({}), VariableOptions{.name = "async_here"});
  Checkpoints checkpoints(Strategy(), {.directory = directory});

  checkpoints.save_async(1);

  EXPECT_TRUE(std::filesystem::exists(directory + "/ckpt-1"));
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace muster::checkpoints_async_test

#include "muster/io/remains.h"

#include <absl/synchronization/notification.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <thread>

#include "muster/base/log.h"
#include "muster/io/disk.h"
#include "muster/io/test_checkpoints.h"

namespace muster::remains_test {
namespace {

using namespace ::muster::testing_support;
using ::testing::ElementsAre;

TEST(BackgroundRemoval, RemovesOnAnotherThreadAndIsAwaited) {
  ScopedDirectory scratch;
  for (const char* name : {"a", "b"}) std::filesystem::create_directory(scratch.path(name));
  std::vector<std::thread::id> threads;
  disk::ScopedFaults watch([&](std::string_view call, const std::string&) {
    if (call == "remove") threads.push_back(std::this_thread::get_id());
    return 0;
  });

  {
    BackgroundRemoval removal;
    removal.remove({scratch.path("a")});
    removal.wait();
    EXPECT_THAT(names_in(scratch.path()), ElementsAre("b"));
    removal.remove({scratch.path("b")});
  }

  EXPECT_THAT(names_in(scratch.path()), testing::IsEmpty());
  ASSERT_EQ(threads.size(), 2u);
  for (const std::thread::id& thread : threads) EXPECT_NE(thread, std::this_thread::get_id());
}

TEST(BackgroundRemoval, LogsWhatItCannotRemove) {
  ScopedDirectory scratch;
  std::filesystem::create_directory(scratch.path("stays"));
  LogCapture log;
  disk::ScopedFaults faults([](std::string_view call, const std::string&) { return call == "remove" ? EACCES : 0; });

  { BackgroundRemoval().remove({scratch.path("stays")}); }

  EXPECT_TRUE(log.contains("stays is not needed and stays: Permission denied"));
}

TEST(BackgroundRemoval, HoldsUpNobodyWhoKeepsTheNewest) {
  ScopedDirectory scratch;
  CheckpointDirectory directory(scratch.path());
  for (int64_t step = 1; step <= 3; ++step) save(directory, step);
  absl::Notification returned;
  std::atomic<bool> waited_in_vain = false;
  disk::ScopedFaults slow([&](std::string_view call, const std::string&) {
    if (call == "remove") waited_in_vain = !returned.WaitForNotificationWithTimeout(absl::Seconds(60));
    return 0;
  });

  directory.keep_and_remove_later(1);
  std::vector<std::string> steps;
  for (const std::string& name : names_in(scratch.path())) {
    if (name.starts_with("ckpt-")) steps.push_back(name);
  }
  returned.Notify();

  EXPECT_THAT(steps, ElementsAre("ckpt-3"));
  EXPECT_FALSE(waited_in_vain);
}

TEST(BackgroundRemoval, IsDoneWhenTheDirectoryIsDestroyed) {
  ScopedDirectory scratch;
  {
    CheckpointDirectory directory(scratch.path());
    for (int64_t step = 1; step <= 3; ++step) {
      save(directory, step);
      directory.keep_and_remove_later(1);
    }
  }

  EXPECT_THAT(names_in(scratch.path()), ElementsAre("ckpt-3"));
}

}  // namespace
}  // namespace muster::remains_test

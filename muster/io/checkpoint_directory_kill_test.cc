// Writers that are killed. Whatever they had done, the last complete checkpoint is there and can be read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <functional>

#include "muster/base/status.h"
#include "muster/io/checkpoint_differences.h"
#include "muster/io/disk.h"
#include "muster/io/output_file.h"
#include "muster/io/row_names.h"
#include "muster/io/safetensors.h"
#include "muster/io/test_checkpoints.h"

namespace muster {
namespace {

using namespace ::muster::testing_support;
using ::testing::ElementsAre;

pid_t in_child(const std::function<void()>& act) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      act();
      _exit(0);
    } catch (...) {
      _exit(1);
    }
  }
  return child;
}

// Runs `act` in a process that is then killed, without a destructor.
void run_and_kill(const std::function<void()>& act) {
  const pid_t child = in_child([&] {
    act();
    std::raise(SIGKILL);
  });
  int how = 0;
  ASSERT_EQ(waitpid(child, &how, 0), child);
  ASSERT_TRUE(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
}

// Kills the process at the end of its system call number `calls`. True when it came to its own end before that.
bool killed_after_calls(const std::function<void()>& act, int calls) {
  const pid_t child = in_child([&] {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(2);
    std::raise(SIGSTOP);
    act();
  });
  int how = 0;
  waitpid(child, &how, 0);
  for (int stop = 0; WIFSTOPPED(how) && stop < 2 * calls; ++stop) {  // a call stops where it begins and where it ends
    ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    waitpid(child, &how, 0);
  }
  if (!WIFSTOPPED(how)) {
    EXPECT_TRUE(WIFEXITED(how) && WEXITSTATUS(how) == 0) << how;
    return true;
  }
  kill(child, SIGKILL);
  waitpid(child, &how, 0);
  return false;
}

bool may_trace() {
  const pid_t child = in_child([] { _exit(ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0 ? 0 : 1); });
  int how = 0;
  waitpid(child, &how, 0);
  return WIFEXITED(how) && WEXITSTATUS(how) == 0;
}

class KilledWriter : public ::testing::Test {
 protected:
  KilledWriter() : directory_(scratch_.path()) { save(directory_, 1); }

  // What the next process finds, and that it can go on: with cleaning up and with the same step.
  void expect_latest(int64_t step) {
    EXPECT_EQ(latest_intact_step(directory_), step);
    directory_.keep(1);
    EXPECT_THAT(names_in(scratch_.path()), ElementsAre("ckpt-" + std::to_string(step)));
    if (step == 1) save(directory_, 2);
    EXPECT_EQ(latest_intact_step(directory_), 2);
  }

  // `save_second` saves step 2, and is killed after each of its calls in turn.
  void expect_one_before_or_new_after_any_call(const std::function<void()>& save_second) {
    int64_t step = 1;
    int killed = 0;

    // How many calls come before a file is whole differs: a thread of its own writes it.
    for (bool ended = false; !ended; ++killed) {
      ended = killed_after_calls(save_second, killed + 1);

      step = latest_intact_step(directory_);
      ASSERT_TRUE(step == 1 || step == 2) << "step " << step << " after call " << killed;
      directory_.keep(2);
      ASSERT_EQ(names_in(scratch_.path()).size(), static_cast<size_t>(step));
      directory_.remove(2);
      ASSERT_EQ(latest_intact_step(directory_), 1);
    }

    EXPECT_EQ(step, 2) << "nobody killed it";
    EXPECT_GT(killed, 20);
  }

  ScopedDirectory scratch_;
  CheckpointDirectory directory_;
};

TEST_F(KilledWriter, BeforeTheDataLeavesTheOneBefore) {
  run_and_kill([&] { CheckpointDirectory(scratch_.path()).begin(2); });

  expect_latest(1);
}

TEST_F(KilledWriter, AmidTheDataLeavesTheOneBefore) {
  run_and_kill([&] {
    CheckpointDirectory directory(scratch_.path());
    const std::string temporary = directory.begin(2);
    write_rows(temporary, "ps0", 2, 0, 2, 4);
    SafetensorsWriter writer(temporary + "/shard-ps1.safetensors",
                             {{"a", {DType::kByte, {1}}}, {"b", {DType::kByte, {1}}}});
    writer.write("a", bytes_of(std::vector<uint8_t>{1}));
    std::raise(SIGKILL);
  });

  expect_latest(1);
}

TEST_F(KilledWriter, BetweenIndexAndRenameLeavesTheOneBefore) {
  run_and_kill([&] {
    CheckpointDirectory directory(scratch_.path());
    const std::string temporary = directory.begin(2);
    const std::string text = to_json(write_shards(temporary, 2, 4, 2));
    OutputFile file(temporary + "/index.json");
    file.write(std::as_bytes(std::span(text)));
    file.finish();
    std::raise(SIGKILL);
  });

  expect_latest(1);
}

TEST_F(KilledWriter, AfterTheRenameLeavesTheNewOne) {
  run_and_kill([&] {
    CheckpointDirectory directory(scratch_.path());
    save(directory, 2);
    std::raise(SIGKILL);
  });

  expect_latest(2);
}

TEST_F(KilledWriter, AfterAnySystemCallLeavesTheOneBeforeOrTheNewOne) {
  if (!may_trace()) GTEST_SKIP() << "this machine does not let processes trace their children";
  expect_one_before_or_new_after_any_call([&] { save(directory_, 2); });
}

// Rows of "w" that have changed, here all of them, on top of the checkpoint of step 1.
void save_on_top_of_the_first(CheckpointDirectory& directory, int64_t step) {
  const std::string temporary = directory.begin(step);
  const CheckpointIndex base = directory.index(1);
  if (!link_base(directory.path_of(1), base, temporary)) throw internal("no links");
  CheckpointIndex index{.step = step};
  for (const auto& [first, count] : shards_of(4, 2)) {
    const std::vector<int32_t> values = rows_of_step(step, first, count);
    const std::vector<int64_t> ids = {first, first + 1};
    for (ShardEntry& entry : write_shard(
             temporary, "/job:ps/task:" + std::to_string(first / 2),
             {{RowName{"w", RowName::kRows, first, 1}.text(), {DType::kInt, {2, 2}}, {2, 2}, 0, bytes_of(values)},
              {RowName{"w", RowName::kIds, first, 1}.text(), {DType::kLong, {2}}, {2}, 0, bytes_of(ids)}})) {
      index.entries.push_back(std::move(entry));
    }
  }
  index.entries = on_top_of(base, std::move(index.entries), temporary);
  directory.commit(temporary, std::move(index));
}

TEST_F(KilledWriter, OfADifferenceLeavesTheOneBeforeOrTheNewOne) {
  if (!may_trace()) GTEST_SKIP() << "this machine does not let processes trace their children";
  expect_one_before_or_new_after_any_call([&] { save_on_top_of_the_first(directory_, 2); });
}

TEST_F(KilledWriter, OfRemovalsLeavesTheNewest) {
  if (!may_trace()) GTEST_SKIP() << "this machine does not let processes trace their children";

  for (int calls = 1, ended = false; !ended; ++calls) {
    if (calls > 1) save(directory_, calls);
    save(directory_, calls + 1000);
    ended = killed_after_calls([&] { directory_.keep(1); }, calls);

    ASSERT_EQ(latest_intact_step(directory_), calls + 1000) << "after call " << calls;
    directory_.remove(calls + 1000);
    directory_.remove(calls);
  }
}

TEST_F(KilledWriter, WhileItRemovesLeavesNothingThatIsTakenForACheckpoint) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "it ends a process that starts a thread after a fork";
#endif
  save(directory_, 2);
  save(directory_, 3);
  run_and_kill([&] {
    disk::ScopedFaults killed([](std::string_view call, const std::string& path) {
      if (call != "remove") return 0;
      std::filesystem::remove(path + "/index.json");  // it has begun
      std::raise(SIGKILL);
      return 0;
    });
    CheckpointDirectory(scratch_.path()).keep_and_remove_later(1);
  });

  EXPECT_THAT(steps_of(directory_), ElementsAre(3));
  EXPECT_EQ(directory_.present().size(), 1u);
  EXPECT_EQ(names_in(scratch_.path()).size(), 3u);
  directory_.keep(1);
  EXPECT_THAT(names_in(scratch_.path()), ElementsAre("ckpt-3"));
}

}  // namespace
}  // namespace muster

#include "muster/io/checkpoint_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <optional>
#include <thread>
#include <utility>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/io/disk.h"
#include "muster/io/safetensors.h"
#include "muster/io/test_checkpoints.h"
#include "muster/io/test_files.h"

namespace muster {
namespace {

using namespace ::muster::testing_support;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

TEST(CheckpointDirectory, HasNoneBeforeTheFirst) {
  ScopedDirectory scratch;
  CheckpointDirectory directory(scratch.path("new/er"));

  EXPECT_EQ(directory.latest(), std::nullopt);
  EXPECT_THAT(directory.all(), IsEmpty());
  EXPECT_EQ(caught([&] { (void)directory.index(1); }).code(), StatusCode::kNotFound);
  directory.keep(1);
}

TEST(CheckpointDirectory, IsMadeWithThoseAboveItSoThatAPowerCutLeavesThem) {
  ScopedDirectory scratch;
  CheckpointDirectory directory(scratch.path("new/er"));
  std::vector<std::string> synced;
  disk::ScopedFaults watch([&](std::string_view call, const std::string& path) {
    if (call == "fsync") synced.push_back(path);
    return 0;
  });

  directory.make();
  directory.make();

  EXPECT_TRUE(std::filesystem::is_directory(scratch.path("new/er")));
  EXPECT_THAT(synced, UnorderedElementsAre(scratch.path(), scratch.path("new")));
}

TEST(CheckpointDirectory, ShowsACheckpointOnlyOnceItIsCommitted) {
  ScopedDirectory scratch;
  CheckpointDirectory directory(scratch.path("new/er"));

  const std::string temporary = directory.begin(9);
  CheckpointIndex index = write_shards(temporary, 9, 4, 2);
  index.metadata = {{"by", "test"}};
  EXPECT_EQ(directory.latest(), std::nullopt);
  const std::string path = directory.commit(temporary, index);

  EXPECT_EQ(path, scratch.path("new/er/ckpt-9"));
  EXPECT_EQ(directory.latest(), (Checkpoint{9, path}));
  EXPECT_THAT(names_in(path),
              UnorderedElementsAre("index.json", "shard-job-ps-task-0.safetensors", "shard-job-ps-task-1.safetensors"));
  EXPECT_THAT(names_in(directory.path()), ElementsAre("ckpt-9"));
  EXPECT_EQ(directory.index(9).entries, index.entries);
  EXPECT_EQ(directory.index(9).metadata, index.metadata);
}

TEST(CheckpointDirectory, GivesTheHighestStepAsTheLatest) {
  ScopedDirectory scratch;
  CheckpointDirectory directory(scratch.path());

  for (int64_t step : {10, 9, 100}) save(directory, step);

  EXPECT_THAT(steps_of(directory), ElementsAre(9, 10, 100));
  EXPECT_EQ(latest_intact_step(directory), 100);

  std::filesystem::create_directories(scratch.path("ckpt-9223372036854775807"));
  EXPECT_EQ(directory.latest_index()->step, 100) << "nobody can count on from that one";
  EXPECT_THROW(directory.begin(INT64_MAX), Error);
}

TEST(CheckpointDirectory, PassesOverTheDamagedAndSaysSo) {
  ScopedDirectory scratch;
  CheckpointDirectory directory(scratch.path());
  for (int64_t step = 1; step <= 5; ++step) save(directory, step);
  std::filesystem::remove(scratch.path("ckpt-2/shard-job-ps-task-1.safetensors"));
  std::filesystem::remove(scratch.path("ckpt-3/index.json"));
  std::filesystem::resize_file(scratch.path("ckpt-4/shard-job-ps-task-0.safetensors"), 100);
  write_file(scratch.path("ckpt-5/index.json"), read_file(scratch.path("ckpt-1/index.json")));
  for (const char* name : {"ckpt-", "ckpt-007", "ckpt--8", "ckpt-9x", "ckpt-99999999999999999999", "other"}) {
    std::filesystem::copy(scratch.path("ckpt-1"), scratch.path(name));
  }
  LogCapture log;

  EXPECT_EQ(latest_intact_step(directory), 1);
  EXPECT_THAT(steps_of(directory), ElementsAre(1));
  EXPECT_TRUE(log.contains("ckpt-2 is damaged"));
  EXPECT_TRUE(log.contains("ckpt-5 is damaged and not used: checkpoint"));
  for (int64_t step : {2, 3, 4, 5}) {
    EXPECT_EQ(caught([&] { (void)directory.index(step); }).code(), StatusCode::kDataLoss) << step;
  }
}

TEST(CheckpointDirectory, PassesOverWhatSomebodyElseRemovesMeanwhileAndSaysNothing) {
  ScopedDirectory scratch;
  CheckpointDirectory directory(scratch.path());
  for (int64_t step = 1; step <= 2; ++step) save(directory, step);
  bool removed = false;
  const disk::ScopedFaults another_job([&](std::string_view, const std::string& path) {
    const std::string newest = scratch.path("ckpt-2");
    if (path.starts_with(newest + "/") && !std::exchange(removed, true)) std::filesystem::remove_all(newest);
    return 0;
  });
  LogCapture log;

  EXPECT_EQ(latest_intact_step(directory), 1);

  EXPECT_TRUE(removed);
  EXPECT_FALSE(log.contains("damaged"));
}

TEST(CheckpointDirectory, ReplacesADamagedCheckpointButNotASoundOne) {
  LogCapture quiet;
  ScopedDirectory scratch;
  CheckpointDirectory directory(scratch.path());
  save(directory, 1);
  save(directory, 2);
  write_file(scratch.path("ckpt-2/index.json"), "{}");

  save(directory, 2);
  Status status = caught([&] { save(directory, 1); });

  EXPECT_EQ(latest_intact_step(directory), 2);
  EXPECT_EQ(status.code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(status.message(), HasSubstr("ckpt-1"));
  EXPECT_THAT(names_in(scratch.path()), Contains(HasSubstr("ckpt-2.damaged-"))) << "nothing is thrown away";
}

// Index and sizes are right: the damage is found when the data is read.
TEST(CheckpointDirectory, ReplacesACheckpointWhoseDataIsDamaged) {
  ScopedDirectory scratch;
  CheckpointDirectory directory(scratch.path());
  const std::string file = save(directory, 2) + "/shard-job-ps-task-1.safetensors";
  std::string damaged = read_file(file);
  damaged.back() ^= 1;
  write_file(file, damaged);
  LogCapture log;

  save(directory, 2);

  EXPECT_EQ(latest_intact_step(directory), 2);
  EXPECT_TRUE(log.contains("gives way to a new one: variable \"w\": file"));
}

TEST(CheckpointDirectory, RemovesWhatWasPutAsideWithTheOthersOfItsTime) {
  LogCapture quiet;
  ScopedDirectory scratch;
  CheckpointDirectory directory(scratch.path());
  save(directory, 2);
  write_file(scratch.path("ckpt-2/index.json"), "{}");
  save(directory, 2);
  save(directory, 3);

  directory.keep(2);
  EXPECT_EQ(names_in(scratch.path()).size(), 3u);
  directory.keep(1);

  EXPECT_THAT(names_in(scratch.path()), ElementsAre("ckpt-3"));
}

TEST(CheckpointDirectory, DoesNotReplaceACheckpointOfALaterVersion) {
  ScopedDirectory scratch;
  CheckpointDirectory directory(scratch.path());
  const std::string later = R"({"checksum":"c93007bf","format":"muster checkpoint","version":3})";
  std::filesystem::create_directory(scratch.path("ckpt-1"));
  write_file(scratch.path("ckpt-1/index.json"), later);

  EXPECT_EQ(caught([&] { save(directory, 1); }).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(caught([&] { (void)directory.latest(); }).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(read_file(scratch.path("ckpt-1/index.json")), later);
}

TEST(CheckpointDirectory, RefusesACheckpointThatCouldNotBeReadBack) {
  ScopedDirectory scratch;
  CheckpointDirectory directory(scratch.path());
  const std::string temporary = directory.begin(1);
  const CheckpointIndex index = write_shards(temporary, 1, 4, 2);
  const auto refused = [&](auto change) {
    CheckpointIndex changed = index;
    change(changed);
    return caught([&] { directory.commit(temporary, changed); });
  };

  EXPECT_THAT(refused([](CheckpointIndex& i) { i.entries.pop_back(); }).message(),
              HasSubstr("rows 2 to 3 are missing"));
  EXPECT_EQ(
      refused([](CheckpointIndex& i) { i.entries[0].spec.dtype = i.entries[1].spec.dtype = DType::kFloat; }).code(),
      StatusCode::kDataLoss);
  EXPECT_EQ(refused([](CheckpointIndex& i) { i.entries[0].file = i.entries[1].file; }).code(), StatusCode::kDataLoss);
  EXPECT_EQ(refused([](CheckpointIndex& i) { i.step = 2; }).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused([](CheckpointIndex& i) { i.metadata["\xff"] = ""; }).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(caught([&] { directory.commit(scratch.path("else"), index); }).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(directory.latest(), std::nullopt);
  directory.commit(temporary, index);
  EXPECT_EQ(latest_intact_step(directory), 1);
}

TEST(CheckpointDirectory, SurvivesAFullDisk) {
  ScopedDirectory scratch;
  CheckpointDirectory directory(scratch.path());
  save(directory, 1);
  const std::string temporary = directory.begin(2);
  auto faults = std::make_optional<disk::ScopedFaults>([](std::string_view call, const std::string& path) {
    return call == "write" && (path.ends_with("shard-full.safetensors") || path.ends_with("index.json")) ? ENOSPC : 0;
  });

  Status shard = caught([&] { write_rows(temporary, "full", 2, 0, 4, 4); });
  Status index = caught([&] { directory.commit(temporary, write_shards(temporary, 2, 4, 2)); });

  EXPECT_EQ(shard.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(shard.message(), AllOf(HasSubstr("shard-full.safetensors"), HasSubstr("No space left on device")));
  EXPECT_EQ(index.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(index.message(), HasSubstr("index.json"));
  EXPECT_EQ(latest_intact_step(directory), 1);
  directory.abandon(temporary);
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("ckpt-1"));
  faults.reset();
  save(directory, 2);
  EXPECT_EQ(latest_intact_step(directory), 2);
}

TEST(CheckpointDirectory, ReadsTheIndexOfTheLatestOnce) {
  LogCapture quiet;
  ScopedDirectory scratch;
  CheckpointDirectory directory(scratch.path());
  for (int64_t step = 1; step <= 3; ++step) save(directory, step);
  std::filesystem::remove(scratch.path("ckpt-3/index.json"));
  std::vector<std::string> read;
  const disk::ScopedFaults watch([&](std::string_view call, const std::string& path) {
    if (call == "open") read.push_back(path);
    return 0;
  });

  const std::optional<CheckpointIndex> index = directory.latest_index();

  ASSERT_TRUE(index.has_value());
  EXPECT_EQ(index->step, 2);
  EXPECT_THAT(read, ElementsAre(scratch.path("ckpt-3/index.json"), scratch.path("ckpt-2/index.json")));
}

TEST(CheckpointDirectory, KeepsTheNewest) {
  LogCapture quiet;
  ScopedDirectory scratch;
  CheckpointDirectory directory(scratch.path());
  for (int64_t step = 1; step <= 6; ++step) save(directory, step);
  std::filesystem::remove(scratch.path("ckpt-2/index.json"));
  std::filesystem::remove(scratch.path("ckpt-5/index.json"));

  directory.keep(9);
  EXPECT_THAT(steps_of(directory), ElementsAre(1, 3, 4, 6));
  directory.keep(2);

  // The damaged one in between stays: it is not older than all that are kept.
  EXPECT_THAT(names_in(scratch.path()), UnorderedElementsAre("ckpt-4", "ckpt-5", "ckpt-6"));
  EXPECT_EQ(caught([&] { directory.keep(0); }).code(), StatusCode::kInvalidArgument);
}

TEST(CheckpointDirectory, KeepsWhatWasJustWrittenHoweverOldItsStep) {
  ScopedDirectory scratch;
  CheckpointDirectory directory(scratch.path());
  for (int64_t step : {1, 3, 4, 5, 2}) save(directory, step);

  directory.keep(3, 2);

  EXPECT_THAT(steps_of(directory), ElementsAre(2, 3, 4, 5));
}

TEST(CheckpointDirectory, RemovesTemporariesOfTheDeadAndNotOfTheLiving) {
  ScopedDirectory scratch;
  CheckpointDirectory directory(scratch.path());
  const std::string living = directory.begin(1);
  { write_shards(CheckpointDirectory(scratch.path()).begin(2), 2, 4, 2); }
  ASSERT_EQ(names_in(scratch.path()).size(), 2u);

  directory.keep(1);
  CheckpointDirectory(scratch.path()).keep(1);

  EXPECT_THAT(names_in(scratch.path()), ElementsAre(living.substr(scratch.path().size() + 1)));
}

TEST(CheckpointDirectory, RemovesWhatTheDeadLeftWithoutACheckpoint) {
  ScopedDirectory scratch;
  CheckpointDirectory directory(scratch.path());
  save(directory, 1);
  save(directory, 2);
  const std::string living = directory.begin(3);
  { write_shards(CheckpointDirectory(scratch.path()).begin(4), 4, 4, 2); }
  std::filesystem::create_directories(scratch.path(".old-0123456789abcdef/data"));

  directory.remove_remains();

  EXPECT_THAT(names_in(scratch.path()),
              UnorderedElementsAre("ckpt-1", "ckpt-2", living.substr(scratch.path().size() + 1)));
}

TEST(CheckpointDirectory, TakesTwoWritersAtOnce) {
  ScopedDirectory scratch;
  CheckpointDirectory one(scratch.path());
  CheckpointDirectory two(scratch.path());

  const std::string first = one.begin(1);
  const std::string second = two.begin(2);
  const CheckpointIndex first_index = write_shards(first, 1, 4, 2);
  const CheckpointIndex second_index = write_shards(second, 2, 4, 3);
  two.commit(second, second_index);
  two.keep(1);
  one.commit(first, first_index);

  EXPECT_THAT(steps_of(one), ElementsAre(1, 2));
  EXPECT_EQ(latest_intact_step(two), 2);
}

TEST(CheckpointDirectory, LetsOneOfManyWritersOfAStepWin) {
  ScopedDirectory scratch;
  std::atomic<int> won = 0;
  std::atomic<int> lost = 0;

  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        CheckpointDirectory directory(scratch.path());
        Status status = caught([&] { save(directory, 1); });
        if (status.ok()) ++won;
        if (status.code() == StatusCode::kAlreadyExists) ++lost;
        directory.keep(1);
      });
    }
  }

  EXPECT_EQ(won, 1);
  EXPECT_EQ(lost, 3);
  CheckpointDirectory directory(scratch.path());
  directory.keep(1);
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("ckpt-1"));
  EXPECT_EQ(latest_intact_step(directory), 1);
}

TEST(WriteShard, StoresOnceAndNothingForATaskWithoutSlices) {
  ScopedDirectory scratch;

  EXPECT_THAT(write_shard(scratch.path(), "idle", {}), IsEmpty());
  EXPECT_THAT(names_in(scratch.path()), IsEmpty());
  write_rows(scratch.path(), "ps", 1, 0, 4, 4);
  EXPECT_EQ(caught([&] { write_rows(scratch.path(), "ps", 1, 0, 4, 4); }).code(), StatusCode::kAlreadyExists);
}

TEST(WriteShard, AlignsEveryTensorAndGivesWholeOnesTheirPlainName) {
  ScopedDirectory scratch;
  const std::vector<uint8_t> bytes = {1, 2, 3};
  const std::vector<double> doubles = {1.5};
  const std::vector<int16_t> shorts = {7, 8};

  write_shard(scratch.path(), "ps",
              {{"b", {DType::kByte, {3}}, {3}, 0, bytes_of(bytes)},
               {"s", {DType::kShort, {2}}, {4}, 2, bytes_of(shorts)},
               {"d", {DType::kDouble, {}}, {}, 0, bytes_of(doubles)}});

  SafetensorsFile file(scratch.path("shard-ps.safetensors"));
  EXPECT_THAT(file.names(), ElementsAre("d", "s[2:4]", "b"));
  EXPECT_THAT(file.metadata(), ElementsAre(std::pair("format", "pt")));
}

TEST(WriteShard, RefusesSlicesThatAreNotWhatTheySay) {
  ScopedDirectory scratch;
  const std::vector<float> values = {1, 2};
  const auto code = [&](const std::string& task, const Slice& slice) {
    return caught([&] { write_shard(scratch.path(), task, {slice}); }).code();
  };

  EXPECT_EQ(code("ps", {"w", {DType::kFloat, {3}}, {3}, 0, bytes_of(values)}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code("ps", {"w", {DType::kFloat, {2}}, {2}, 1, bytes_of(values)}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code("ps", {"w", {DType::kComplexDouble, {0}}, {0}, 0, {}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code("/", {"w", {DType::kFloat, {2}}, {2}, 0, bytes_of(values)}), StatusCode::kInvalidArgument);
  EXPECT_THAT(names_in(scratch.path()), IsEmpty());
}

}  // namespace
}  // namespace muster

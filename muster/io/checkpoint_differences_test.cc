#include "muster/io/checkpoint_differences.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <numeric>

#include "muster/base/log.h"
#include "muster/io/disk.h"
#include "muster/io/row_names.h"
#include "muster/io/test_checkpoints.h"

namespace muster::checkpoint_differences_test {
namespace {

using namespace ::muster::testing_support;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kRows = 6;

// "w" of kRows rows in two parts, of which some rows change at each step.
class Differences : public ::testing::Test {
 protected:
  void save_whole(int64_t step) {
    const std::string temporary = directory_.begin(step);
    commit(temporary, write_shards(temporary, step, kRows, 2));
    for (int64_t row = 0; row < kRows; ++row) expected_[static_cast<size_t>(row)] = step;
  }

  // One list of rows for each part, as the difference of that number.
  void save_on_top(int64_t step, int64_t number, const std::vector<std::vector<int64_t>>& changed) {
    const std::string temporary = directory_.begin(step);
    ASSERT_TRUE(link_base(directory_.path_of(base_.step), base_, temporary));
    CheckpointIndex index{.step = step};
    for (size_t part = 0; part < changed.size(); ++part) {
      for (ShardEntry& entry : write_difference(temporary, step, part, number, changed[part])) {
        index.entries.push_back(std::move(entry));
      }
      for (int64_t row : changed[part]) expected_[static_cast<size_t>(row)] = step;
    }
    index.entries = on_top_of(base_, std::move(index.entries), temporary);
    commit(temporary, std::move(index));
  }

  static std::vector<ShardEntry> write_difference(const std::string& temporary, int64_t step, size_t part,
                                                  int64_t number, const std::vector<int64_t>& ids) {
    std::vector<int32_t> values;
    for (int64_t row : ids) {
      for (int32_t value : rows_of_step(step, row, 1)) values.push_back(value);
    }
    const int64_t first = part == 0 ? 0 : kRows / 2, count = static_cast<int64_t>(ids.size());
    return write_shard(
        temporary, "/job:ps/task:" + std::to_string(part),
        {{RowName{"w", RowName::kRows, first, number}.text(),
          {DType::kInt, {count, 2}},
          {count, 2},
          0,
          bytes_of(values)},
         {RowName{"w", RowName::kIds, first, number}.text(), {DType::kLong, {count}}, {count}, 0, bytes_of(ids)}});
  }

  void commit(const std::string& temporary, CheckpointIndex index) {
    directory_.commit(temporary, index);
    base_ = std::move(index);
  }

  void expect_all(const CheckpointReader& reader) {
    for (int64_t first = 0; first < kRows; ++first) {
      for (int64_t count = 1; count <= kRows - first; ++count) {
        std::vector<int32_t> wanted;
        for (int64_t row = first; row < first + count; ++row) {
          for (int32_t value : rows_of_step(expected_[static_cast<size_t>(row)], row, 1)) wanted.push_back(value);
        }
        EXPECT_EQ(read_rows(reader, first, count), wanted) << count << " from " << first;
      }
    }
    for (const std::string& name : reader.names()) reader.check(name, 0, rows_of(reader.spec(name).sizes));
  }

  ScopedDirectory scratch_;
  CheckpointDirectory directory_{scratch_.path()};
  CheckpointIndex base_{.step = 0};
  std::vector<int64_t> expected_ = std::vector<int64_t>(kRows);
};

TEST_F(Differences, GiveWhatTheTableWasWhenTheLastOneWasMade) {
  save_whole(10);
  save_on_top(11, 1, {{0, 2}, {}});
  expect_all(CheckpointReader(directory_.path_of(11)));

  save_on_top(12, 2, {{2}, {3, 4, 5}});

  expect_all(CheckpointReader(directory_.path_of(12)));
}

TEST_F(Differences, NeedNothingOfTheirBaseButWhatTheyHaveLinksTo) {
  save_whole(10);
  save_on_top(11, 1, {{1}, {5}});
  save_on_top(12, 2, {{0}, {4}});

  directory_.keep(1);

  EXPECT_THAT(names_in(scratch_.path()), ElementsAre("ckpt-12"));
  EXPECT_EQ(names_in(directory_.path_of(12)).size(), 7u) << "an index, and a file of each task and step";
  expect_all(CheckpointReader(directory_.path_of(12)));
}

TEST_F(Differences, EndForAPartThatIsStoredAsAWhole) {
  save_whole(10);
  save_on_top(11, 1, {{1}, {5}});
  const std::string temporary = directory_.begin(12);
  ASSERT_TRUE(link_base(directory_.path_of(11), base_, temporary));
  std::vector<ShardEntry> stored = write_rows(temporary, "/job:ps/task:0", 12, 0, 3, kRows);
  for (ShardEntry& entry : write_difference(temporary, 12, 1, 2, {3})) stored.push_back(entry);

  commit(temporary, {.step = 12, .entries = on_top_of(base_, stored, temporary)});

  for (size_t row : {0, 1, 2, 3}) expected_[row] = 12;
  expect_all(CheckpointReader(directory_.path_of(12)));
  EXPECT_FALSE(std::filesystem::exists(directory_.path_of(12) + "/shard-job-ps-task-0.of-10.safetensors"));
}

TEST_F(Differences, AreNotMadeWhereThereAreNoLinksOrNoBase) {
  save_whole(10);
  const std::string temporary = directory_.begin(11);
  LogCapture log;
  {
    disk::ScopedFaults faults([calls = 0](std::string_view call, const std::string&) mutable {
      return call == "link" && ++calls == 2 ? EPERM : 0;
    });
    EXPECT_FALSE(link_base(directory_.path_of(10), base_, temporary));
  }
  EXPECT_TRUE(log.contains("no checkpoint is made on top of"));
  EXPECT_THAT(names_in(temporary), testing::IsEmpty());
  directory_.remove(10);
  EXPECT_FALSE(link_base(directory_.path_of(10), base_, temporary));
}

TEST_F(Differences, AreRefusedWithoutWhatTheyAreBasedOn) {
  save_whole(10);
  save_on_top(11, 1, {{1}, {5}});
  save_on_top(12, 2, {{1}, {5}});
  const auto without = [&](const std::string& variable) {
    CheckpointIndex index = base_;
    std::erase_if(index.entries, [&](const ShardEntry& entry) { return entry.variable == variable; });
    return complaint_about(index).value_or("");
  };

  EXPECT_EQ(complaint_about(base_), std::nullopt);
  EXPECT_THAT(without("w"), HasSubstr("variable \"w\" from row 0 on: difference 1 is of nothing"));
  EXPECT_THAT(without("w#ids@0+1"), HasSubstr("difference 1 has rows without their numbers"));
  EXPECT_THAT(without("w#rows@3+2"), HasSubstr("from row 3 on: difference 2 has numbers without their rows"));
  CheckpointIndex gap = base_;
  std::erase_if(gap.entries, [](const ShardEntry& entry) { return entry.variable.ends_with("@0+1"); });
  EXPECT_THAT(complaint_about(gap).value_or(""), HasSubstr("difference 2 lacks the one before"));
  EXPECT_EQ(caught([&] { on_top_of({.step = 1}, write_difference(directory_.begin(13), 13, 0, 1, {1}), ""); }).code(),
            StatusCode::kFailedPrecondition);
}

TEST_F(Differences, MakeAnIndexThatOlderReadersDoNotTakeForAWholeOne) {
  save_whole(10);
  EXPECT_THAT(to_json(base_), HasSubstr("\"version\":1"));
  save_on_top(11, 1, {{1}, {5}});
  EXPECT_THAT(to_json(base_), HasSubstr("\"version\":2"));
}

TEST_F(Differences, OfRowsThatTheTableHasNotAreDataLoss) {
  for (const std::vector<int64_t>& wrong : {std::vector<int64_t>{kRows}, {-1}, {2, 1}, {1, 1}}) {
    save_whole(base_.step + 10);
    const std::string temporary = directory_.begin(base_.step + 1);
    ASSERT_TRUE(link_base(directory_.path_of(base_.step), base_, temporary));
    std::vector<ShardEntry> stored = write_difference(temporary, base_.step + 1, 0, 1, wrong);
    for (ShardEntry& entry : write_difference(temporary, base_.step + 1, 1, 1, {})) stored.push_back(std::move(entry));
    commit(temporary, {.step = base_.step + 1, .entries = on_top_of(base_, std::move(stored), temporary)});
    const CheckpointReader reader(directory_.path_of(base_.step));

    EXPECT_EQ(caught([&] { read_rows(reader, 0, 2); }).code(), StatusCode::kDataLoss);
    EXPECT_EQ(caught([&] { reader.check("w", 0, kRows); }).code(), StatusCode::kDataLoss);
  }
}

TEST_F(Differences, ThatAreDamagedAreDataLoss) {
  save_whole(10);
  save_on_top(11, 1, {{1}, {5}});
  const std::string file = directory_.path_of(11) + "/shard-job-ps-task-1.safetensors";
  std::string bytes = read_file(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(file, bytes);

  const CheckpointReader reader(directory_.path_of(11));

  EXPECT_EQ(caught([&] { read_rows(reader, 0, kRows); }).code(), StatusCode::kDataLoss);
  EXPECT_EQ(caught([&] { reader.check("w", 0, kRows); }).code(), StatusCode::kDataLoss);
}

TEST(RowName, SaysWhatItWasMadeOf) {
  for (const char* text : {"t#rule@0", "t#rows@7", "a#b@c#ids@12+3"}) {
    const auto name = RowName::parse(text);
    ASSERT_TRUE(name) << text;
    EXPECT_EQ(name->text(), text);
  }
  EXPECT_EQ(RowName::parse("a#b@c#ids@12+3")->difference, 3);
  for (const char* text :
       {"w", "t#rows@007", "t#rows@-1", "t#rows@1+0", "t#rows@1+01", "t#others@1", "t@1", "t#rows"}) {
    EXPECT_FALSE(RowName::parse(text)) << text;
  }
}

}  // namespace
}  // namespace muster::checkpoint_differences_test

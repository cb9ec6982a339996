#include "muster/runtime/tuning/tuning_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "muster/base/test_errors.h"
#include "muster/io/test_files.h"

namespace muster::tuning_file_test {

using testing::HasSubstr;
using testing_support::error_of;
using testing_support::names_in;
using testing_support::read_file;
using testing_support::ScopedDirectory;
using testing_support::write_file;

const TuningKey kPool{"a processor, threads: 2", "aten::max_pool2d_with_indices float[2, 3]"};
const TuningKey kProduct{"a processor, threads: 2", "weight float[128, 784]"};

TEST(TuningFile, ComesBackAsItWasWritten) {
  const ScopedDirectory folder;
  const TuningFile file(folder.path("choices"));

  file.add({{kPool, {"channels_last"}}, {kProduct, {"rows"}}});

  const TuningTable table = file.read(false);
  ASSERT_EQ(table.size(), 2u);
  EXPECT_EQ(table.at(kPool).winner, "channels_last");
  EXPECT_EQ(table.at(kPool).line, 2);
  EXPECT_EQ(table.at(kProduct).winner, "rows");
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"choices"});
  EXPECT_EQ(read_file(file.path()),
            "muster tuning 1\n"
            "channels_last\ta processor, threads: 2\taten::max_pool2d_with_indices float[2, 3]\n"
            "rows\ta processor, threads: 2\tweight float[128, 784]\n");
}

TEST(TuningFile, KeepsWhatAnotherHasWrittenAndSaysSo) {
  const ScopedDirectory folder;
  const TuningFile ours(folder.path("choices")), theirs(folder.path("choices"));
  theirs.add({{kPool, {"native"}}});

  const TuningTable all = ours.add({{kPool, {"recorded"}}, {kProduct, {"columns"}}});

  EXPECT_EQ(all.at(kPool).winner, "native");
  EXPECT_EQ(all.at(kProduct).winner, "columns");
  EXPECT_EQ(theirs.read(false).size(), 2u);
}

TEST(TuningFile, LosesNothingOfManyWhoWriteAtOnce) {
  const ScopedDirectory folder;
  const TuningFile file(folder.path("choices"));
  constexpr int kThreads = 4, kEach = 10;

  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kEach; ++i) file.add({{{"m", std::to_string(t * kEach + i)}, {"recorded"}}});
      });
    }
  }

  EXPECT_EQ(file.read(false).size(), size_t{kThreads * kEach});
}

TEST(TuningFile, MayBeMissingOrEmptyBeforeTheFirstChoice) {
  const ScopedDirectory folder;
  const TuningFile file(folder.path("choices"));

  EXPECT_TRUE(file.read(true).empty());
  EXPECT_THAT(error_of(StatusCode::kNotFound, [&] { file.read(false); }), HasSubstr(file.path()));
  write_file(file.path(), "");
  EXPECT_TRUE(file.read(false).empty());
}

TEST(TuningFile, ThatIsDamagedIsAnErrorThatNamesItAndTheLine) {
  const std::string good = "muster tuning 1\nrows\tm\tw\n";
  auto error = [](const std::string& text) {
    return error_of(StatusCode::kDataLoss, [&] { parse_tuning(text, "the/file"); });
  };

  EXPECT_THAT(error("{\"model\": 1}\n"), HasSubstr("\"the/file\", line 1: expected \"muster tuning 1\""));
  EXPECT_THAT(error("muster tuning 2\n"), HasSubstr("line 1"));
  EXPECT_THAT(error(std::string("\0\1\2", 3)), HasSubstr("line 1: is cut off"));
  EXPECT_THAT(error(good + "rows\tm\n"), HasSubstr("line 3: expected a winner, a machine"));
  EXPECT_THAT(error(good + "\n"), HasSubstr("line 3: expected a winner, a machine"));
  EXPECT_THAT(error(good + "rows\tm\tw\tx\n"), HasSubstr("line 3: expected a winner, a machine"));
  EXPECT_THAT(error(good + "Rows!\tm\tv\n"), HasSubstr("line 3: expected the name of a winner"));
  EXPECT_THAT(error(good + "rows\t\tv\n"), HasSubstr("line 3: has no machine"));
  EXPECT_THAT(error(good + "rows\tm\tv"), HasSubstr("line 3: is cut off"));
  EXPECT_THAT(error(good + "columns\tm\tw\n"), HasSubstr("line 3: says \"columns\" of what line 2 says \"rows\" of"));
  EXPECT_EQ(parse_tuning(good, "the/file").size(), 1u);
}

TEST(TuningFile, ThatIsDamagedIsNotWrittenTo) {
  const ScopedDirectory folder;
  const TuningFile file(folder.path("choices"));
  write_file(file.path(), "notes of mine\n");

  EXPECT_THAT(error_of(StatusCode::kDataLoss, [&] { file.add({{kPool, {"native"}}}); }), HasSubstr("line 1"));

  EXPECT_EQ(read_file(file.path()), "notes of mine\n");
}

}  // namespace muster::tuning_file_test

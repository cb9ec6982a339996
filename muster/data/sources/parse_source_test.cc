#include <gtest/gtest.h>

#include "muster/data/test_elements.h"
#include "muster/io/test_files.h"
#include "muster/runtime/worker/shared_source.h"

namespace muster::parse_source_test {
namespace {

using testing_support::elements_of;
using testing_support::Numbers;
using testing_support::numbers_in;
using testing_support::numbers_of;
using testing_support::ScopedDirectory;
using testing_support::write_file;

// Lines 0, 1, 2, …, of which every one whose number is a multiple of `each` is wrong.
class LenientParse : public testing::Test {
 protected:
  std::string lines(int64_t count, int64_t each) const {
    std::string text;
    for (int64_t i = 0; i < count; ++i) text += i % each == 0 ? "wrong\n" : std::to_string(i) + "\n";
    write_file(directory_.path("lines.csv"), text);
    return directory_.path("lines.csv");
  }
  static Numbers good(int64_t count, int64_t each) {
    Numbers numbers;
    for (int64_t i = 0; i < count; ++i) {
      if (i % each != 0) numbers.push_back(i);
    }
    return numbers;
  }
  static Dataset records(const std::string& path) { return Dataset::text_lines({path}, {.ignore_errors = true}); }
  static Dataset parsed(const Dataset& records, Parallel parallel = {}) {
    return records.parse_csv({.columns = {{.name = "a", .type = CsvColumn::Type::kInt64}}}, parallel);
  }

  const ScopedDirectory directory_;
};

TEST_F(LenientParse, FillsBatchesWithGoodRecords) {
  const Dataset rows = parsed(records(lines(1'000, 7)));

  const std::vector<Element> batches = elements_of(rows.batch(100, /*drop_remainder=*/true));

  ASSERT_EQ(batches.size(), 8U);
  for (const Element& batch : batches) EXPECT_EQ(batch[0].sizes(), at::IntArrayRef({100}));
  EXPECT_EQ(numbers_of(rows), good(1'000, 7));
  EXPECT_EQ(numbers_of(rows.take(5).batch(10)), Numbers({1, 2, 3, 4, 5}));
}

TEST_F(LenientParse, GivesTheSameWithManyThreads) {
  const std::string path = lines(3'000, 3);

  EXPECT_EQ(numbers_of(parsed(records(path), {.threads = 4})), good(3'000, 3));
  EXPECT_EQ(numbers_of(parsed(records(path), {.threads = 4}).batch(64)), good(3'000, 3));
}

TEST_F(LenientParse, LeavesOnlyTheWrongRecordsOfABatchOut) {
  const Dataset rows = parsed(records(lines(100, 10)).batch(20));

  const std::vector<Element> batches = elements_of(rows);

  ASSERT_EQ(batches.size(), 5U);
  EXPECT_EQ(batches[0][0].sizes(), at::IntArrayRef({18}));
  EXPECT_EQ(numbers_of(batches), good(100, 10));
}

TEST_F(LenientParse, GivesNothingOfRecordsThatAreAllWrong) {
  const std::string path = lines(1'000, 1);

  EXPECT_EQ(numbers_of(parsed(records(path)).batch(10)), Numbers());
  EXPECT_EQ(numbers_of(parsed(records(path).batch(300))), Numbers());
}

TEST_F(LenientParse, GoesOnWhereItWas) {
  const Dataset rows = parsed(records(lines(500, 6))).batch(10);
  SharedSource before(rows.open(local_worker()));
  for (int i = 0; i < 7; ++i) before.next();

  SharedSource after(rows.from(before.position()).open(local_worker()));

  EXPECT_EQ(numbers_in(after.next()->at(0)), numbers_in(before.next()->at(0)));
}

}  // namespace
}  // namespace muster::parse_source_test

#include "muster/collective/all_reduce_sizes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace muster::all_reduce_sizes_test {
namespace {

using testing::ElementsAre;

// A group in which a hop takes 100 us, and a byte so many seconds in each way.
TimeOfSum with_bytes_that_take(double in_first_message, double whole, double in_parts) {
  return [=](int64_t bytes) {
    const auto size = static_cast<double>(bytes);
    return std::array{1e-4 + size * in_first_message, 1.2e-4 + size * whole, 2e-4 + size * in_parts};
  };
}

TEST(AllReduceSizes, SayWhichWayASumTakes) {
  const AllReduceSizes sizes{.in_first_message = 10, .whole = 20};

  EXPECT_EQ(sizes.way_for(0), AllReduceWay::kInFirstMessage);
  EXPECT_EQ(sizes.way_for(10), AllReduceWay::kInFirstMessage);
  EXPECT_EQ(sizes.way_for(11), AllReduceWay::kWhole);
  EXPECT_EQ(sizes.way_for(20), AllReduceWay::kWhole);
  EXPECT_EQ(sizes.way_for(21), AllReduceWay::kInParts);
  for (const AllReduceWay way : {AllReduceWay::kInFirstMessage, AllReduceWay::kWhole, AllReduceWay::kInParts}) {
    for (const int64_t bytes : {int64_t{0}, int64_t{1} << 40}) {
      EXPECT_EQ(AllReduceSizes::always(way).way_for(bytes), way) << bytes;
    }
  }
}

TEST(AllReduceSizes, AreThoseUpToWhichEachWayIsTheFastest) {
  // Message and whole: 20 us of a hop are worth 7 KB. Whole and parts: 80 us are worth 160 KB.
  const MeasuredSizes measured = measure_sizes(with_bytes_that_take(4e-9, 1e-9, 0.5e-9));

  EXPECT_EQ(measured.sizes.in_first_message, 8 << 10);
  EXPECT_EQ(measured.sizes.whole, 128 << 10);
  EXPECT_EQ(measured.sizes.to_string(),
            "sums of up to 8 KiB go with the first message, of up to 128 KiB whole, larger ones in parts");
}

TEST(AllReduceSizes, LeaveAwayAWayThatIsNeverTheFastest) {
  const MeasuredSizes measured = measure_sizes(with_bytes_that_take(2e-9, 2e-9, 0.1e-9));

  EXPECT_EQ(measured.sizes.in_first_message, 32 << 10);
  EXPECT_LE(measured.sizes.whole, measured.sizes.in_first_message);
  EXPECT_EQ(measured.sizes.to_string(), "sums of up to 32 KiB go with the first message, larger ones in parts");
}

TEST(AllReduceSizes, TryNoLargerSumThanIsNeeded) {
  std::vector<int64_t> tried;
  measure_sizes([&](int64_t bytes) {
    tried.push_back(bytes);
    return std::array{1.0, 1.0, bytes >= 100'000 ? 0.5 : 2.0};
  });

  EXPECT_THAT(tried, ElementsAre(8 << 10, 32 << 10, 128 << 10, 512 << 10)) << "one may be an accident";
}

TEST(AllReduceSizes, AreNotChosenByOneAccident) {
  const MeasuredSizes measured = measure_sizes(
      [](int64_t bytes) { return bytes == 32 << 10 ? std::array{3.0, 2.0, 1.0} : std::array{2.0, 1.0, 3.0}; });

  EXPECT_EQ(measured.sizes.whole, 2 << 20);
}

// Over a slow network with many ranks nothing but what is tiny pays.
TEST(AllReduceSizes, SendWhatIsTinyInOneHopEverywhere) {
  const MeasuredSizes measured = measure_sizes([](int64_t) { return std::array{3.0, 2.0, 1.0}; });

  EXPECT_EQ(measured.sizes.way_for(1 << 10), AllReduceWay::kInFirstMessage);
  EXPECT_EQ(measured.sizes.way_for(32 << 10), AllReduceWay::kInParts);
}

}  // namespace
}  // namespace muster::all_reduce_sizes_test

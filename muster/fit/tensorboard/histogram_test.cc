#include "muster/fit/tensorboard/histogram.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "muster/base/status.h"

namespace muster::histogram_test {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;

auto bucket(double left, double right, double count) {
  return ::testing::AllOf(Field(&HistogramBucket::left, left), Field(&HistogramBucket::right, right),
                          Field(&HistogramBucket::count, count));
}

TEST(Histogram, CountsTheLargestInTheLastBucket) {
  const at::Tensor values = torch::tensor({{0, 1, 2}, {3, 7, 8}});

  EXPECT_THAT(histogram_of(values, 4), ElementsAre(bucket(0, 2, 2), bucket(2, 4, 2), bucket(4, 6, 0), bucket(6, 8, 2)));
}

TEST(Histogram, OfOneValueHasItInTheLastBucket) {
  EXPECT_THAT(histogram_of(torch::full({5}, 0.25), 2), ElementsAre(bucket(0.25, 0.25, 0), bucket(0.25, 0.25, 5)));
  EXPECT_THAT(histogram_of(torch::empty({0}), 2), ElementsAre(bucket(0, 0, 0), bucket(0, 0, 0)));
}

TEST(Histogram, LeavesOutWhatIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();

  EXPECT_THAT(histogram_of(torch::tensor({-infinity, 1.0F, std::nanf(""), 3.0F, infinity}), 2),
              ElementsAre(bucket(1, 2, 1), bucket(2, 3, 1)));
  EXPECT_THROW(histogram_of(torch::zeros({2}, torch::kComplexFloat)), Error);
}

TEST(Histogram, GoesThroughAllBlocksOfALargeTensor) {
  const at::Tensor values = torch::arange(3'000'000, torch::kFloat);

  const std::vector<HistogramBucket> buckets = histogram_of(values);

  ASSERT_EQ(buckets.size(), 30U);
  for (const HistogramBucket& each : buckets) EXPECT_NEAR(each.count, 100'000, 1);
}

TEST(Histogram, TakesTheLargestNumbersThatThereAre) {
  const double most = std::numeric_limits<double>::max();

  const std::vector<HistogramBucket> buckets = histogram_of(torch::tensor({-most, most}, torch::kDouble), 2);

  EXPECT_THAT(buckets, ElementsAre(bucket(-most, 0, 1), bucket(0, most, 1)));
}

}  // namespace
}  // namespace muster::histogram_test

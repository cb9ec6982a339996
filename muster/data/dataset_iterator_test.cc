// Datasets that are read by traced functions in this process.
#include <gmock/gmock.h>

#include "muster/data/test_elements.h"
#include "muster/trace/function.h"
#include "muster/trace/variable.h"

namespace muster {
namespace {

using namespace testing_support;
using ::testing::ElementsAre;

TEST(DatasetIterator, GivesTheLastSmallerBatchToATracedFunction) {
  auto sum = function([](Iterator& it) { return it.next<1>()[0].sum(); });
  Iterator it = Dataset::range(1, 11).batch(4).repeat(2).iterator();

  std::vector<int64_t> sums;
  for (int i = 0; i < 6; ++i) sums.push_back(sum(it).item<int64_t>());

  EXPECT_THAT(sums, ElementsAre(10, 26, 19, 10, 26, 19));
  EXPECT_EQ(sum.stats().misses, 2);
  EXPECT_EQ(sum.stats().retraces, 1);
  EXPECT_EQ(error_of(StatusCode::kOutOfRange, [&] { sum(it); }),
            "the sequence of examples has ended; add repeat() to begin again");
}

TEST(DatasetIterator, HasBatchesOfOneShapeWhenTheRemainderIsDropped) {
  auto sum = function([](Iterator& it) { return it.next<1>()[0].sum(); });
  const Dataset batches = parse_dataset(Dataset::range(1, 11).batch(4, /*drop_remainder=*/true).repeat(2).serialize());
  Iterator it = batches.iterator();

  std::vector<int64_t> sums;
  for (int i = 0; i < 4; ++i) sums.push_back(sum(it).item<int64_t>());

  EXPECT_THAT(sums, ElementsAre(10, 26, 10, 26));
  EXPECT_EQ(sum.stats().misses, 1);
}

TEST(DatasetIterator, TrainsOnTheLastSmallerBatchAsOnAnyOther) {
  Variable w(torch::zeros({3}));
  auto step = function([&](Iterator& it) {
    auto [x, y] = it.next();
    const at::Tensor loss = (torch::mv(x, w.value()) - y).square().sum();
    w.assign_sub(gradient(loss, w) * 0.01F);
    return loss;
  });
  const at::Tensor xs = torch::randn({10, 3}), ys = torch::randn({10});
  Iterator it = Dataset::tensors({xs, ys}).batch(4).repeat().iterator();

  at::Tensor expected = torch::zeros({3});
  for (int i = 0; i < 6; ++i) {
    const int64_t first = i % 3 * 4, rows = i % 3 == 2 ? 2 : 4;
    const at::Tensor x = xs.narrow(0, first, rows), y = ys.narrow(0, first, rows);
    expected -= 0.02F * torch::mv(x.t(), torch::mv(x, expected) - y);
    step(it);
  }

  EXPECT_TRUE(torch::allclose(w.value().cpu(), expected, 1e-4, 1e-5)) << w.value() << expected;
  EXPECT_EQ(step.stats().misses, 2);
}

TEST(DatasetIterator, KeepsTheTensorsOfADatasetFromThoseWhoWriteToABatch) {
  const Dataset batches = Dataset::tensors({torch::ones({4, 2})}).batch(2).repeat();
  auto twice = function([](Iterator& it) { return it.next<1>()[0].mul_(2).sum(); });
  Iterator it = batches.iterator();

  for (int i = 0; i < 6; ++i) EXPECT_EQ(twice(it).item<float>(), 8);
}

}  // namespace
}  // namespace muster

#include "muster/fit/step_loop.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

namespace muster::step_loop_test {
namespace {

using ::testing::ElementsAre;

// Each step takes a number and returns it; several their sum.
Steps counting(int64_t several) {
  auto made = [](int64_t count) {
    return function(std::function<at::Tensor(Iterator&)>([count](Iterator& it) {
      at::Tensor sum = it.next<1>()[0];
      for (int64_t i = 1; i < count; ++i) sum = sum + it.next<1>()[0];
      return sum;
    }));
  };
  return {made(1), made(several), several};
}

struct Taken {
  std::vector<int64_t> sums{}, steps{};
  StepLoop::Each each = [this](const at::Tensor& sum, int64_t count) {
    sums.push_back(sum.item<int64_t>());
    steps.push_back(count);
  };
};

TEST(StepLoop, BeginsAnewWithEachEpochOfAWholeDataset) {
  const auto loop = make_step_loop(Strategy(), Dataset::range(5));
  Taken first, second;

  EXPECT_EQ(loop->run(counting(2), {}, first.each), 5);
  EXPECT_EQ(loop->run(counting(2), {}, second.each), 5);

  EXPECT_THAT(first.steps, ElementsAre(1, 1, 1, 1, 1)) << "nobody knows where it ends";
  EXPECT_THAT(second.steps, ElementsAre(2, 2, 1));
  EXPECT_THAT(second.sums, ElementsAre(1, 5, 4));
}

TEST(StepLoop, ShufflesEachEpochAnewAndReadsWhatIsCachedOnce) {
  int begun = 0;
  const Dataset numbers = Dataset::generator([&begun] {
    ++begun;
    return [next = int64_t{0}]() mutable -> std::optional<Element> {
      if (next == 20) return std::nullopt;
      return Element{torch::tensor(next++)};
    };
  });
  const auto loop = make_step_loop(Strategy(), numbers.cache().shuffle(20, 7));
  std::vector<Taken> epochs(3);
  const int before = begun;  // to see what an element looks like
  for (Taken& epoch : epochs) EXPECT_EQ(loop->run(counting(4), {}, epoch.each), 20);

  EXPECT_LE(begun, before + 2);
  EXPECT_NE(epochs[1].sums, epochs[2].sums);
  for (const Taken& epoch : epochs) {
    int64_t sum = 0;
    for (const int64_t some : epoch.sums) sum += some;
    EXPECT_EQ(sum, 190);
  }
}

TEST(StepLoop, GoesOnWhereItWasIfStepsAreCounted) {
  const auto loop = make_step_loop(Strategy(), Dataset::range(5));
  Taken first, second;

  EXPECT_EQ(loop->run(counting(2), 3, first.each), 3);
  EXPECT_EQ(loop->run(counting(2), 3, second.each), 2) << "there are no more";

  EXPECT_THAT(first.sums, ElementsAre(1, 2));
  EXPECT_THAT(second.sums, ElementsAre(3 + 4));
}

}  // namespace
}  // namespace muster::step_loop_test

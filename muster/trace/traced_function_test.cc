// What the random ops of a function draw: its numbers depend on its seed, the step and the replica, and on nothing
// else.
#include "muster/trace/traced_function.h"

#include "muster/trace/function.h"
#include "muster/trace/replay_test.h"

namespace muster {
namespace {

auto noise(std::optional<uint64_t> seed) {
  return function([] { return torch::randn({8}); }, {.name = "noise", .seed = seed});
}

TEST(RandomOps, DrawTheSameNumbersForTheSameSeedAndStep) {
  auto first = noise(1), second = noise(1), other = noise(2);

  EXPECT_TRUE(same_bits(first.run({.step = 7}), first.run({.step = 7})));
  EXPECT_TRUE(same_bits(first.run({.step = 7}), second.run({.step = 7})));
  EXPECT_FALSE(torch::equal(first.run({.step = 7}), other.run({.step = 7})));
}

TEST(RandomOps, DrawOtherNumbersInEveryStep) {
  auto draw = noise(1);

  const at::Tensor one = draw(), two = draw(), three = draw();

  EXPECT_FALSE(torch::equal(one, two));
  EXPECT_FALSE(torch::equal(two, three));
  EXPECT_TRUE(same_bits(one, noise(1)()));  // the steps of another function begin anew
  EXPECT_TRUE(same_bits(two, draw.run({.step = 1})));
}

TEST(RandomOps, DrawOtherNumbersInEveryReplica) {
  auto draw = noise(1);

  const at::Tensor first = draw.run({.step = 3, .replica = 0}), second = draw.run({.step = 3, .replica = 1});

  EXPECT_FALSE(torch::equal(first, second));
  EXPECT_TRUE(same_bits(second, draw.run({.step = 3, .replica = 1})));
}

TEST(RandomOps, DrawTheNumbersThatLibtorchDrawsWithTheSeedOfTheStep) {
  auto draw = noise(9);

  torch::manual_seed(step_seed(9, /*step=*/4, /*replica=*/2));
  const at::Tensor expected = torch::randn({8});

  EXPECT_TRUE(same_bits(expected, draw.run({.step = 4, .replica = 2})));
}

TEST(RandomOps, OfTwoFunctionsWithoutASeedDrawDifferentNumbers) {
  EXPECT_FALSE(torch::equal(noise({})(), noise({})()));
}

TEST(RandomOps, LeaveTheStreamOfLibtorchAlone) {
  auto draw = noise(1);
  torch::manual_seed(11);
  const at::Tensor expected = torch::randn({8});

  torch::manual_seed(11);
  draw();  // traced and run
  draw();

  EXPECT_TRUE(same_bits(expected, torch::randn({8})));
}

TEST(RandomOps, DrawInTheOrderOfTheirCalls) {
  auto draw = function([] { return std::vector<at::Tensor>{torch::rand({4}), torch::rand({4})}; }, {.seed = 1});

  const std::vector<at::Tensor> drawn = draw.run({.step = 0});
  torch::manual_seed(step_seed(1, 0, 0));
  const at::Tensor expected_first = torch::rand({4}), expected_second = torch::rand({4});

  EXPECT_TRUE(same_bits(expected_first, drawn[0]));
  EXPECT_TRUE(same_bits(expected_second, drawn[1]));
}

TEST(RandomOps, DrawOtherNumbersForOtherShapes) {
  auto draw = function([](at::Tensor x) { return torch::rand({8}) + 0 * x.sum(); }, {.seed = 1});

  const at::Tensor first = draw.run({.step = 0}, torch::zeros({2})), second = draw.run({.step = 0}, torch::zeros({3}));

  EXPECT_FALSE(torch::equal(first, second));
  EXPECT_TRUE(same_bits(first, draw.run({.step = 0}, torch::zeros({2}))));
}

TEST(RandomOps, GivenAGeneratorOfTheUserDrawFromTheStepAllTheSame) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(123);
  auto draw = function([&] { return torch::rand({4}, generator); }, {.seed = 1});

  const at::Tensor first = draw.run({.step = 0}), second = draw.run({.step = 1});

  EXPECT_FALSE(torch::equal(first, second));
  EXPECT_TRUE(same_bits(first, draw.run({.step = 0})));
}

}  // namespace
}  // namespace muster

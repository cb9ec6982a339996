// Arguments and results of functions as libtorch has them.
#include <torch/torch.h>

#include "muster/trace/function.h"
#include "muster/trace/replay_test.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

TEST(Function, TakesConvolutionsWithOneNumberForBothDimensions) {
  const at::Tensor x = torch::randn({2, 3, 8, 8}), w = torch::randn({5, 3, 3, 3});
  auto plain = function([](at::Tensor a, at::Tensor b) { return torch::conv2d(a, b); });
  auto options = function([](at::Tensor a, at::Tensor b) { return torch::conv2d(a, b, {}, 2, 1); });
  auto gradient = function([](at::Tensor a, at::Tensor b) {
    b = b.detach().requires_grad_();
    return torch::autograd::grad({torch::conv2d(a, b, {}, 2, 1).pow(2).sum()}, {b})[0];
  });
  const at::Tensor leaf = w.clone().requires_grad_();
  const at::Tensor expected = torch::autograd::grad({torch::conv2d(x, leaf, {}, 2, 1).pow(2).sum()}, {leaf})[0];

  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(torch::allclose(plain(x, w), torch::conv2d(x, w), 1e-4, 1e-4));
    EXPECT_TRUE(torch::allclose(options(x, w), torch::conv2d(x, w, {}, 2, 1), 1e-4, 1e-4));
    EXPECT_TRUE(torch::allclose(gradient(x, w), expected, 1e-3, 1e-3));
  }
}

TEST(Function, CalculatesWithNumbersAndHalvesAsLibtorchDoes) {
  using Unary = at::Tensor (*)(const at::Tensor&);
  const Unary calculations[] = {
      [](const at::Tensor& x) { return (x + 0) * 1e5; },    [](const at::Tensor& x) { return (x + 0) * 1e-8; },
      [](const at::Tensor& x) { return (x + 0) / 1e5; },    [](const at::Tensor& x) { return (x + 0) / 1e-6; },
      [](const at::Tensor& x) { return (x + 0) + 0.123; },  [](const at::Tensor& x) { return (x + 0) - 0.123; },
      [](const at::Tensor& x) { return (x * 1) * 0.1234; }, [](const at::Tensor& x) { return (x + 0).clamp(0.123, 7); },
  };
  for (const auto type : {torch::kHalf, torch::kBFloat16}) {
    const at::Tensor x = torch::rand({100}).mul(10).to(type);
    for (const Unary& calculate : calculations) {
      EXPECT_TRUE(function([&](at::Tensor of) { return calculate(of); })(x).equal(calculate(x)))
          << type << " " << &calculate - calculations;
    }
  }
}

TEST(Function, CountsItsWritesToArgumentsAsLibtorchDoes) {
  auto add = function([](at::Tensor x) { x.add_(1); });
  const at::Tensor leaf = torch::ones({2}).requires_grad_(), squared = leaf * 2, loss = squared * squared;
  const at::Tensor plain = squared.detach();

  const auto before = plain._version();
  add(plain);

  EXPECT_EQ(plain._version(), before + 1);
  EXPECT_THROW(loss.sum().backward(), c10::Error) << "one of the factors is not what it was";
}

TEST(Function, SaysThatAnArgumentIsAViewThatConjugatesOrNegates) {
  auto twice = function([](at::Tensor x) { return x * 2; });
  const at::Tensor x = torch::randn({2}, torch::kComplexFloat);

  EXPECT_THAT(error_of([&] { twice(x.conj()); }), HasSubstr("pass resolve_conj() of it"));
  EXPECT_THAT(error_of([&] { twice(at::imag(x.conj())); }), HasSubstr("pass resolve_neg() of it"));
  EXPECT_TRUE(twice(x.conj().resolve_conj()).equal(x.conj() * 2));
}

TEST(Function, RefusesToChangeTheShapeOfAnArgument) {
  auto turn = function([](at::Tensor x) { return x.t_() * 2; });
  auto turn_copy = function([](at::Tensor x) { return x.clone().t_() * 2; });
  auto resize = function([](at::Tensor x) { x.resize_({3}).zero_(); });
  at::Tensor x = torch::ones({2, 1});

  EXPECT_THAT(error_of([&] { turn(x); }), HasSubstr("changes the shape of argument 0 in place"));
  EXPECT_EQ(turn_copy(x).sizes(), at::IntArrayRef({1, 2}));
  resize(x);
  EXPECT_EQ(x.sizes(), at::IntArrayRef({3}));
}

TEST(Function, SaysWhichResultIsNotDefined) {
  auto nothing = function([](at::Tensor x) { return std::make_tuple(x * 2, at::Tensor()); });

  EXPECT_THAT(error_of([&] { nothing(torch::ones({1})); }), HasSubstr("result 1 is an undefined tensor"));
}

}  // namespace
}  // namespace muster

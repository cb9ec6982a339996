#include "muster/train/clipping.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <utility>

#include "muster/base/status.h"
#include "muster/trace/function.h"
#include "muster/train/optimizers.h"

namespace muster::clipping_test {
namespace {

// Two parameters of different size after steps of ours and of libtorch's SGD, whose gradients `theirs` changes.
void expect_as_libtorch(UpdateOptions all, const std::function<void(const std::vector<at::Tensor>&)>& theirs) {
  torch::manual_seed(1);
  Variable w(torch::randn({4, 3})), b(torch::randn({3}));
  std::vector<at::Tensor> parameters{w.value().clone().requires_grad_(), b.value().clone().requires_grad_()};
  const Sgd sgd({w, b}, {.learning_rate = 0.1, .all = std::move(all)});
  torch::optim::SGD other(parameters, 0.1);
  auto loss_of = [](const at::Tensor& x, const at::Tensor& weights, const at::Tensor& bias) {
    return torch::addmm(bias, x, weights).square().sum();
  };
  auto step = function([&](at::Tensor x) { sgd.minimize(loss_of(x, w, b)); });
  for (int i = 0; i < 4; ++i) {
    const at::Tensor x = torch::randn({5, 4});
    step(x);
    other.zero_grad();
    loss_of(x, parameters[0], parameters[1]).backward();
    theirs(parameters);
    other.step();
    ASSERT_TRUE(torch::allclose(w.value(), parameters[0].detach(), 1e-5, 1e-6)) << "after step " << i;
    ASSERT_TRUE(torch::allclose(b.value(), parameters[1].detach(), 1e-5, 1e-6)) << "after step " << i;
  }
}

TEST(Clipping, CutsElementsAsLibtorchDoes) {
  expect_as_libtorch({.clipping = {.value = 0.5}},
                     [](const auto& parameters) { torch::nn::utils::clip_grad_value_(parameters, 0.5); });
}

TEST(Clipping, ShortensAllGradientsTogetherAsLibtorchDoes) {
  expect_as_libtorch({.clipping = {.global_norm = 1.5}},
                     [](const auto& parameters) { torch::nn::utils::clip_grad_norm_(parameters, 1.5); });
}

TEST(Clipping, ShortensEachGradientByItself) {
  expect_as_libtorch({.clipping = {.norm = 0.7}}, [](const auto& parameters) {
    for (const at::Tensor& parameter : parameters) {
      torch::nn::utils::clip_grad_norm_(std::vector<at::Tensor>{parameter}, 0.7);
    }
  });
}

TEST(Clipping, CutsElementsThenEachGradientThenAllTogether) {
  expect_as_libtorch({.clipping = {.value = 0.5, .norm = 1.0, .global_norm = 1.2}}, [](const auto& parameters) {
    torch::nn::utils::clip_grad_value_(parameters, 0.5);
    for (const at::Tensor& parameter : parameters) {
      torch::nn::utils::clip_grad_norm_(std::vector<at::Tensor>{parameter}, 1.0);
    }
    torch::nn::utils::clip_grad_norm_(parameters, 1.2);
  });
}

TEST(Clipping, LeavesShortGradientsAsTheyAre) {
  expect_as_libtorch({.clipping = {.value = 1e6, .norm = 1e6, .global_norm = 1e6}}, [](const auto&) {});
}

TEST(Clipping, CountsRowsThatWereLookedUp) {
  Variable table(torch::zeros({5, 2})), w(torch::zeros({1}));
  const Sgd sgd({table, w}, {.learning_rate = 1, .all = {.clipping = {.global_norm = 5}}});
  auto step = function([&] {  // gradients 6 and 8 of one row, 24 of w: a norm of 26
    const at::Tensor row = lookup(table, torch::tensor({3, 3}));
    sgd.minimize((row * torch::tensor({3.0F, 4.0F})).sum() + w.value().sum() * 24);
  });
  step();
  EXPECT_TRUE(torch::allclose(table.value()[3], torch::tensor({-6.0F, -8.0F}) * 5 / 26)) << table.value();
  EXPECT_TRUE(torch::allclose(w.value(), torch::tensor({-24.0F * 5 / 26}))) << w.value();
}

// The squares of the large ones are more than float16 has, those of the small ones less.
TEST(Clipping, MeasuresGradientsOfFloat16ThatHaveNoSquaresOfTheirType) {
  for (const double slope : {300.0, 0.0001}) {
    for (const auto& [clipping, together] : {std::pair(Clipping{.norm = 1e-3}, 500), {{.global_norm = 1e-3}, 1000}}) {
      Variable w(torch::zeros({500}, torch::kHalf)), table(torch::zeros({250, 2}, torch::kHalf));
      const Sgd sgd({w, table}, {.learning_rate = 1, .all = {.clipping = clipping}});
      auto step = function([&] {
        const at::Tensor rows = lookup(table, torch::arange(250));
        sgd.minimize((w.value() * slope).sum() + (rows * slope).sum());
      });

      step();

      const double each = -1e-3 / std::sqrt(together);
      for (const at::Tensor& value : {w.value(), table.value()}) {
        EXPECT_EQ(value.scalar_type(), torch::kHalf);
        EXPECT_NEAR(value.to(torch::kDouble).min().item<double>(), each, 2e-7) << slope << " of " << together;
        EXPECT_NEAR(value.to(torch::kDouble).max().item<double>(), each, 2e-7) << slope << " of " << together;
      }
    }
  }
}

TEST(Clipping, IsRefusedAtZero) {
  EXPECT_THROW(Sgd({.all = {.clipping = {.value = 0}}}), Error);
  EXPECT_THROW(Sgd({.all = {.clipping = {.global_norm = -1}}}), Error);
}

}  // namespace
}  // namespace muster::clipping_test

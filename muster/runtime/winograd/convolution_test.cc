#include "muster/runtime/winograd/convolution.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

namespace muster {
namespace {

// All that this CPU can run.
std::vector<const WinogradKernels*> kernels_here() {
  std::vector<const WinogradKernels*> kernels = {winograd_any()};
#if defined(__x86_64__)
  const bool fused = __builtin_cpu_supports("fma");
  if (winograd_avx2() != nullptr && __builtin_cpu_supports("avx2") && fused) kernels.push_back(winograd_avx2());
  if (winograd_avx512() != nullptr && __builtin_cpu_supports("avx512f")) kernels.push_back(winograd_avx512());
#endif
  return kernels;
}

class Threads {
 public:
  explicit Threads(int number) : before_(at::get_num_threads()) { at::set_num_threads(number); }
  ~Threads() { at::set_num_threads(before_); }

 private:
  const int before_;
};

struct Case {
  at::Tensor image, weights, bias, gradient;
  int64_t pad_rows, pad_columns;
};

Case case_of(at::IntArrayRef image, int64_t output_channels, int64_t pad_rows, int64_t pad_columns) {
  const at::Tensor x = torch::randn(image);
  return {x,
          torch::randn({output_channels, image[1], 3, 3}),
          torch::randn({output_channels}),
          torch::randn({image[0], output_channels, image[2] + 2 * pad_rows - 2, image[3] + 2 * pad_columns - 2}),
          pad_rows,
          pad_columns};
}

// The largest error, where 1 is the size of the numbers.
double error_of(const at::Tensor& result, const at::Tensor& exact) {
  if (result.sizes() != exact.sizes()) return std::numeric_limits<double>::infinity();
  const at::Tensor error = (result.to(at::kDouble) - exact).abs().max() / exact.square().mean().sqrt().clamp_min(1e-3);
  return error.item<double>();
}

at::Tensor exact_output(const Case& given) {
  return at::conv2d(given.image.to(at::kDouble), given.weights.to(at::kDouble), given.bias.to(at::kDouble), 1,
                    at::IntArrayRef({given.pad_rows, given.pad_columns}));
}

std::array<at::Tensor, 3> exact_gradients(const Case& given) {
  const auto [image, weights, bias] =
      at::convolution_backward(given.gradient.to(at::kDouble), given.image.to(at::kDouble),
                               given.weights.to(at::kDouble), at::IntArrayRef({given.weights.size(0)}), {1, 1},
                               {given.pad_rows, given.pad_columns}, {1, 1}, false, {0, 0}, 1, {true, true, true});
  return {image, weights, bias};
}

void expect_exact(const Case& given, const std::string& what) {
  constexpr double kBound = 1e-4;
  const at::Tensor output = exact_output(given);
  const std::array<at::Tensor, 3> gradients = exact_gradients(given);
  for (const WinogradKernels* kernels : kernels_here()) {
    const WinogradConvolution convolution{given.pad_rows, given.pad_columns, *kernels};
    ASSERT_TRUE(convolution.fits(given.image, given.weights)) << what;
    const at::Tensor forward = convolution.forward(given.image, given.weights, given.bias);
    const auto backward = convolution.backward(given.gradient, given.image, given.weights, {true, true, true});

    EXPECT_LT(error_of(forward, output), kBound) << what << ", " << kernels->lanes << " lanes";
    for (int i = 0; i < 3; ++i) {
      EXPECT_LT(error_of(backward[i], gradients[i]), kBound)
          << "gradient " << i << " of " << what << ", " << kernels->lanes << " lanes";
    }
  }
}

TEST(WinogradConvolution, IsThatOfDoublesUpToRoundingWhateverTheShape) {
  torch::manual_seed(1);
  auto number = [](int64_t from, int64_t to) { return torch::randint(from, to + 1, {1}).item<int64_t>(); };
  for (int i = 0; i < 60; ++i) {
    const Threads threads(1 + i % 4);
    const std::vector<int64_t> image = {number(1, 5), number(1, 70), number(3, 21), number(3, 21)};
    const Case given = case_of(image, number(1, 70), number(0, 2), number(0, 2));

    expect_exact(given, (std::ostringstream() << given.image.sizes() << " " << given.weights.sizes() << " padded by "
                                              << given.pad_rows << " and " << given.pad_columns)
                            .str());
  }
}

TEST(WinogradConvolution, TakesImagesSmallerThanATileAndPaddingLargerThanOne) {
  torch::manual_seed(2);

  expect_exact(case_of({1, 9, 1, 1}, 8, 1, 1), "one element");
  expect_exact(case_of({2, 8, 3, 3}, 17, 0, 0), "one output");
  expect_exact(case_of({2, 3, 2, 9}, 5, 9, 7), "much padding");
  expect_exact(case_of({1, 16, 130, 7}, 16, 1, 1), "a high image");
}

TEST(WinogradConvolution, TakesManyChannels) {
  torch::manual_seed(3);

  expect_exact(case_of({1, 256, 7, 6}, 255, 1, 1), "many channels");
}

TEST(WinogradConvolution, TakesOperandsInWhateverOrder) {
  torch::manual_seed(4);
  Case given = case_of({3, 20, 11, 10}, 24, 1, 0);
  given.image = given.image.contiguous(at::MemoryFormat::ChannelsLast);
  given.gradient = torch::randn({10, 11, 24, 3}).permute({3, 2, 1, 0}).narrow(2, 0, 11).narrow(3, 0, 8);
  given.weights = torch::randn({3, 3, 20, 48}).permute({3, 2, 0, 1}).slice(0, 0, 48, 2);

  expect_exact(given, "channels last");
  given.image = torch::randn({3, 40, 12, 10}).slice(1, 1, 40, 2).narrow(2, 1, 11);
  expect_exact(given, "a part of an image");
}

TEST(WinogradConvolution, MakesOnlyTheGradientsThatAreWanted) {
  torch::manual_seed(5);
  const Case given = case_of({2, 9, 9, 9}, 10, 1, 1);
  const auto exact = exact_gradients(given);
  const WinogradConvolution convolution{1, 1, *kernels_here().back()};

  for (int mask = 0; mask < 8; ++mask) {
    const std::array<bool, 3> wanted = {(mask & 1) != 0, (mask & 2) != 0, (mask & 4) != 0};
    const auto gradients = convolution.backward(given.gradient, given.image, given.weights, wanted);

    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(gradients[i].defined(), wanted[i]) << mask;
      if (!wanted[i]) continue;
      EXPECT_LT(error_of(gradients[i], exact[i]), 1e-4) << mask;
    }
  }
}

TEST(WinogradConvolution, AddsNoBiasWhereThereIsNone) {
  torch::manual_seed(6);
  Case given = case_of({2, 9, 9, 9}, 10, 1, 1);
  given.bias.zero_();

  for (const WinogradKernels* kernels : kernels_here()) {
    const WinogradConvolution convolution{1, 1, *kernels};
    EXPECT_LT(error_of(convolution.forward(given.image, given.weights, {}), exact_output(given)), 1e-4);
  }
}

// Errors of one part in ten million would be of the last bit.
TEST(WinogradConvolution, IsOffByAboutAMillionthOnTheAverage) {
  torch::manual_seed(7);
  const Case given = case_of({8, 32, 26, 26}, 64, 0, 0);
  auto average = [](const at::Tensor& result, const at::Tensor& exact) {
    return ((result.to(at::kDouble) - exact).square().mean() / exact.square().mean()).sqrt().item<double>();
  };
  const auto exact = exact_gradients(given);

  for (const WinogradKernels* kernels : kernels_here()) {
    const WinogradConvolution convolution{0, 0, *kernels};
    const auto gradients = convolution.backward(given.gradient, given.image, given.weights, {true, true, true});

    EXPECT_LT(average(convolution.forward(given.image, given.weights, given.bias), exact_output(given)), 1.5e-6);
    for (int i = 0; i < 3; ++i) EXPECT_LT(average(gradients[i], exact[i]), 1.5e-6) << "gradient " << i;
  }
}

// One running sum of floats would be off by 3e-4: it has no place for the last bits of what is added.
TEST(WinogradConvolution, AddsUpTheGradientOfABiasOfManyElements) {
  const Threads threads(1);
  Case given = case_of({1, 8, 1200, 1200}, 8, 1, 1);
  given.gradient.fill_(0.1f);
  const double exact = 1200.0 * 1200.0 * static_cast<double>(0.1f);

  for (const WinogradKernels* kernels : kernels_here()) {
    const at::Tensor of_bias = WinogradConvolution{1, 1, *kernels}.backward(given.gradient, given.image, given.weights,
                                                                            {false, false, true})[2];

    EXPECT_NEAR(of_bias[3].item<double>() / exact, 1, 1e-5);
  }
}

TEST(WinogradConvolution, GivesTheSameBitsEachTime) {
  torch::manual_seed(8);
  const Threads threads(2);
  for (int64_t images : {1, 7}) {
    const Case given = case_of({images, 12, 33, 30}, 20, 1, 1);
    const WinogradConvolution convolution{1, 1, *kernels_here().back()};
    const at::Tensor output = convolution.forward(given.image, given.weights, given.bias);
    const auto gradients = convolution.backward(given.gradient, given.image, given.weights, {true, true, true});

    EXPECT_TRUE(convolution.forward(given.image, given.weights, given.bias).equal(output));
    const auto again = convolution.backward(given.gradient, given.image, given.weights, {true, true, true});
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(again[i].equal(gradients[i])) << "gradient " << i;
  }
}

// What a larger image of the same batch holds does not matter to the others, nor do tiles that do not see the element.
TEST(WinogradConvolution, LosesNoInfinityAndKeepsItWithinItsTiles) {
  torch::manual_seed(9);
  for (float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Case given = case_of({2, 8, 20, 20}, 8, 0, 0);
    const at::Tensor clean = exact_output(given);
    given.image[0][3][9][9] = bad;
    const at::Tensor seen = at::conv2d(given.image, given.weights, given.bias).isfinite().logical_not();

    for (const WinogradKernels* kernels : kernels_here()) {
      const at::Tensor output = WinogradConvolution{0, 0, *kernels}.forward(given.image, given.weights, given.bias);
      const at::Tensor finite = output.isfinite();

      EXPECT_FALSE(finite.logical_and(seen).any().item<bool>());
      EXPECT_TRUE(finite[1].all().item<bool>());
      at::Tensor elsewhere = finite[0].clone();
      elsewhere.slice(1, 4, 12).slice(2, 4, 12).fill_(true);
      EXPECT_TRUE(elsewhere.all().item<bool>());
      const at::Tensor kept = torch::where(finite, output.to(at::kDouble), clean);
      EXPECT_LT(error_of(kept, clean), 1e-4);
    }
  }
}

TEST(WinogradConvolution, LosesNoInfinityOfAGradient) {
  torch::manual_seed(10);
  Case given = case_of({2, 8, 20, 20}, 8, 1, 1);
  given.gradient[1][2][10][5] = std::numeric_limits<float>::infinity();
  const auto exact = exact_gradients(given);

  for (const WinogradKernels* kernels : kernels_here()) {
    const auto gradients =
        WinogradConvolution{1, 1, *kernels}.backward(given.gradient, given.image, given.weights, {true, true, true});

    for (int i = 0; i < 3; ++i) {
      EXPECT_FALSE(gradients[i].isfinite().logical_and(exact[i].isfinite().logical_not()).any().item<bool>()) << i;
    }
    EXPECT_TRUE(gradients[0][0].isfinite().all().item<bool>());
  }
}

TEST(WinogradConvolution, LeavesToOthersWhatItDoesNotDo) {
  const WinogradConvolution convolution{1, 1, *winograd_any()};
  const at::Tensor image = torch::rand({2, 8, 9, 9}), weights = torch::rand({8, 8, 3, 3});

  EXPECT_TRUE(convolution.fits(image, weights));
  EXPECT_FALSE(convolution.fits(image.to(at::kDouble), weights));
  EXPECT_FALSE(convolution.fits(image, weights.to(at::kHalf)));
  EXPECT_FALSE(convolution.fits(image, torch::rand({8, 8, 5, 5})));
  EXPECT_FALSE(convolution.fits(image, torch::rand({8, 4, 3, 3})));  // in groups
  EXPECT_FALSE(convolution.fits(torch::rand({0, 8, 9, 9}), weights));
  EXPECT_FALSE(convolution.fits(image[0], weights));
  EXPECT_FALSE((WinogradConvolution{-1, 0, *winograd_any()}).fits(image, weights));
  EXPECT_FALSE((WinogradConvolution{0, 0, *winograd_any()}).fits(torch::rand({1, 8, 2, 9}), weights));
  EXPECT_FALSE(convolution.fits(torch::empty({1, 512, 9, 9}), torch::empty({512, 512, 3, 3})));
  EXPECT_FALSE(convolution.fits(torch::empty({1, 8, 9, 9}), torch::empty({4096, 8, 3, 3})));
}

}  // namespace
}  // namespace muster

// The expected numbers are those of Keras 3.
#include "muster/fit/losses.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "muster/base/status.h"
#include "muster/trace/function.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

const at::Tensor kOutput = torch::tensor({{0.2F, 0.7F}, {0.9F, 0.4F}, {0.6F, 0.1F}});
const at::Tensor kTarget = torch::tensor({{0.F, 1.F}, {1.F, 1.F}, {0.F, 0.F}});
const at::Tensor kScores = torch::tensor({{2.F, -1.F, 0.5F}, {0.1F, 0.2F, -0.3F}, {-1.F, 3.F, 1.F}});
const at::Tensor kClasses = torch::tensor({0, 2, 1});

void expect(const Loss& loss, const at::Tensor& output, const at::Tensor& target, std::vector<float> expected) {
  const at::Tensor losses = loss(output, target);
  EXPECT_TRUE(torch::allclose(losses, torch::tensor(expected), 1e-5, 1e-6)) << loss.name() << losses;
}

TEST(Losses, OfNumbersAreThoseOfKeras) {
  expect(mean_squared_error, kOutput, kTarget, {0.065F, 0.185F, 0.185F});
  expect(mean_absolute_error, kOutput, kTarget, {0.25F, 0.35F, 0.35F});
  expect(mean_squared_logarithmic_error, kOutput, kTarget, {0.02982675F, 0.06492402F, 0.1149937F});
  expect(log_cosh, kOutput, kTarget, {0.03210443F, 0.08756348F, 0.08756348F});
  expect(poisson, kOutput, kTarget, {0.6283374F, 1.160825F, 0.35F});
  expect(hinge, kOutput, kTarget, {0.75F, 0.35F, 1.35F});
  expect(squared_hinge, kOutput, kTarget, {0.765F, 0.185F, 1.885F});
  expect(huber(1.0), kOutput * 4, kTarget, {0.81F, 1.14F, 0.99F});
}

TEST(Losses, OfDistributionsAreThoseOfKeras) {
  expect(kl_divergence, kOutput, kTarget, {0.3566735F, 1.021651F, -2.942278e-06F});
  expect(cosine_similarity, kOutput, kTarget, {-0.961524F, -0.9333456F, 0.F});
}

TEST(Losses, OfProbabilitiesAndLogitsAreThoseOfKeras) {
  expect(binary_cross_entropy, kOutput, kTarget, {0.2899092F, 0.5108256F, 0.5108257F});
  expect(binary_cross_entropy_with_logits, kOutput * 4 - 2, kTarget, {0.3171916F, 0.548458F, 0.548458F});
  // Twice that of alpha = 0.5.
  const at::Tensor halved = binary_focal_cross_entropy(2, 0.5)(kOutput * 4 - 2, kTarget);
  EXPECT_TRUE(torch::allclose(binary_focal_cross_entropy()(kOutput * 4 - 2, kTarget), halved * 2));
  expect(binary_focal_cross_entropy(2, 0.25), kOutput * 4 - 2, kTarget, {0.009748659F, 0.04155482F, 0.1246645F});
}

TEST(Losses, OfClassesAreThoseOfKeras) {
  const at::Tensor wanted = torch::one_hot(kClasses, 3);
  expect(categorical_cross_entropy, kScores, wanted, {0.2413113F, 1.420828F, 0.1429317F});
  expect(sparse_categorical_cross_entropy, kScores, kClasses, {0.2413113F, 1.420828F, 0.1429317F});
  expect(sparse_categorical_cross_entropy, kScores, kClasses.unsqueeze(1), {0.2413113F, 1.420828F, 0.1429317F});
  const ClassLossOptions smooth{.label_smoothing = 0.1};
  expect(make_categorical_cross_entropy(smooth), kScores, wanted, {0.3913113F, 1.390828F, 0.3429317F});
  expect(make_sparse_categorical_cross_entropy(smooth), kScores, kClasses, {0.3913113F, 1.390828F, 0.3429317F});
  expect(make_sparse_categorical_cross_entropy({.from_logits = false}),
         torch::tensor({{.7F, .2F, .1F}, {.3F, .3F, .4F}, {.2F, .5F, .3F}}), kClasses,
         {0.356675F, 0.9162908F, 0.6931472F});
}

TEST(Losses, OfTripletsAreOfTheFarthestFriendAndTheNearestStranger) {
  const at::Tensor places = torch::tensor({{0.F, 0.F}, {3.F, 0.F}, {0.F, 2.F}, {9.F, 0.F}});
  expect(triplet(1), places, torch::tensor({0, 0, 1, 1}),
         {3 - 2 + 1.F, 0.F + 3 - 3.605551F + 1, 9.219544F - 2 + 1, 9.219544F - 6 + 1});
}

TEST(Losses, OfSequencesAreLibtorchsAlsoWhenTraced) {
  torch::manual_seed(1);
  const at::Tensor scores = torch::randn({3, 6, 4}), wanted = torch::tensor({{1, 2, 0}, {3, 0, 0}, {2, 2, 1}});
  auto expected = [&](const at::Tensor& target, std::vector<int64_t> lengths) {
    return torch::ctc_loss(torch::log_softmax(scores, -1).transpose(0, 1), target, std::vector<int64_t>{6, 6, 6},
                           lengths, 0, at::Reduction::None);
  };
  auto traced = function([](at::Tensor x, at::Tensor y) { return ctc()(x, y); });
  EXPECT_TRUE(torch::allclose(traced(scores, wanted), expected(wanted, {2, 1, 3}), 1e-5, 1e-5));
  const at::Tensor others = torch::tensor({{1, 2, 3}, {3, 1, 0}, {2, 0, 0}});
  EXPECT_TRUE(torch::allclose(traced(scores, others), expected(others, {3, 2, 1}), 1e-5, 1e-5))
      << "lengths are no constants";
  EXPECT_EQ(traced.stats().misses, 1);
  const at::Tensor nothing = torch::tensor({{0, 0, 0}, {1, 1, 0}, {2, 0, 0}});
  EXPECT_TRUE(torch::allclose(traced(scores, nothing), expected(nothing, {0, 2, 1}), 1e-5, 1e-5));

  at::Tensor ours = scores.clone().requires_grad_(), theirs = scores.clone().requires_grad_();
  ctc()(ours, wanted).sum().backward();
  torch::ctc_loss(torch::log_softmax(theirs, -1).transpose(0, 1), wanted, std::vector<int64_t>{6, 6, 6},
                  std::vector<int64_t>{2, 1, 3}, 0, at::Reduction::Sum)
      .backward();
  EXPECT_TRUE(torch::allclose(ours.grad(), theirs.grad(), 1e-4, 1e-5));
}

TEST(Losses, OfSequencesAndTripletsNameShapesThatTheyDoNotTake) {
  EXPECT_THROW(ctc()(torch::zeros({2, 3}), torch::zeros({2, 3})), Error);
  EXPECT_THROW(triplet()(torch::zeros({2, 3}), torch::zeros({3})), Error);
}

TEST(Losses, TakeAnOutputWithOneColumnForARow) {
  expect(mean_squared_error, torch::tensor({{1.F}, {2.F}}), torch::tensor({1.F, 4.F}), {0.F, 4.F});
  expect(mean_squared_error, torch::tensor({1.F, 2.F}), torch::tensor({{1.F}, {4.F}}), {0.F, 4.F});
}

TEST(Losses, RefuseShapesThatWouldBeBroadcast) {
  auto error = [](const Loss& loss, const at::Tensor& output, const at::Tensor& target) -> std::string {
    try {
      loss(output, target);
    } catch (const Error& failed) {
      return failed.what();
    }
    return "";
  };
  EXPECT_THAT(error(mean_squared_error, torch::ones({3, 1}), torch::ones({3, 3})),
              HasSubstr("loss mean_squared_error: the output is float32[3, 1] and the target float32[3, 3]"));
  EXPECT_THAT(error(sparse_categorical_cross_entropy, kScores, torch::one_hot(kClasses, 3)),
              HasSubstr("expected the number of a class for each row of scores"));
}

TEST(Losses, MayBeLambdas) {
  const Loss loss = [](const at::Tensor& output, const at::Tensor& target) { return (output - target).abs().max(); };
  EXPECT_EQ(loss(torch::tensor({1.F, 5.F}), torch::zeros({2})).item<float>(), 5);
}

}  // namespace
}  // namespace muster

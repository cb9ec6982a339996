// The expected numbers are those of Keras 3.
#include "muster/fit/criteria/losses.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <limits>

#include "muster/base/status.h"
#include "muster/base/test_errors.h"
#include "muster/trace/function.h"

namespace muster::losses_test {
namespace {

using testing_support::message_of;

using ::testing::AllOf;
using ::testing::HasSubstr;

const at::Tensor kOutput = torch::tensor({{0.2F, 0.7F}, {0.9F, 0.4F}, {0.6F, 0.1F}});
const at::Tensor kTarget = torch::tensor({{0.F, 1.F}, {1.F, 1.F}, {0.F, 0.F}});
const at::Tensor kScores = torch::tensor({{2.F, -1.F, 0.5F}, {0.1F, 0.2F, -0.3F}, {-1.F, 3.F, 1.F}});
const at::Tensor kClasses = torch::tensor({0, 2, 1});

const at::Tensor kShares = torch::tensor({{.7F, .2F, .1F}, {.3F, .3F, .4F}, {.2F, .5F, .3F}});

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
  expect(cosine_similarity, kOutput * 5e-7F, kTarget, {-0.961524F, -0.9333456F, 0.F});
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
  expect(make_sparse_categorical_cross_entropy({.from_logits = false}), kShares, kClasses,
         {0.356675F, 0.9162908F, 0.6931472F});
  expect(make_categorical_cross_entropy({.from_logits = false}), kShares, wanted, {0.356675F, 0.9162908F, 0.6931472F});
  expect(make_categorical_cross_entropy({.from_logits = false, .label_smoothing = 0.1}), kShares, wanted,
         {0.4632974F, 0.9354696F, 0.7407177F});
}

TEST(Losses, OfClassesHaveAnElementForEachPosition) {
  const at::Tensor scores = torch::stack({kScores, kScores.flip(0) * 0.5}),
                   classes = torch::tensor({{0, 2, 1}, {1, 1, 0}});
  auto expect_elements = [&](const Loss& loss, const at::Tensor& target, std::vector<float> expected) {
    const at::Tensor elements = loss.elements(scores, target);
    EXPECT_TRUE(torch::allclose(elements, torch::tensor(expected).view({2, 3}), 1e-5, 1e-6)) << elements;
    EXPECT_TRUE(torch::allclose(loss(scores, target), elements.mean(1)));
  };

  expect_elements(sparse_categorical_cross_entropy, classes,
                  {0.2413113F, 1.420828F, 0.1429317F, 0.407606F, 1.004313F, 0.5279758F});
  const std::vector<float> smooth{0.3913113F, 1.390828F, 0.3429317F, 0.507606F, 1.014313F, 0.6029758F};
  expect_elements(make_sparse_categorical_cross_entropy({.label_smoothing = 0.1}), classes, smooth);
  expect_elements(make_categorical_cross_entropy({.label_smoothing = 0.1}), torch::one_hot(classes, 3), smooth);
  expect_elements(make_sparse_categorical_cross_entropy({.ignore_class = -1}), torch::tensor({{0, -1, 1}, {1, -1, -1}}),
                  {0.2413113F, 0, 0.1429317F, 0.407606F, 0, 0});
  expect(make_sparse_categorical_cross_entropy({.ignore_class = 255}), kScores, torch::tensor({0, 255, 1}),
         {0.2413113F, 0, 0.1429317F});
}

TEST(Losses, WithOptionsAreThoseOfKeras) {
  const at::Tensor logits = kOutput * 4 - 2, wanted = torch::one_hot(kClasses, 3);
  expect(huber(0.5), kOutput * 4, kTarget, {0.525F, 0.675F, 0.5775F});
  expect(huber(2), kOutput * 4, kTarget, {0.97F, 1.69F, 1.44F});
  expect(make_binary_cross_entropy({.label_smoothing = 0.2}), logits, kTarget, {0.4171916F, 0.608458F, 0.608458F});
  expect(make_binary_cross_entropy({.from_logits = false, .label_smoothing = 0.2}), kOutput, kTarget,
         {0.4015889F, 0.6004136F, 0.6004136F});
  expect(make_binary_focal_cross_entropy({.from_logits = false}), kOutput, kTarget,
         {0.02051324F, 0.1654591F, 0.1654592F});
  expect(make_binary_focal_cross_entropy({.gamma = 1.5, .alpha = 0.3, .from_logits = false, .label_smoothing = 0.1}),
         kOutput, kTarget, {0.02252561F, 0.06677409F, 0.1418949F});
  expect(make_categorical_focal_cross_entropy({}), kScores, wanted, {0.002773185F, 0.2043509F, 0.0006338545F});
  expect(make_categorical_focal_cross_entropy(
             {.gamma = 1.5, .alpha = {.2, .3, .5}, .from_logits = false, .label_smoothing = 0.1}),
         kShares, wanted, {0.05522266F, 0.2104836F, 0.08804756F});
}

TEST(Losses, RefuseOptionsThatAreNone) {
  EXPECT_THAT(message_of([] { make_binary_cross_entropy({.label_smoothing = 1.5}); }),
              HasSubstr("label_smoothing is 1.5, expected 0 to 1"));
  for (const double delta : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(message_of([&] { huber(delta); }), HasSubstr(", expected a number above 0")) << delta;
  }
  EXPECT_THAT(message_of([] { make_categorical_cross_entropy({.ignore_class = 1}); }),
              HasSubstr("expected make_sparse_categorical_cross_entropy"));
  EXPECT_THAT(message_of([] {
                make_categorical_focal_cross_entropy({.alpha = {.2, .3}})(kScores, torch::one_hot(kClasses, 3));
              }),
              HasSubstr("alpha has 2 numbers, expected one or one for each of 3 classes"));
}

TEST(Losses, HaveTheGradientsOfKeras) {
  auto expect_gradient = [](const Loss& loss, const at::Tensor& output, const at::Tensor& target,
                            std::vector<float> expected) {
    const at::Tensor x = output.clone().requires_grad_();
    loss(x, target).sum().backward();
    EXPECT_TRUE(torch::allclose(x.grad(), torch::tensor(expected).view(x.sizes()), 1e-4, 1e-6))
        << loss.name() << x.grad();
  };
  const at::Tensor logits = kOutput * 4 - 2, wanted = torch::one_hot(kClasses, 3);
  expect_gradient(mean_squared_error, kOutput, kTarget, {.2F, -.3F, -.1F, -.6F, .6F, .1F});
  expect_gradient(mean_absolute_error, kOutput, kTarget, {.5F, -.5F, -.5F, -.5F, .5F, .5F});
  expect_gradient(mean_squared_logarithmic_error, kOutput, kTarget,
                  {.1519346F, -.0955994F, -.0269965F, -.2547678F, .2937522F, .0866455F});
  expect_gradient(log_cosh, kOutput, kTarget, {.0986877F, -.1456564F, -.049834F, -.2685248F, .2685248F, .049834F});
  expect_gradient(poisson, kOutput, kTarget, {.5F, -.2142856F, -.0555555F, -.7499998F, .5F, .5F});
  expect_gradient(hinge, kOutput, kTarget, {.5F, -.5F, -.5F, -.5F, .5F, .5F});
  expect_gradient(squared_hinge, kOutput, kTarget, {1.2F, -.3F, -.1F, -.6F, 1.6F, 1.1F});
  expect_gradient(huber(0.5), kOutput * 4, kTarget, {.25F, .25F, .25F, .25F, .25F, .2F});
  expect_gradient(kl_divergence, kOutput, kTarget, {-5e-7F, -1.428571F, -1.111111F, -2.5F, -2e-7F, -1e-6F});
  expect_gradient(cosine_similarity, kOutput, kTarget, {.3628393F, -.1036682F, .1480327F, -.3330734F, 0, 0});
  expect_gradient(binary_cross_entropy, kOutput, kTarget, {.625F, -.7142858F, -.5555556F, -1.25F, 1.25F, .5555556F});
  expect_gradient(binary_cross_entropy_with_logits, logits, kTarget,
                  {.1157376F, -.1550128F, -.0839908F, -.2993438F, .2993438F, .0839908F});
  expect_gradient(binary_focal_cross_entropy(), logits, kTarget,
                  {.0170428F, -.0395096F, -.0066876F, -.238622F, .238622F, .0066876F});
  expect_gradient(make_categorical_cross_entropy({.label_smoothing = 0.1}), kScores, wanted,
                  {-.1477363F, .0057792F, .1419571F, .3269633F, .364856F, -.6918193F, -.0174571F, -.06652F, .0839771F});
  expect_gradient(
      sparse_categorical_cross_entropy, kScores, kClasses,
      {-.214403F, .0391126F, .1752904F, .3602966F, .3981893F, -.7584859F, .0158762F, -.1331867F, .1173104F});
  expect_gradient(make_sparse_categorical_cross_entropy({.from_logits = false}), kShares, kClasses,
                  {-.4285714F, 1, 1, 1, 1, -1.5F, 1, -1, 1});
  expect_gradient(
      make_categorical_focal_cross_entropy({}), kScores, wanted,
      {-.0068212F, .0012444F, .0055768F, .0987077F, .1090889F, -.2077967F, .0002014F, -.0016895F, .0014881F});
}

TEST(Losses, OfTripletsAreOfTheFarthestFriendAndTheNearestStranger) {
  const at::Tensor places = torch::tensor({{0.F, 0.F}, {3.F, 0.F}, {0.F, 2.F}, {9.F, 0.F}});
  expect(triplet(1), places, torch::tensor({0, 0, 1, 1}),
         {3 - 2 + 1.F, 0.F + 3 - 3.605551F + 1, 9.219544F - 2 + 1, 9.219544F - 6 + 1});
  expect(triplet(0.25), places, torch::tensor({0, 0, 1, 1}), {1.25F, 0, 9.219544F - 2 + 0.25F, 9.219544F - 6 + 0.25F});
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

TEST(Losses, OfSequencesTakeAnyClassForBlank) {
  torch::manual_seed(2);
  const at::Tensor scores = torch::randn({2, 5, 4}), wanted = torch::tensor({{0, 1, 3}, {2, 2, 3}});

  const at::Tensor expected =
      torch::ctc_loss(torch::log_softmax(scores, -1).transpose(0, 1), wanted, std::vector<int64_t>{5, 5},
                      std::vector<int64_t>{2, 2}, /*blank=*/3, at::Reduction::None);
  EXPECT_TRUE(torch::allclose(ctc(3)(scores, wanted), expected, 1e-5, 1e-5));
}

TEST(Losses, OfSequencesThatAreTooShortAreInfiniteOrZeroAndChangeNothing) {
  torch::manual_seed(3);
  const at::Tensor wanted = torch::tensor({{1, 2, 3}, {1, 1, 0}, {1, 0, 0}});  // of two times; the second needs a blank
  for (const bool zero_infinity : {false, true}) {
    const at::Tensor scores = torch::randn({3, 2, 4}).requires_grad_();
    const at::Tensor losses = ctc(0, zero_infinity)(scores, wanted);
    const at::Tensor expected =
        torch::ctc_loss(torch::log_softmax(scores.detach(), -1).transpose(0, 1), wanted, std::vector<int64_t>{2, 2, 2},
                        std::vector<int64_t>{3, 2, 1}, 0, at::Reduction::None, zero_infinity);
    EXPECT_TRUE(torch::allclose(losses, expected, 1e-5, 1e-5)) << losses << expected;

    losses.sum().backward();
    EXPECT_TRUE(torch::equal(scores.grad().narrow(0, 0, 2), torch::zeros({2, 2, 4})));
    EXPECT_GT(scores.grad()[2].abs().sum().item<float>(), 0);
  }
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
  auto error = [](const Loss& loss, const at::Tensor& output, const at::Tensor& target) {
    return message_of([&] { loss(output, target); });
  };
  EXPECT_THAT(error(mean_squared_error, torch::ones({3, 1}), torch::ones({3, 3})),
              HasSubstr("loss mean_squared_error: the output is float32[3, 1] and the target float32[3, 3]"));
  EXPECT_THAT(error(sparse_categorical_cross_entropy, kScores, torch::one_hot(kClasses, 3)),
              HasSubstr("expected the number of a class for each row of scores"));
}

TEST(Losses, OfClassesHaveAMeanThatIsThatOfAllOfThem) {
  const Loss& loss = sparse_categorical_cross_entropy;
  EXPECT_TRUE(torch::allclose(loss.mean(kScores, kClasses), loss(kScores, kClasses).mean()));
  EXPECT_EQ(loss.mean(kScores, kClasses.unsqueeze(1)).dim(), 0);

  EXPECT_FALSE(loss.mean(kScores.unsqueeze(0), kClasses.unsqueeze(0)).defined()) << "of positions";
  EXPECT_FALSE(loss.mean(kScores.to(torch::kHalf), kClasses).defined()) << "half of the digits are too few";
  EXPECT_FALSE(mean_squared_error.mean(kOutput, kTarget).defined());
  for (const ClassLossOptions& options :
       std::vector<ClassLossOptions>{{.from_logits = false}, {.label_smoothing = 0.1}, {.ignore_class = 2}}) {
    EXPECT_FALSE(make_sparse_categorical_cross_entropy(options).mean(kScores, kClasses).defined());
  }
  EXPECT_THAT(message_of([&] { loss.mean(kScores, torch::one_hot(kClasses, 3)); }),
              HasSubstr("expected the number of a class for each row of scores"));
}

TEST(Losses, MayBeLambdas) {
  const Loss loss = [](const at::Tensor& output, const at::Tensor& target) { return (output - target).abs().max(); };
  EXPECT_EQ(loss(torch::tensor({1.F, 5.F}), torch::zeros({2})).item<float>(), 5);
}

TEST(Losses, OfUsersDoNotCompareEachExampleWithEveryOtherByAccident) {
  const Loss loss = [](const at::Tensor& output, const at::Tensor& target) { return (output - target).square(); };

  EXPECT_THAT(message_of([&] { loss(torch::ones({4, 1}), torch::ones({4})); }),
              AllOf(HasSubstr("the output is float32[4, 1], the target float32[4] and the loss float32[4, 4]"),
                    HasSubstr("squeeze(-1)")));
  EXPECT_EQ(loss(torch::ones({4, 1}), torch::ones({4, 1})).numel(), 4);
  const Loss of_pairs = [](const at::Tensor& output, const at::Tensor& target) {
    return (output - output.t()).square() * (target == target.t());
  };
  EXPECT_EQ(of_pairs.elements(torch::ones({4, 1}), torch::ones({4, 1})).numel(), 16) << "somebody wants that";
}

}  // namespace
}  // namespace muster::losses_test

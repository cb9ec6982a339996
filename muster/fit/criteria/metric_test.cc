// The expected numbers are those of Keras 3.
#include "muster/fit/criteria/metric.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "muster/base/test_errors.h"
#include "muster/fit/criteria/criteria.h"

namespace muster::metric_test {
namespace {

using ::testing::HasSubstr;
using testing_support::message_of;

const at::Tensor kSaid = torch::tensor({0.1F, 0.4F, 0.35F, 0.8F, 0.65F, 0.9F, 0.05F, 0.5F, 0.55F, 0.3F});
const at::Tensor kTrue = torch::tensor({0.F, 0.F, 1.F, 1.F, 1.F, 1.F, 0.F, 1.F, 0.F, 0.F});
const at::Tensor kWeight = torch::tensor({1.F, 2.F, 1.F, 1.F, .5F, 1.F, 1.F, 1.F, 2.F, 1.F});

// In two batches, as they come from two workers.
double result(const Metric& metric, const at::Tensor& output, const at::Tensor& target, at::Tensor weights = {}) {
  if (!weights.defined()) weights = torch::ones({output.size(0)});
  const int64_t half = output.size(0) / 2, rest = output.size(0) - half;
  const at::Tensor sums =
      metric.sums(output.narrow(0, 0, half), target.narrow(0, 0, half), weights.narrow(0, 0, half)) +
      metric.sums(output.narrow(0, half, rest), target.narrow(0, half, rest), weights.narrow(0, half, rest));
  EXPECT_EQ(sums.numel(), metric.length()) << metric.name();
  return metric.result({sums.data_ptr<double>(), sums.data_ptr<double>() + sums.numel()});
}

TEST(Metrics, OfProbabilitiesAreThoseOfKerasWithAndWithoutWeights) {
  EXPECT_NEAR(result(Auc(), kSaid, kTrue), 0.88, 1e-6);
  EXPECT_NEAR(result(Auc(), kSaid, kTrue, kWeight), 0.8095238, 1e-6);
  EXPECT_NEAR(result(Auc({.precision_recall = true}), kSaid, kTrue), 0.893711, 1e-6);
  EXPECT_NEAR(result(Auc({.precision_recall = true}), kSaid, kTrue, kWeight), 0.7995569, 1e-6);

  at::Tensor beyond = kTrue.clone(), masked = torch::ones_like(kTrue);
  beyond[0] = 3;
  masked[0] = 0;
  for (const Metric& metric : {Metric(Auc()), Metric(Precision()), Metric(Recall()), Metric(F1())}) {
    EXPECT_TRUE(std::isnan(result(metric, kSaid, beyond))) << "a target that is neither 0 nor 1";
    EXPECT_EQ(result(metric, kSaid, beyond, masked), result(metric, kSaid, kTrue, masked)) << "which does not count";
  }
  EXPECT_NEAR(result(Precision(), kSaid, kTrue), 0.75, 1e-9);
  EXPECT_NEAR(result(Precision(), kSaid, kTrue, kWeight), 0.5555556, 1e-6);
  EXPECT_NEAR(result(Recall(), kSaid, kTrue), 0.6, 1e-9);
  EXPECT_NEAR(result(Recall(), kSaid, kTrue, kWeight), 0.5555556, 1e-6);
  EXPECT_NEAR(result(F1(), kSaid, kTrue), 0.6666667, 1e-6);
  EXPECT_NEAR(result(F1(), kSaid, kTrue, kWeight), 0.5555556, 1e-6);
  EXPECT_NEAR(result(Accuracy(), kSaid, kTrue), 0.7, 1e-9);
  EXPECT_NEAR(result(Accuracy(), kSaid, kTrue, kWeight), 0.6521739, 1e-6);
}

// Of float32 the three tenths are the threshold, and as float64 more than it.
TEST(Metrics, CompareWithThresholdsAsKerasDoesInFloat32) {
  const at::Tensor tenths = torch::tensor({0.1F, 0.2F, 0.3F, 0.4F, 0.5F, 0.6F, 0.7F, 0.8F, 0.9F, 1.0F});
  const at::Tensor wanted = torch::tensor({0.F, 1.F, 1.F, 1.F, 0.F, 1.F, 0.F, 1.F, 1.F, 1.F});
  const at::Tensor half = tenths.to(torch::kHalf);  // whose three tenths are more

  for (const at::Tensor& said : {tenths, tenths.to(torch::kDouble)}) {
    EXPECT_NEAR(result(Precision(0.3), said, wanted), 5.0 / 7, 1e-9);
    EXPECT_NEAR(result(Recall(0.3), said, wanted), 5.0 / 7, 1e-9);
    EXPECT_NEAR(result(F1(0.3), said, wanted), 5.0 / 7, 1e-9);
    EXPECT_NEAR(result(F1({.classes = 1, .threshold = 0.3}), said.unsqueeze(1), wanted.unsqueeze(1)), 5.0 / 7, 1e-9);
    EXPECT_NEAR(result(Accuracy("accuracy", 0.3), said, wanted), 0.6, 1e-9);
    EXPECT_NEAR(result(BinaryAccuracy(0.3), said, wanted), 0.6, 1e-9);
    EXPECT_NEAR(result(Auc({.thresholds = 11}), said, wanted), 14.0 / 21, 1e-9);
  }
  EXPECT_NEAR(result(Accuracy("accuracy", 0.3), half, wanted), 0.7, 1e-9);
  EXPECT_NEAR(result(BinaryAccuracy(0.3), half, wanted), 0.7, 1e-9);
}

TEST(Metrics, OfProbabilitiesTakeWhatIsNoNumberForTheSmallest) {
  const double no_number = std::numeric_limits<double>::quiet_NaN();
  at::Tensor some = kSaid.clone(), smallest = kSaid.clone();
  for (const int64_t place : {3, 8}) {  // one that is true, and one that is not
    some[place] = no_number;
    smallest[place] = 0;
  }

  for (const Metric& metric : std::vector<Metric>{Auc(), Auc({.precision_recall = true}), Precision(), Recall()}) {
    EXPECT_EQ(result(metric, some, kTrue), result(metric, smallest, kTrue)) << metric.name();
  }
  EXPECT_NE(result(Auc(), some, kTrue), result(Auc(), kSaid, kTrue));
  EXPECT_NO_THROW(result(Auc(), torch::full_like(kSaid, no_number), kTrue));
}

TEST(Metrics, OfNumbersAreThoseOfKeras) {
  EXPECT_NEAR(result(RootMeanSquaredError(), kSaid, kTrue), 0.3754997, 1e-6);
  EXPECT_NEAR(result(RootMeanSquaredError(), kSaid, kTrue, kWeight), 0.3968627, 1e-6);
  EXPECT_NEAR(result(MeanSquaredError(), kSaid, kTrue), 0.3754997 * 0.3754997, 1e-6);
  EXPECT_NEAR(result(MeanAbsoluteError(), kSaid.unsqueeze(1), kTrue), 0.32, 1e-6);
  EXPECT_NEAR(result(R2Score(), kSaid, kTrue), 0.436, 1e-6);
}

const at::Tensor kScores = torch::tensor({{.2F, .7F, .6F}, {.9F, .4F, .3F}, {.6F, .1F, .8F}, {.3F, .5F, .2F}});
const at::Tensor kShares = kScores / kScores.sum(1, true);
const at::Tensor kLabels = torch::tensor({{0.F, 1.F, 1.F}, {1.F, 1.F, 0.F}, {0.F, 0.F, 1.F}, {1.F, 0.F, 0.F}});
const at::Tensor kClasses = torch::tensor({1, 0, 2, 1}), kOneHot = torch::one_hot(kClasses, 3);
const at::Tensor kOf4 = torch::tensor({1.F, 2.F, .5F, 3.F});

TEST(Metrics, OfRightAnswersSayWhatIsRight) {
  EXPECT_NEAR(result(BinaryAccuracy(), kScores, kLabels), 0.75, 1e-6);  // of labels, not of examples
  EXPECT_NEAR(result(BinaryAccuracy(0.35), kScores, kLabels, kOf4), 0.6666667, 1e-6);
  EXPECT_NEAR(result(CategoricalAccuracy(), kScores, kOneHot), 1, 1e-9);
  EXPECT_NEAR(result(CategoricalAccuracy(), kScores, torch::one_hot(torch::tensor({0, 0, 1, 0}), 3), kOf4), 2 / 6.5,
              1e-6);
  const at::Tensor others = torch::tensor({0, 0, 1, 0});
  EXPECT_NEAR(result(SparseCategoricalAccuracy(), kScores, others, kOf4), 2 / 6.5, 1e-6);
  EXPECT_NEAR(result(SparseCategoricalAccuracy(1), kScores, others, kOf4), 2 / 6.0, 1e-6);  // without the third
  EXPECT_NEAR(result(TopKAccuracy(2), kScores, torch::tensor({0, 0, 1, 0}), kOf4), 0.7692308, 1e-6);
}

TEST(Metrics, OfRightAnswersTakeAFractionForTheNumberOfNoClass) {
  const at::Tensor fractions = torch::tensor({0.3F, 0.9F, 1.2F, 2.5F}), whole = kClasses.to(torch::kFloat);
  for (const Metric& metric : {Metric(SparseCategoricalAccuracy()), Metric(TopKAccuracy(3)), Metric(Accuracy())}) {
    EXPECT_EQ(result(metric, kScores, fractions), 0);
    EXPECT_EQ(result(metric, kScores, whole), 1);
  }
}

TEST(Metrics, OfRightAnswersRefuseTargetsThatWouldBeBroadcast) {
  auto message = [](const Metric& metric, const at::Tensor& target) {
    return testing_support::message_of([&] { metric.sums(kScores, target, torch::ones({4})); });
  };
  EXPECT_THAT(message(SparseCategoricalAccuracy(), kOneHot), HasSubstr("expected the number of a class for each row"));
  EXPECT_THAT(message(SparseCategoricalAccuracy(), torch::zeros({1}, torch::kLong)), HasSubstr("int64[1]"));
  EXPECT_THAT(message(Accuracy(), torch::zeros({1}, torch::kLong)), HasSubstr("metric accuracy: the output is"));
  EXPECT_THAT(message(CategoricalAccuracy(), kClasses), HasSubstr("expected a score and a share for each class"));
  EXPECT_THAT(message(BinaryAccuracy(), kClasses), HasSubstr("expected the same shape"));
}

TEST(Metrics, OfEntropyAreThoseOfKeras) {
  EXPECT_NEAR(result(BinaryCrossEntropy(), kScores, kLabels), 0.486169, 1e-6);
  EXPECT_NEAR(result(BinaryCrossEntropy("entropy", 0.2), kScores, kLabels, kOf4), 0.6124515, 1e-6);
  EXPECT_NEAR(result(CategoricalCrossEntropy(), kShares, kOneHot, kOf4), 0.662556, 1e-6);
  EXPECT_NEAR(result(CategoricalCrossEntropy("entropy", 0.1), kShares, kOneHot), 0.7240707, 1e-6);
  EXPECT_NEAR(result(SparseCategoricalCrossEntropy(), kShares, kClasses, kOf4), 0.662556, 1e-6);
  const at::Tensor some = torch::tensor({1, 0, 255, 1}), weights = kOf4 * torch::tensor({1.F, 1.F, 0.F, 1.F});
  EXPECT_NEAR(result(SparseCategoricalCrossEntropy(255), kShares, some, kOf4),
              result(SparseCategoricalCrossEntropy(), kShares, kClasses, weights), 1e-6);
}

// What judge() makes of outputs that the loss takes for something.
double judged(const Loss& loss, const Metric& metric, const at::Tensor& output, const at::Tensor& target) {
  const Criteria criteria({"output"}, loss, {}, {metric});
  const at::Tensor sums = criteria.judge({{"output"}, {output}}, {{.target = target}}, {}).sums;
  return criteria.logs({sums.data_ptr<double>(), sums.data_ptr<double>() + sums.numel()})[metric.name()];
}

TEST(Metrics, OfEntropyAreTheSameOfLogitsAndOfProbabilities) {
  const at::Tensor logits = kScores * 40 - 20, labels = kLabels;
  const Loss of_shares = make_sparse_categorical_cross_entropy({.from_logits = false});
  const double entropy = sparse_categorical_cross_entropy(kScores, kClasses).mean().item<double>();
  EXPECT_NEAR(entropy, 0.8670386, 1e-6);

  for (const Metric& metric :
       std::vector<Metric>{SparseCategoricalCrossEntropy(), MeanOf("logits", sparse_categorical_cross_entropy),
                           MeanOf("shares", of_shares)}) {
    EXPECT_NEAR(judged(sparse_categorical_cross_entropy, metric, kScores, kClasses), entropy, 1e-6) << metric.name();
    EXPECT_NEAR(judged(of_shares, metric, torch::softmax(kScores, 1), kClasses), entropy, 1e-6) << metric.name();
  }
  EXPECT_NEAR(judged(categorical_cross_entropy, CategoricalCrossEntropy(), kScores, kOneHot), entropy, 1e-6);
  // Logits themselves: their probabilities are rounded to 1.
  EXPECT_NEAR(judged(binary_cross_entropy_with_logits, BinaryCrossEntropy(), logits, labels),
              binary_cross_entropy_with_logits(logits, labels).mean().item<double>(), 1e-6);
  EXPECT_NEAR(judged(binary_cross_entropy, MeanOf("logits", binary_cross_entropy_with_logits), kScores, labels),
              0.486169, 1e-6);
  // A lambda says nothing of what outputs are.
  const Loss lambda = [](const at::Tensor& output, const at::Tensor& target) {
    return sparse_categorical_cross_entropy(output, target);
  };
  EXPECT_NEAR(judged(lambda, MeanOf("logits", sparse_categorical_cross_entropy), kScores, kClasses), entropy, 1e-6);
}

TEST(Metrics, AreMeansOfWhatAFunctionSays) {
  const MeanOf mean("mean", [](const at::Tensor& output, const at::Tensor&) { return output; });
  const at::Tensor values = torch::tensor({1.F, 2.F, 3.F, 4.F}), pairs = torch::stack({values, values * 3}, 1);
  const at::Tensor weights = torch::tensor({1.F, 0.F, 2.F, 1.F});

  EXPECT_NEAR(result(mean, values, values), 2.5, 1e-9);
  EXPECT_NEAR(result(mean, values, values, weights), 2.75, 1e-9);
  EXPECT_NEAR(result(mean, pairs, values, weights), 5.5, 1e-9);
  EXPECT_NEAR(result(mean, pairs, values, torch::stack({weights, weights * 0}, 1)), 2.75, 1e-9);
  EXPECT_THAT(testing_support::message_of([&] { result(mean, values, values, torch::ones({4, 2})); }),
              HasSubstr("metric mean, its weights: it is float64[2, 2]"));
}

TEST(Metrics, AreTheSameWithoutWeightsAsWithWeightsOfOne) {
  const at::Tensor positions = kScores.view({2, 2, 3}), of_positions = kClasses.view({2, 2});
  auto expect_same = [](const Metric& metric, const at::Tensor& output, const at::Tensor& target) {
    const at::Tensor sums = metric.sums(output, target, {});
    EXPECT_EQ(sums.scalar_type(), torch::kDouble) << metric.name();
    EXPECT_TRUE(torch::allclose(sums, metric.sums(output, target, torch::ones({output.size(0)})), 1e-7))
        << metric.name() << sums;
  };
  for (const Metric& metric :
       std::vector<Metric>{Accuracy(), SparseCategoricalAccuracy(), SparseCategoricalAccuracy(1), TopKAccuracy(2),
                           SparseCategoricalCrossEntropy(), SparseCategoricalCrossEntropy(1), MeanIoU(3)}) {
    expect_same(metric, kScores, kClasses);
    expect_same(metric, positions, of_positions);
  }
  for (const Metric& metric : std::vector<Metric>{BinaryAccuracy(), Accuracy("one", 0.3), CategoricalAccuracy(), Auc(),
                                                  RootMeanSquaredError(), MeanAbsoluteError()}) {
    expect_same(metric, kScores, kLabels);
  }
  for (const Metric& metric : std::vector<Metric>{Accuracy(), Precision(), R2Score(), MeanSquaredError()}) {
    expect_same(metric, kSaid, kTrue);
  }
  const MeanOf of_batch("mean", [](const at::Tensor& output, const at::Tensor&) { return output.mean(); });
  expect_same(of_batch, kSaid, kTrue);
  EXPECT_THAT(testing_support::message_of([&] {
                MeanOf("sums", [](const at::Tensor& output, const at::Tensor&) {
                  return output.sum(0);
                }).sums(kScores, kClasses, {});
              }),
              HasSubstr("metric sums, its weights: it is float64[4], expected one for each of 3 examples"));
}

TEST(Metrics, CountRightAnswersOverClosures) {
  const at::Tensor said = torch::tensor({0, 0, 1, 0, 1, 1}), zeros = torch::zeros({6});
  EXPECT_EQ(result(Accuracy(), said.to(torch::kFloat), zeros), 0.5);
}

TEST(Metrics, OfPositionsTakeAWeightForEach) {
  const at::Tensor scores = kScores.view({2, 2, 3}), classes = torch::tensor({{1, 0}, {2, 0}});
  const at::Tensor weights = torch::tensor({{1.F, 0.F}, {.5F, 2.F}});
  for (const Metric& metric : std::vector<Metric>{SparseCategoricalAccuracy(), Accuracy(), TopKAccuracy(1)}) {
    EXPECT_NEAR(result(metric, scores, classes, weights), 0.4285714, 1e-6) << metric.name();
  }
  EXPECT_NEAR(result(MeanOf("entropy", sparse_categorical_cross_entropy), scores, classes, weights), 1.034361, 1e-6);
  const at::Tensor flat_scores = scores.flatten(0, 1), flat_classes = classes.flatten(),
                   flat_weights = weights.flatten();
  for (const Metric& metric : std::vector<Metric>{MeanIoU(3), F1({.classes = 3}), SparseCategoricalCrossEntropy()}) {
    EXPECT_NEAR(result(metric, scores, classes, weights), result(metric, flat_scores, flat_classes, flat_weights), 1e-9)
        << metric.name();
  }
}

TEST(Metrics, OfF1AreThoseOfKerasForEachAverage) {
  using enum F1Options::Average;
  for (const auto& [average, highest, highest_weighted, above, above_weighted] :
       {std::tuple(kMacro, 0.6111111, 0.4523809, 0.7222222, 0.6777778),
        {kMicro, 0.6, 0.4375, 0.7272727, 0.6206897},
        {kWeighted, 0.6111111, 0.4699248, 0.7222222, 0.5964913}}) {
    const F1 of_highest({.classes = 3, .average = average}),
        of_all({.classes = 3, .average = average, .threshold = 0.5});
    EXPECT_NEAR(result(of_highest, kScores, kLabels), highest, 1e-6);
    EXPECT_NEAR(result(of_highest, kScores, kLabels, kOf4), highest_weighted, 1e-6);
    EXPECT_NEAR(result(of_all, kScores, kLabels), above, 1e-6);
    EXPECT_NEAR(result(of_all, kScores, kLabels, kOf4), above_weighted, 1e-6);
  }
  EXPECT_EQ(result(F1({.classes = 3}), kScores, kClasses), result(F1({.classes = 3}), kScores, kOneHot));
}

TEST(Metrics, OfTheBestScoresTakeOneAtLeast) {
  for (const int64_t k : {0, -1}) {
    EXPECT_THAT(testing_support::message_of([&] { TopKAccuracy metric(k); }),
                ::testing::HasSubstr(str_cat("TopKAccuracy: k is ", k, ", expected at least 1")));
  }
  EXPECT_NO_THROW(TopKAccuracy(1));
}

TEST(Metrics, OfF1HaveClassesToChooseFrom) {
  EXPECT_THAT(testing_support::message_of([] { F1({.classes = 1}); }),
              ::testing::HasSubstr("1 classes, of which the highest counts; expected at least 2"));
  EXPECT_THAT(testing_support::message_of([] { F1({.classes = 0, .threshold = 0.5}); }),
              ::testing::HasSubstr("expected at least 2"));
  EXPECT_NO_THROW(F1({.classes = 1, .threshold = 0.5}));
}

TEST(Metrics, OfSpreadAreThoseOfKerasForSeveralValues) {
  const at::Tensor said = torch::tensor({{1.F, 2.F, .5F}, {3.F, 1.F, 2.F}, {0.F, 4.F, 1.F}, {2.F, 2.F, 2.F}});
  const at::Tensor wanted = torch::tensor({{1.5F, 2.F, 0.F}, {2.5F, .5F, 2.F}, {0.F, 5.F, 1.F}, {1.F, 2.5F, 3.F}});
  const R2Score uniform({.outputs = 3}), by_variance({.outputs = 3, .average = R2Options::Average::kByVariance});

  EXPECT_NEAR(result(uniform, said, wanted), 0.7152014, 1e-6);
  EXPECT_NEAR(result(uniform, said, wanted, kOf4), 0.4715989, 1e-6);
  EXPECT_NEAR(result(by_variance, said, wanted), 0.7733333, 1e-6);
  EXPECT_NEAR(result(by_variance, said, wanted, kOf4), 0.584854, 1e-6);
  EXPECT_THAT(testing_support::message_of([&] { result(R2Score(), said, wanted); }),
              HasSubstr("R2Score({.outputs = 3}) is the mean of those of each"));
}

TEST(Metrics, OfSpreadAreNothingWhereTargetsAreAllAlike) {
  for (const double target : {0.1, 0.3, 3.7, -1234.5678}) {
    const at::Tensor wanted = torch::full({1001, 1}, target),
                     said = wanted + torch::linspace(-1, 1, 1001).view({-1, 1});
    const at::Tensor weights = torch::linspace(0.1, 2, 1001);
    const at::Tensor constant = torch::cat({wanted, said}, 1), guessed = torch::cat({said, said}, 1);

    EXPECT_EQ(result(R2Score(), said, wanted), 0) << target;
    EXPECT_EQ(result(R2Score(), said, wanted, weights), 0) << target;
    EXPECT_EQ(result(R2Score(), wanted, wanted), 1) << target;
    EXPECT_EQ(result(R2Score({.outputs = 2}), guessed, constant, weights), 0.5) << "of 0 and 1, for " << target;
  }
  const at::Tensor close = 1000 + torch::linspace(0, 0.1, 11);
  EXPECT_NEAR(result(R2Score(), close + 0.1, close), -9, 0.1) << "float32 tells these apart";
  EXPECT_EQ(result(R2Score(), close, close), 1);
}

TEST(Metrics, OfOverlapLeaveOutWhatIsNoClass) {
  const at::Tensor said = torch::tensor({0, 2, 2, 1, 1, 2}), wanted = torch::tensor({0, 1, 2, 1, 0, 2});
  const at::Tensor weights = torch::tensor({1.F, 2.F, .5F, 1.F, 3.F, 1.F});
  EXPECT_NEAR(result(MeanIoU(3), said, wanted, weights), 0.2817460, 1e-6);  // dtype="float32": else it cuts weights
  EXPECT_NEAR(result(MeanIoU(3), torch::tensor({0, 2, 2, 1, 1, 3}), torch::tensor({0, 1, 255, 1, -1, 2})), 0.5, 1e-6);
  const MeanIoU ignoring({.classes = 3, .ignore_class = 1});
  EXPECT_NEAR(result(ignoring, said, wanted), 0.5, 1e-6);
  EXPECT_NEAR(result(ignoring, said, wanted, weights), 0.4166667, 1e-6);
  // Maps of numbers, [examples, height, width], whose width is not that of scores.
  EXPECT_NEAR(result(MeanIoU(3), said.view({2, 1, 3}).expand({2, 2, 3}).contiguous().view({2, 3, 2}),
                     wanted.view({2, 1, 3}).expand({2, 2, 3}).contiguous().view({2, 3, 2})),
              0.5, 1e-6);
}

TEST(Metrics, OfClassesAreThoseOfKeras) {
  const at::Tensor scores = torch::tensor({{2.F, -1.F, 0.5F}, {0.1F, 0.2F, -0.3F}, {-1.F, 3.F, 1.F}});
  const at::Tensor classes = torch::tensor({0, 2, 1});

  EXPECT_NEAR(result(Accuracy(), scores, classes), 2.0 / 3, 1e-9);
  EXPECT_NEAR(result(Accuracy(), scores, torch::one_hot(classes, 3)), 2.0 / 3, 1e-9);
  EXPECT_NEAR(result(TopKAccuracy(2), scores, classes), 2.0 / 3, 1e-9);
  EXPECT_NEAR(result(TopKAccuracy(3), scores, classes), 1, 1e-9);
  EXPECT_NEAR(result(MeanIoU(3), torch::tensor({0, 2, 2, 1, 1, 2}), torch::tensor({0, 1, 2, 1, 0, 2})), 0.5, 1e-9);
}

TEST(Metrics, OfRanksTakeClassesOfEqualScoresAllInOrAllOut) {
  const float no_number = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor scores = torch::tensor({{1.F, 1.F, 0.F}, {1.F, 1.F, 0.F}, {0.F, 2.F, 0.F}, {0.F, 2.F, 0.F}});

  EXPECT_EQ(result(TopKAccuracy(1), scores, torch::tensor({0, 1, 0, 2})), 0.5);
  EXPECT_EQ(result(TopKAccuracy(2), scores, torch::tensor({0, 2, 0, 2})), 0.75);
  EXPECT_EQ(result(TopKAccuracy(2), scores, torch::tensor({-1, 3, 0, 2})), 0.5);  // the first two are no classes
  EXPECT_EQ(result(TopKAccuracy(1), torch::tensor({{no_number, 0.F}, {no_number, 0.F}}), torch::tensor({0, 1})), 0);
}

TEST(Metrics, OfRanksLookAtScoresAndNotAtProbabilitiesThatAreRoundedToOneNumber) {
  const at::Tensor scores = torch::tensor({{200.F, 0.F, 50.F}});  // the last two have the probability 0
  const Criteria criteria({"output"}, sparse_categorical_cross_entropy, {}, {TopKAccuracy(2)});

  const at::Tensor sums = criteria.judge({{"output"}, {scores}}, {{.target = torch::tensor({2})}}, {}).sums;

  const Logs logs = criteria.logs({sums.data_ptr<double>(), sums.data_ptr<double>() + sums.numel()});
  EXPECT_EQ(logs["top_k_accuracy"], 1);
}

TEST(Metrics, GiveAsManySumsAsTheyHaveSaid) {
  const auto metric = [](const std::vector<int64_t>& sizes) {
    return Metric(
        "own", 2, [sizes](const at::Tensor&, const at::Tensor&, const at::Tensor&) { return torch::ones(sizes); },
        [](const std::vector<double>& sums) { return sums[0]; });
  };
  const auto message = [&](const std::vector<int64_t>& sizes) {
    return message_of([&] { metric(sizes).sums(kSaid, kTrue, kWeight); });
  };

  EXPECT_THAT(message({4}), HasSubstr("metric own has given 4 sums of a batch, expected 2"));
  EXPECT_THAT(message({1}), HasSubstr("has given 1 sums of a batch"));
  EXPECT_THAT(message({}), HasSubstr("its sums are float32[], expected [2]"));
  EXPECT_EQ(metric({2}).sums(kSaid, kTrue, kWeight).numel(), 2);
}

TEST(Metrics, OfNothingAreNoError) {
  const at::Tensor none = torch::zeros({0});
  for (const Metric& metric : std::vector<Metric>{Accuracy(), Auc(), Precision(), RootMeanSquaredError(), R2Score()}) {
    const at::Tensor sums = metric.sums(none, none, none);
    EXPECT_FALSE(std::isnan(metric.result({sums.data_ptr<double>(), sums.data_ptr<double>() + sums.numel()})))
        << metric.name();
  }
}

}  // namespace
}  // namespace muster::metric_test

// The expected numbers are those of Keras 3.
#include "muster/fit/metric.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "muster/fit/criteria.h"

namespace muster {
namespace {

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
  EXPECT_NEAR(result(Precision(), kSaid, kTrue), 0.75, 1e-9);
  EXPECT_NEAR(result(Precision(), kSaid, kTrue, kWeight), 0.5555556, 1e-6);
  EXPECT_NEAR(result(Recall(), kSaid, kTrue), 0.6, 1e-9);
  EXPECT_NEAR(result(Recall(), kSaid, kTrue, kWeight), 0.5555556, 1e-6);
  EXPECT_NEAR(result(F1(), kSaid, kTrue), 0.6666667, 1e-6);
  EXPECT_NEAR(result(Accuracy(), kSaid, kTrue), 0.7, 1e-9);
  EXPECT_NEAR(result(Accuracy(), kSaid, kTrue, kWeight), 0.6521739, 1e-6);
}

TEST(Metrics, OfNumbersAreThoseOfKeras) {
  EXPECT_NEAR(result(RootMeanSquaredError(), kSaid, kTrue), 0.3754997, 1e-6);
  EXPECT_NEAR(result(RootMeanSquaredError(), kSaid, kTrue, kWeight), 0.3968627, 1e-6);
  EXPECT_NEAR(result(MeanSquaredError(), kSaid, kTrue), 0.3754997 * 0.3754997, 1e-6);
  EXPECT_NEAR(result(MeanAbsoluteError(), kSaid.unsqueeze(1), kTrue), 0.32, 1e-6);
  EXPECT_NEAR(result(R2Score(), kSaid, kTrue), 0.436, 1e-6);
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

TEST(Metrics, OfNothingAreNoError) {
  const at::Tensor none = torch::zeros({0});
  for (const Metric& metric : std::vector<Metric>{Accuracy(), Auc(), Precision(), RootMeanSquaredError(), R2Score()}) {
    const at::Tensor sums = metric.sums(none, none, none);
    EXPECT_FALSE(std::isnan(metric.result({sums.data_ptr<double>(), sums.data_ptr<double>() + sums.numel()})))
        << metric.name();
  }
}

}  // namespace
}  // namespace muster

// The expected numbers are those of Keras 3.
#include "muster/fit/criteria/criteria.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <limits>

#include "muster/base/test_errors.h"
#include "muster/trace/tracer/trace.h"

namespace muster::criteria_test {
namespace {

using testing_support::message_of;

using ::testing::HasSubstr;

using enum LossReduction;

const at::Tensor kValues = torch::tensor({{1.F, 2.F, 3.F}, {4.F, 5.F, 6.F}});  // of two examples, three positions each
const at::Tensor kWeights = torch::tensor({{1.F, 2.F, 0.F}, {.5F, 1.F, 3.F}});
const at::Tensor kMask = torch::tensor({{true, true, false}, {true, false, false}});
const at::Tensor kTarget = torch::zeros({2, 3});

// What the model says is its loss.
const Loss kOutput("output", [](const at::Tensor& output, const at::Tensor&) { return output; });

struct Number {
  double loss, epoch;  // that it goes down, and that of an epoch
};
Number loss_of(const Loss& loss, const at::Tensor& output, const Expected& expected, const at::Tensor& by_class = {}) {
  const Criteria criteria({"output"}, loss, {}, {});
  const Criteria::Judged judged = criteria.judge({{"output"}, {output}}, {expected}, by_class);
  const double* const sums = judged.sums.const_data_ptr<double>();
  EXPECT_EQ(judged.sums.numel(), criteria.length());
  return {judged.loss.item<double>(), criteria.logs({sums, sums + judged.sums.numel()})["loss"]};
}

void expect_loss(const Loss& loss, const at::Tensor& output, const Expected& expected, double number) {
  const auto [to_go_down, epoch] = loss_of(loss, output, expected);
  EXPECT_NEAR(to_go_down, number, 1e-6) << loss.name();
  EXPECT_NEAR(epoch, number, 1e-6) << loss.name();
}

TEST(Criteria, ReduceALossOfPositionsAsKerasDoes) {
  const at::Tensor none = kWeights * 0;
  for (const auto& [reduction, alone, weighted, masked, both, of_nothing] :
       {std::tuple(kSumOverBatchSize, 3.5, 5.0, 7.0 / 3, 7.0 / 3, 0.0),
        {kMeanWithSampleWeight, 3.5, 4.0, 7.0 / 3, 2.0, 0.0},
        {kSum, 21.0, 30.0, 7.0, 7.0, 0.0}}) {
    const Loss loss = kOutput.with(reduction);
    expect_loss(loss, kValues, {.target = kTarget}, alone);
    expect_loss(loss, kValues, {.target = kTarget, .weights = kWeights}, weighted);
    expect_loss(loss, kValues, {.target = kTarget, .mask = kMask}, masked);
    expect_loss(loss, kValues, {.target = kTarget, .mask = kMask.to(torch::kLong)}, masked);
    expect_loss(loss, kValues, {.target = kTarget, .weights = kMask}, masked);
    expect_loss(loss, kValues, {.target = kTarget, .weights = kWeights, .mask = kMask}, both);
    expect_loss(loss, kValues, {.target = kTarget, .weights = none}, of_nothing);
    expect_loss(loss, kValues, {.target = kTarget, .mask = none}, of_nothing);
  }
}

TEST(Criteria, ReduceALossOfExamplesAsKerasDoes) {
  const at::Tensor values = torch::tensor({2.F, 5.F}), weights = torch::tensor({2.F, .5F});
  const at::Tensor mask = torch::tensor({true, false}), target = torch::zeros({2});
  for (const auto& [reduction, weighted, masked, both] :
       {std::tuple(kSumOverBatchSize, 3.25, 2.0, 4.0), {kMeanWithSampleWeight, 2.6, 2.0, 2.0}, {kSum, 6.5, 2.0, 4.0}}) {
    const Loss loss = kOutput.with(reduction);
    expect_loss(loss, values, {.target = target, .weights = weights}, weighted);
    expect_loss(loss, values, {.target = target, .weights = weights.unsqueeze(1)}, weighted);
    expect_loss(loss, values, {.target = target, .mask = mask}, masked);
    expect_loss(loss, values, {.target = target, .weights = weights, .mask = mask}, both);
  }
}

TEST(Criteria, AddUpTheMeanOfTheValuesOfOneThing) {
  // As in Keras, the last dimension of a loss of numbers.
  expect_loss(mean_absolute_error.with(kSum), kValues, {.target = kTarget}, 2 + 5);
  expect_loss(mean_absolute_error.with(kSum), kValues, {.target = kTarget, .weights = torch::tensor({2.F, 1.F})}, 9);
  expect_loss(mean_absolute_error.with(kSum), kValues, {.target = kTarget, .weights = kWeights}, 30);
}

TEST(Criteria, WeighPositionsOfExamplesThatHaveWeights) {
  const at::Tensor of_examples = torch::tensor({true, false});
  expect_loss(kOutput, kValues, {.target = kTarget, .weights = kWeights, .mask = of_examples}, (1 + 4 + 0) / 3.0);
  expect_loss(kOutput, kValues, {.target = kTarget, .weights = torch::tensor({2.F, 3.F}), .mask = kMask},
              (2 * 3 + 3 * 4) / 3.0);
}

TEST(Criteria, DoNotCountAClassThatIsIgnored) {
  const at::Tensor scores = torch::tensor({{2.F, -1.F, 0.5F}, {0.1F, 0.2F, -0.3F}, {-1.F, 3.F, 1.F}});
  const at::Tensor both = torch::stack({scores, scores.flip(0) * 0.5}),
                   classes = torch::tensor({{0, -1, 1}, {1, -1, -1}});
  for (const bool from_logits : {true, false}) {
    const Loss loss = make_sparse_categorical_cross_entropy({.from_logits = from_logits, .ignore_class = -1});
    const at::Tensor output = from_logits ? both : torch::softmax(both, -1);
    expect_loss(loss, output, {.target = classes}, 0.2639497);
    expect_loss(loss, output.flatten(0, 1), {.target = classes.flatten()}, 0.2639497);
    expect_loss(loss, output.flatten(0, 1), {.target = classes.view({6, 1})}, 0.2639497);
    expect_loss(loss, output, {.target = classes, .mask = torch::tensor({{0, 1, 1}, {1, 1, 0}})},
                (0.1429317 + 0.407606) / 2);
    expect_loss(loss, output, {.target = torch::full({2, 3}, -1)}, 0);
  }
}

TEST(Criteria, DoNotLookAtWhatIsMasked) {
  const at::Tensor output = kValues.masked_fill(kMask.logical_not(), std::numeric_limits<float>::quiet_NaN());
  expect_loss(kOutput, output, {.target = kTarget, .mask = kMask}, 7.0 / 3);
}

// Loss, gradient and metrics are those of the rows that count alone.
TEST(Criteria, PassOverTargetsThatAreNoNumbersWhereAMaskSaysSo) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor mask = torch::tensor({true, false, true});
  const at::Tensor target = torch::tensor({{1.F, 0.F}, {nan, nan}, {0.F, 1.F}});
  const at::Tensor values = torch::tensor({{.3F, .6F}, {.2F, .9F}, {.4F, .7F}});
  const MetricList metrics{MeanSquaredError(),      BinaryAccuracy(),   Auc(),
                           R2Score({.outputs = 2}), F1({.classes = 2}), BinaryCrossEntropy()};
  struct Seen {
    at::Tensor loss, gradient;
    Logs logs{};
  };
  auto see = [&](const Loss& loss, const at::Tensor& of, const Expected& expected) {
    const Criteria criteria({"output"}, loss, {}, metrics);
    const at::Tensor output = of.clone().requires_grad_();
    const Criteria::Judged judged = criteria.judge({{"output"}, {output}}, {expected}, {});
    judged.loss.backward();
    const double* const sums = judged.sums.const_data_ptr<double>();
    return Seen{judged.loss.detach(), output.grad(), criteria.logs({sums, sums + judged.sums.numel()})};
  };
  const at::Tensor counted = torch::tensor({0, 2});

  for (const Loss& loss : {mean_squared_error, binary_cross_entropy_with_logits, binary_cross_entropy, poisson,
                           mean_squared_error.with(kSum), mean_squared_error.with(kMeanWithSampleWeight)}) {
    const Seen masked = see(loss, values, {.target = target, .mask = mask});
    const Seen alone = see(loss, values.index_select(0, counted),
                           {.target = target.index_select(0, counted), .mask = torch::tensor({true, true})});

    EXPECT_TRUE(torch::allclose(masked.loss, alone.loss)) << loss.name() << masked.loss << alone.loss;
    EXPECT_TRUE(torch::allclose(masked.gradient.index_select(0, counted), alone.gradient)) << masked.gradient;
    EXPECT_TRUE(torch::equal(masked.gradient[1], torch::zeros({2}))) << masked.gradient;
    for (const auto& [name, value] : alone.logs) EXPECT_NEAR(masked.logs[name], value, 1e-6) << loss.name() << name;
  }
}

TEST(Criteria, PassOverLabelsThatAreNoClassesWhereAMaskSaysSo) {
  const at::Tensor mask = torch::tensor({{true, true, false}, {true, false, false}});
  const at::Tensor scores = (torch::manual_seed(1), torch::randn({2, 3, 4}));
  for (const at::ScalarType type : {torch::kLong, torch::kInt, torch::kFloat}) {
    const at::Tensor padded = torch::tensor({{1, 3, -100}, {0, -1, 255}}).to(type);
    for (const bool from_logits : {true, false}) {
      const Criteria criteria({"output"}, make_sparse_categorical_cross_entropy({.from_logits = from_logits}), {},
                              {Accuracy(), SparseCategoricalCrossEntropy(), MeanIoU({.classes = 4})});
      auto see = [&](const at::Tensor& target, bool in_rows) {
        const at::Tensor of = (from_logits ? scores : torch::softmax(scores, -1)).clone().requires_grad_();
        const auto row = [&](const at::Tensor& each) { return in_rows ? each.flatten(0, 1) : each; };
        const Criteria::Judged judged =
            criteria.judge({{"output"}, {row(of)}}, {{.target = row(target), .mask = row(mask)}}, {});
        judged.loss.backward();
        return std::tuple(judged.loss.detach(), of.grad(), judged.sums);
      };
      for (const bool in_rows : {true, false}) {
        const auto [loss, gradient, sums] = see(padded, in_rows);
        const auto [loss_of_0, gradient_of_0, sums_of_0] = see(padded.masked_fill(mask.logical_not(), 0), in_rows);

        EXPECT_TRUE(torch::equal(loss, loss_of_0)) << loss << loss_of_0;
        EXPECT_TRUE(torch::equal(gradient, gradient_of_0));
        EXPECT_TRUE(torch::equal(sums, sums_of_0)) << sums << sums_of_0;
      }
    }
  }
}

TEST(Criteria, LeaveTheLabelsOfWhatIsMaskedToALossThatComparesExamples) {
  const at::Tensor output = (torch::manual_seed(1), torch::randn({4, 2})), classes = torch::tensor({0, 1, 1, 5});
  const at::Tensor each = triplet()(output, classes);

  expect_loss(triplet(), output, {.target = classes, .mask = torch::tensor({true, true, true, false})},
              each.slice(0, 0, 3).mean().item<double>());
}

TEST(Criteria, CountFurtherThanHalfOfTheDigits) {
  const at::Tensor ones = torch::ones({70'000}, torch::kHalf);
  expect_loss(kOutput, ones, {.target = ones, .mask = ones}, 1);
  expect_loss(kOutput, ones, {.target = ones, .weights = ones}, 1);
  expect_loss(kOutput.with(kMeanWithSampleWeight), ones, {.target = ones, .weights = ones}, 1);
}

TEST(Criteria, MakeASumOverAllBatchesOfAStep) {
  const Criteria criteria({"output"}, kOutput.with(kSum), {}, {});
  auto judge = [&](const at::Tensor& output) {
    return criteria.judge({{"output"}, {output}}, {{.target = output}}, {}, 2);
  };
  const Criteria::Judged first = judge(kValues[0]), second = judge(kValues[1]);

  // The step goes down the mean of both.
  EXPECT_NEAR((first.loss + second.loss).item<double>() / 2, 21, 1e-6);
  const at::Tensor sums = first.sums + second.sums;
  EXPECT_NEAR(criteria.logs({sums.data_ptr<double>(), sums.data_ptr<double>() + sums.numel()})["loss"], 21, 1e-6);
}

// Keras weighs each by its examples: 16.
TEST(Criteria, MakeOfSumsOfStepsTheirMean) {
  const Criteria criteria({"output"}, kOutput.with(kSum), {}, {});
  auto sums_of = [&](const at::Tensor& output) {
    return criteria.judge({{"output"}, {output}}, {{.target = output}}, {}).sums;
  };
  const at::Tensor sums = sums_of(kValues) + sums_of(kValues.narrow(0, 0, 1));  // 21 and 6

  EXPECT_NEAR(criteria.logs({sums.data_ptr<double>(), sums.data_ptr<double>() + sums.numel()})["loss"], 13.5, 1e-6);
}

TEST(Criteria, AddUpExactlyOverBatchesOfDifferentLengths) {
  const Criteria criteria({"output"}, kOutput, {},
                          {MeanOf("mean", [](const at::Tensor& output, const at::Tensor&) { return output; })});
  auto sums_of = [&](const at::Tensor& output, const at::Tensor& mask) {
    return criteria.judge({{"output"}, {output}}, {{.target = output, .mask = mask}}, {}).sums;
  };
  const at::Tensor sums = sums_of(kValues.narrow(0, 0, 1), kMask.narrow(0, 0, 1)) +
                          sums_of(kValues.slice(0, 1, 2).slice(1, 0, 1), torch::tensor({{true}}));

  const Logs logs = criteria.logs({sums.data_ptr<double>(), sums.data_ptr<double>() + sums.numel()});
  EXPECT_NEAR(logs["loss"], 7.0 / 3, 1e-6);
  EXPECT_NEAR(logs["mean"], 7.0 / 3, 1e-6);
}

// The names of the ops of a step; all weights are 1 if there are some.
std::vector<std::string> ops_of_a_step(bool weighted) {
  const Criteria criteria({"output"}, sparse_categorical_cross_entropy, {}, {Accuracy()});
  auto step = [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    Expected expected{.target = in[1]};
    if (weighted) expected.weights = in[2];
    const Criteria::Judged judged = criteria.judge({{"output"}, {in[0]}}, {expected}, {});
    return {judged.sums, judged.loss};
  };
  const TracedProgram traced = trace(step, {torch::randn({4, 3}), torch::tensor({0, 2, 1, 1}), torch::ones({4})}, {});
  std::vector<std::string> names;
  for (const Instruction& instruction : traced.program.instructions) {
    names.push_back(traced.program.op_of(instruction).name);
  }
  return names;
}

TEST(Criteria, TakeFewerOpsWhereAllExamplesCountAlike) {
  const std::vector<std::string> weighted = ops_of_a_step(true), alike = ops_of_a_step(false);

  EXPECT_THAT(weighted, ::testing::IsSupersetOf({"aten::dot", "aten::_to_copy"})) << "as they are named here";
  EXPECT_LT(alike.size(), weighted.size());
  for (const char* const op : {"aten::dot", "aten::_to_copy", "aten::stack", "aten::ones", "aten::div"}) {
    EXPECT_THAT(alike, ::testing::Not(::testing::Contains(op)));
  }
}

TEST(Criteria, AreTheSameWithoutWeightsAsWithWeightsOfOne) {
  torch::manual_seed(3);
  const at::Tensor scores = torch::randn({37, 5}), classes = torch::randint(5, {37});
  const Criteria criteria({"output"}, sparse_categorical_cross_entropy, {},
                          {Accuracy(), SparseCategoricalCrossEntropy(), TopKAccuracy(2)});
  auto judged = [&](const at::Tensor& weights) {
    const at::Tensor output = scores.clone().requires_grad_();
    const Criteria::Judged all = criteria.judge({{"output"}, {output}}, {{.target = classes, .weights = weights}}, {});
    all.loss.backward();
    return std::pair(all.sums, output.grad());
  };

  const auto [sums, gradient] = judged({});
  const auto [sums_of_ones, gradient_of_ones] = judged(torch::ones({37}));

  EXPECT_EQ(sums.scalar_type(), torch::kDouble);
  EXPECT_TRUE(torch::allclose(sums, sums_of_ones, 1e-6)) << sums << sums_of_ones;
  EXPECT_TRUE(torch::allclose(gradient, gradient_of_ones, 1e-5, 1e-7));
}

TEST(Criteria, GoDownNothingInABatchWithoutExamples) {
  const auto [to_go_down, epoch] =
      loss_of(sparse_categorical_cross_entropy, torch::zeros({0, 3}), {.target = torch::zeros({0}, torch::kLong)});

  EXPECT_EQ(to_go_down, 0);
  EXPECT_EQ(epoch, 0);
}

TEST(Criteria, RefuseWeightsThatWouldBeBroadcast) {
  auto message = [](const Expected& expected) { return message_of([&] { loss_of(kOutput, kValues, expected); }); };
  EXPECT_THAT(message({.target = kTarget, .weights = torch::ones({2, 2})}),
              HasSubstr("sample_weight: it is float32[2, 2], expected one for each of 2 examples, or for each position "
                        "of what it weighs, which is float32[2, 3]"));
  EXPECT_THAT(message({.target = kTarget, .weights = torch::ones({3})}), HasSubstr("sample_weight: it is float32[3]"));
  EXPECT_THAT(message({.target = kTarget, .mask = torch::ones({3, 2})}), HasSubstr("mask: it is bool[3, 2]"));
  EXPECT_THAT(message_of([&] { loss_of(kl_divergence, kValues, {.target = kTarget, .weights = kWeights}); }),
              HasSubstr("which is float32[2]"));
}

TEST(Criteria, WeighClassesAsKerasDoes) {
  const at::Tensor by_class = torch::tensor({5.F, 2.F, 1.F});  // of 0 and 1; the last is of others
  const at::Tensor ones = torch::ones({4});
  EXPECT_NEAR(loss_of(kOutput, ones, {.target = torch::tensor({-1, 0, 1, 7})}, by_class).epoch, (1 + 5 + 2 + 1) / 4.0,
              1e-6);
  const at::Tensor scores = torch::ones({2, 3}), one_hot = torch::tensor({{0.F, 1.F, 0.F}, {1.F, 0.F, 0.F}});
  EXPECT_NEAR(loss_of(kOutput, scores, {.target = one_hot}, by_class).epoch, (2 + 5) / 2.0, 1e-6);
  EXPECT_NEAR(
      loss_of(kOutput, ones, {.target = torch::tensor({0, 0, 1, 1}), .weights = torch::arange(4)}, by_class).epoch,
      (5 + 4 + 6) / 4.0, 1e-6);
}

}  // namespace
}  // namespace muster::criteria_test

// Each rule beside its formula, written once more for one number.
#include "muster/train/adaptive_optimizers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "muster/base/status.h"
#include "muster/base/test_errors.h"
#include "muster/cluster/in_process_cluster.h"
#include "muster/distribute/servers/parameter_server_strategy.h"
#include "muster/trace/function.h"

namespace muster::adaptive_optimizers_test {
namespace {

// Changes a number by its gradient, and what it remembers.
using Formula = std::function<void(double& w, double g, int step)>;

// Takes steps down sum(weights * w^2 / 2), all of the table or some rows, and compares.
void expect_follows(const Optimizer& optimizer, Variable w, const std::function<Formula()>& make,
                    bool by_rows = false) {
  const at::Tensor slopes = torch::linspace(-1, 2, w.value().numel(), torch::kDouble).reshape(w.sizes());
  const at::Tensor ids = torch::arange(w.sizes()[0]);
  auto step = function([&] {
    const at::Tensor values = by_rows ? lookup(w, ids) : w.value();
    optimizer.minimize((values.square() * slopes * 0.5 + values * 0.1).sum());
  });
  std::vector<Formula> formulas;
  std::vector<double> expected;
  const at::Tensor start = w.value().clone().flatten(), slope = slopes.flatten();
  for (int64_t i = 0; i < start.numel(); ++i) {
    formulas.push_back(make());
    expected.push_back(start[i].item<double>());
  }
  for (int number = 1; number <= 5; ++number) {
    step();
    const at::Tensor now = w.value().flatten();
    for (int64_t i = 0; i < now.numel(); ++i) {
      double& value = expected[static_cast<size_t>(i)];
      formulas[static_cast<size_t>(i)](value, slope[i].item<double>() * value + 0.1, number);
      ASSERT_NEAR(now[i].item<double>(), value, 1e-10) << "number " << i << " after step " << number;
    }
  }
}

Variable table() {
  torch::manual_seed(1);
  return Variable(torch::randn({4, 3}, torch::kDouble));
}

template <class Rule, class Options>
void expect_rule(Options options, const std::function<Formula()>& make) {
  for (const bool by_rows : {false, true}) {
    SCOPED_TRACE(by_rows ? "by rows" : "whole");
    const Variable w = table();
    const Rule rule({w}, options);
    expect_follows(rule, w, make, by_rows);
  }
}

TEST(Adadelta, FollowsItsFormula) {
  expect_rule<Adadelta>(AdadeltaOptions{.learning_rate = 0.5, .weight_decay = 0.1}, [] {
    return [s = 0.0, d = 0.0](double& w, double g, int) mutable {
      g += 0.1 * w;
      s = 0.9 * s + 0.1 * g * g;
      const double change = std::sqrt(d + 1e-6) / std::sqrt(s + 1e-6) * g;
      d = 0.9 * d + 0.1 * change * change;
      w -= 0.5 * change;
    };
  });
}

TEST(Adamax, FollowsItsFormula) {
  expect_rule<Adamax>(AdamaxOptions{.learning_rate = 0.1}, [] {
    return [m = 0.0, u = 0.0](double& w, double g, int step) mutable {
      m = 0.9 * m + 0.1 * g;
      u = std::max(0.999 * u, std::abs(g) + 1e-8);
      w -= 0.1 / (1 - std::pow(0.9, step)) * m / u;
    };
  });
}

TEST(Nadam, FollowsItsFormula) {
  expect_rule<Nadam>(NadamOptions{.learning_rate = 0.1}, [] {
    return [m = 0.0, v = 0.0, product = 1.0](double& w, double g, int step) mutable {
      auto mu = [](int t) { return 0.9 * (1 - 0.5 * std::pow(0.96, t * 0.004)); };
      product *= mu(step);
      m = 0.9 * m + 0.1 * g;
      v = 0.999 * v + 0.001 * g * g;
      const double divisor = std::sqrt(v / (1 - std::pow(0.999, step))) + 1e-8;
      w -= 0.1 * (1 - mu(step)) / (1 - product) * g / divisor;
      w -= 0.1 * mu(step + 1) / (1 - product * mu(step + 1)) * m / divisor;
    };
  });
}

// What torch.optim of PyTorch 2.10 has made, in float64, of 0.5, -1 and 2 in five steps down slope * w^2 / 2 + w / 10.
template <class Rule, class Options>
void expect_what_pytorch_made(Options options, const std::vector<double>& expected, double tolerance = 1e-12) {
  Variable w(torch::tensor({0.5, -1.0, 2.0}, torch::kDouble));
  const Rule rule({w}, options);
  const at::Tensor slopes = torch::tensor({-1.0, 0.5, 2.0}, torch::kDouble);
  auto step = function([&] { rule.minimize((w.value().square() * slopes * 0.5 + w.value() * 0.1).sum()); });
  for (int i = 0; i < 5; ++i) step();
  EXPECT_TRUE(torch::allclose(w.value(), torch::tensor(expected, torch::kDouble), tolerance, 1e-13)) << w.value();
}

TEST(Adadelta, IsWherePyTorchWas) {
  expect_what_pytorch_made<Adadelta>(AdadeltaOptions{}, {0.516591577337105, -0.983647944490607, 1.98359835803269});
  expect_what_pytorch_made<Adadelta>(AdadeltaOptions{.learning_rate = 0.5, .rho = 0.8, .weight_decay = 0.1},
                                     {0.506078409755377, -0.993951933936685, 1.99394611074063});
}

TEST(Adamax, IsWherePyTorchWas) {
  expect_what_pytorch_made<Adamax>(AdamaxOptions{}, {0.509955180247628, -0.990007223093255, 1.9899910659747});
  expect_what_pytorch_made<Adamax>(AdamaxOptions{.learning_rate = 0.1, .weight_decay = 0.1},
                                   {0.936333057645767, -0.56158829569508, 1.52516624619805});
}

TEST(Nadam, IsWherePyTorchWas) {
  const double of_float = 1e-7;  // in which PyTorch keeps the product of the momenta
  expect_what_pytorch_made<Nadam>(NadamOptions{}, {0.508123735479421, -0.991913773047309, 1.99190608883723}, of_float);
  expect_what_pytorch_made<Nadam>(NadamOptions{.learning_rate = 0.1, .weight_decay = 0.1},
                                  {0.951633461266211, -0.630268963627269, 1.60812797962611}, of_float);
}

TEST(Ftrl, FollowsItsFormula) {
  expect_rule<Ftrl>(FtrlOptions{.learning_rate = 0.2, .l1 = 0.05, .l2 = 0.1, .l2_shrinkage = 0.01, .beta = 0.3}, [] {
    return [n = 0.1, z = 0.0](double& w, double g, int) mutable {
      const double more = n + g * g;
      z += g + 2 * 0.01 * w - (std::sqrt(more) - std::sqrt(n)) / 0.2 * w;
      const double l2 = 0.1 + 0.3 / (2 * 0.2);
      w = (std::clamp(z, -0.05, 0.05) - z) / (std::sqrt(more) / 0.2 + 2 * l2);
      n = more;
    };
  });
}

TEST(Ftrl, KeepsWeightsOfSmallGradientsAtZero) {
  Variable w(torch::zeros({2}, torch::kDouble));
  const Ftrl ftrl({w}, {.learning_rate = 0.1, .l1 = 0.5});
  auto step = function([&] { ftrl.minimize((w * torch::tensor({0.001, -3.0}, torch::kDouble)).sum()); });
  for (int i = 0; i < 10; ++i) step();
  EXPECT_EQ(w.value()[0].item<double>(), 0);
  EXPECT_GT(w.value()[1].item<double>(), 0);
}

TEST(Ftrl, StaysWhereItIsAtARateOfZero) {
  const at::Tensor ids = torch::arange(4);
  for (const bool by_rows : {false, true}) {
    SCOPED_TRACE(by_rows ? "by rows" : "whole");
    const Variable w = table(), other = table();
    const at::Tensor start = w.value().clone();
    const Ftrl warming_up({w}, {.learning_rate = warm_up(2, 0.2)}), at_once({other}, {.learning_rate = 0.1});
    auto down = [&](const Ftrl& ftrl, const Variable& variable) {
      const at::Tensor values = by_rows ? lookup(variable, ids) : variable.value();
      ftrl.minimize((values.sin() * 3).sum());
    };
    auto step = function([&] { down(warming_up, w); });
    auto step_at_once = function([&] { down(at_once, other); });

    step();
    EXPECT_TRUE(torch::equal(w.value(), start)) << w.value();
    step();
    step_at_once();

    EXPECT_FALSE(torch::equal(w.value(), start));
    EXPECT_TRUE(torch::allclose(w.value(), other.value(), 1e-10, 1e-10)) << "it remembers nothing of the first step";
  }
}

TEST(Ftrl, LeavesNumbersAloneThatHaveSeenNoGradient) {
  Variable w(torch::ones({2}, torch::kDouble));
  const Ftrl ftrl({w}, {.learning_rate = 0.1, .initial_accumulator = 0});
  auto step = function([&] { ftrl.minimize((w * torch::tensor({0.0, 3.0}, torch::kDouble)).sum()); });

  step();

  EXPECT_EQ(w.value()[0].item<double>(), 1);
  EXPECT_LT(w.value()[1].item<double>(), 1);
}

TEST(Ftrl, RefusesADecayOfAGroup) {
  const auto with_decay = [](double decay) {
    Ftrl({.all = {.groups = {{.names = "^wide", .rate_factor = 0.5, .weight_decay = decay}}}});
  };

  EXPECT_THAT(testing_support::message_of([&] { with_decay(0.1); }),
              ::testing::HasSubstr("ftrl: group \"^wide\" has the weight_decay 0.1, which this rule has not"));
  EXPECT_NO_THROW(with_decay(0));
}

TEST(Lion, FollowsItsFormula) {
  expect_rule<Lion>(LionOptions{.learning_rate = 0.01, .weight_decay = 0.1}, [] {
    return [m = 0.0](double& w, double g, int) mutable {
      const double mean = 0.9 * m + 0.1 * g;
      w = w * (1 - 0.01 * 0.1) - 0.01 * (mean > 0 ? 1 : -1);
      m = 0.99 * m + 0.01 * g;
    };
  });
}

TEST(Lamb, TakesStepsAsLongAsTheWeights) {
  const Variable w = table();
  const at::Tensor slopes = torch::linspace(-1, 2, 12, torch::kDouble).reshape({4, 3});
  const Lamb lamb({w}, {.learning_rate = 0.1, .weight_decay = 0.2});
  auto step = function([&] { lamb.minimize((w.value().square() * slopes * 0.5).sum()); });
  at::Tensor expected = w.value().clone(), m = torch::zeros({4, 3}, torch::kDouble), v = m.clone();
  for (int number = 1; number <= 5; ++number) {
    step();
    const at::Tensor g = expected * slopes;
    m = 0.9 * m + 0.1 * g;
    v = 0.999 * v + 0.001 * g * g;
    const at::Tensor direction =
        (m / (1 - std::pow(0.9, number))) / ((v / (1 - std::pow(0.999, number))).sqrt() + 1e-6) + 0.2 * expected;
    expected = expected - 0.1 * expected.norm() / direction.norm() * direction;
    ASSERT_TRUE(torch::allclose(w.value(), expected, 1e-10, 1e-10)) << "after step " << number;
  }
}

// The rows that a step looks up are what its length is of: with that of a large table, a few rows would go too far.
TEST(Lamb, TakesTheRowsThatAreLookedUpForALayer) {
  const Variable w = table();
  const at::Tensor start = w.value().clone(), kept = torch::tensor({0, 2}), others = torch::tensor({1, 3});
  const Variable rows(start.index_select(0, kept));
  const LambOptions options{.learning_rate = 0.1, .weight_decay = 0.2};
  const Lamb by_rows({w}, options), whole({rows}, options);
  auto step = function([&] { by_rows.minimize((lookup(w, kept).sin() * 3).sum()); });
  auto step_whole = function([&] { whole.minimize((rows.value().sin() * 3).sum()); });

  for (int i = 0; i < 4; ++i) {
    step();
    step_whole();
  }

  EXPECT_TRUE(torch::allclose(w.value().index_select(0, kept), rows.value(), 1e-10, 1e-10));
  EXPECT_TRUE(torch::equal(w.value().index_select(0, others), start.index_select(0, others)));
}

TEST(Lamb, MeasuresWeightsOfFloat16ThatHaveNoSquaresOfTheirType) {
  const Variable half(torch::full({4}, 300, torch::kHalf)), whole(torch::full({4}, 300, torch::kFloat));
  const Lamb of_half({half}, {.learning_rate = 0.1}), of_whole({whole}, {.learning_rate = 0.1});
  auto step = function([&] {
    of_half.minimize((half.value() * 3).sum());
    of_whole.minimize((whole.value() * 3).sum());
  });

  for (int i = 0; i < 2; ++i) step();

  EXPECT_TRUE(torch::allclose(half.value().to(torch::kFloat), whole.value(), 1e-2)) << half.value() << whole.value();
  EXPECT_LT(whole.value().max().item<float>(), 250);
}

TEST(Lamb, TakesEachPartOfAVariableForALayer) {
  const InProcessCluster cluster({.workers = 1, .ps = 2});
  const ParameterServerStrategy strategy(cluster.resolver(), {.partitioner = FixedShardsPartitioner{2}});
  const at::Tensor start = table().value();
  const auto w = strategy.make<Variable>(start);
  const Variable upper(start.narrow(0, 0, 2).clone()), lower(start.narrow(0, 2, 2).clone());
  const Lamb in_parts({w}, {.learning_rate = 0.1}), apart({upper, lower}, {.learning_rate = 0.1});
  auto step = function([&] { in_parts.minimize((w.value().sin() * 3).sum()); });
  auto step_apart =
      function([&] { apart.minimize((upper.value().sin() * 3).sum() + (lower.value().sin() * 3).sum()); });

  for (int i = 0; i < 4; ++i) {
    strategy.run(step);
    step_apart();
  }

  EXPECT_TRUE(torch::allclose(w.value(), torch::cat({upper.value(), lower.value()}), 1e-10, 1e-10));
}

TEST(AdaptiveOptimizers, HideNoGradientThatIsNoNumber) {
  const Variable of_ftrl(torch::ones({2}, torch::kDouble)), of_lion(torch::ones({2}, torch::kDouble));
  const Ftrl ftrl({of_ftrl}, {.learning_rate = 0.1});
  const Lion lion({of_lion}, {.learning_rate = 0.1});
  const at::Tensor slopes = torch::tensor({std::numeric_limits<double>::quiet_NaN(), 3.0}, torch::kDouble);
  auto step = function([&] {
    ftrl.minimize((of_ftrl.value() * slopes).sum());
    lion.minimize((of_lion.value() * slopes).sum());
  });

  step();

  for (const Variable& variable : {of_ftrl, of_lion}) {
    EXPECT_TRUE(std::isnan(variable.value()[0].item<double>())) << variable.value();
    EXPECT_LT(variable.value()[1].item<double>(), 1) << variable.value();
  }
}

TEST(AdaptiveOptimizers, RefuseOptionsThatAreNone) {
  EXPECT_THROW(Adadelta({.rho = 1}), Error);
  EXPECT_THROW(Adamax({.beta1 = -0.1}), Error);
  EXPECT_THROW(Nadam({.momentum_decay = -1}), Error);
  EXPECT_THROW(Ftrl({.learning_rate_power = 0.5}), Error);
  EXPECT_THROW(Ftrl({.learning_rate = -0.1}), Error);
  EXPECT_THROW(Lamb({.weight_decay = -1}), Error);
  EXPECT_THROW(Lion({.beta2 = 1.5}), Error);
}

}  // namespace
}  // namespace muster::adaptive_optimizers_test

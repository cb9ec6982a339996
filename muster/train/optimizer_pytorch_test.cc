// The rules of optimizer.h, step by step beside libtorch's own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>

#include "muster/trace/function.h"
#include "muster/train/adaptive_optimizers.h"
#include "muster/train/optimizers.h"

namespace muster {
namespace {

using Parameters = std::vector<at::Tensor>;
using Variables = std::vector<Variable>;

struct Rule {
  std::string name;
  std::function<std::shared_ptr<Optimizer>(const Variables&)> ours;
  std::function<std::shared_ptr<torch::optim::Optimizer>(const Parameters&)> theirs;
};

template <class Ours, class OurOptions, class Theirs, class TheirOptions>
Rule rule(std::string name, OurOptions ours, TheirOptions theirs) {
  return {std::move(name), [ours](const Variables& v) { return std::make_shared<Ours>(v, ours); },
          [theirs](const Parameters& p) { return std::make_shared<Theirs>(p, theirs); }};
}

std::vector<Rule> rules() {
  namespace optim = torch::optim;
  using Sgds = optim::SGDOptions;
  using Adagrads = optim::AdagradOptions;
  using Adams = optim::AdamOptions;
  using AdamWs = optim::AdamWOptions;
  using RmsProps = optim::RMSpropOptions;
  auto sgd = [](std::string name, SgdOptions ours, Sgds theirs) {
    return rule<Sgd, SgdOptions, optim::SGD>(std::move(name), ours, theirs);
  };
  auto adagrad = [](std::string name, AdagradOptions ours, Adagrads theirs) {
    return rule<Adagrad, AdagradOptions, optim::Adagrad>(std::move(name), ours, theirs);
  };
  auto adam = [](std::string name, AdamOptions ours, Adams theirs) {
    return rule<Adam, AdamOptions, optim::Adam>(std::move(name), ours, theirs);
  };
  auto adamw = [](std::string name, AdamWOptions ours, AdamWs theirs) {
    return rule<AdamW, AdamWOptions, optim::AdamW>(std::move(name), ours, theirs);
  };
  auto rmsprop = [](std::string name, RmsPropOptions ours, RmsProps theirs) {
    return rule<RmsProp, RmsPropOptions, optim::RMSprop>(std::move(name), ours, theirs);
  };
  return {
      sgd("Sgd", {}, Sgds(0.01)),
      sgd("SgdWithRate", {.learning_rate = 0.3}, Sgds(0.3)),
      sgd("SgdWithDecay", {.learning_rate = 0.1, .weight_decay = 0.2}, Sgds(0.1).weight_decay(0.2)),
      sgd("SgdWithMomentum", {.learning_rate = 0.1, .momentum = 0.9}, Sgds(0.1).momentum(0.9)),
      sgd("SgdWithMomentumAndDecay", {.learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.2},
          Sgds(0.1).momentum(0.9).weight_decay(0.2)),
      sgd("SgdWithDampening", {.learning_rate = 0.1, .momentum = 0.9, .dampening = 0.3},
          Sgds(0.1).momentum(0.9).dampening(0.3)),
      sgd("SgdWithDampeningAndDecay", {.learning_rate = 0.1, .momentum = 0.9, .dampening = 1, .weight_decay = 0.2},
          Sgds(0.1).momentum(0.9).dampening(1).weight_decay(0.2)),
      sgd("SgdWithNesterov", {.learning_rate = 0.1, .momentum = 0.9, .nesterov = true},
          Sgds(0.1).momentum(0.9).nesterov(true)),
      sgd("SgdWithNesterovAndDecay", {.learning_rate = 0.1, .momentum = 0.9, .nesterov = true, .weight_decay = 0.2},
          Sgds(0.1).momentum(0.9).nesterov(true).weight_decay(0.2)),
      adagrad("Adagrad", {}, Adagrads()),
      adagrad("AdagradWithRate", {.learning_rate = 0.3}, Adagrads(0.3)),
      adagrad("AdagradWithAccumulator", {.learning_rate = 0.3, .initial_accumulator = 0.5, .epsilon = 1e-3},
              Adagrads(0.3).initial_accumulator_value(0.5).eps(1e-3)),
      adagrad("AdagradWithDecay", {.learning_rate = 0.3, .weight_decay = 0.2}, Adagrads(0.3).weight_decay(0.2)),
      adam("Adam", {}, Adams()),
      adam("AdamWithRate", {.learning_rate = 0.1}, Adams(0.1)),
      adam("AdamWithAll", {.learning_rate = 0.1, .beta1 = 0.8, .beta2 = 0.9, .epsilon = 1e-3, .weight_decay = 0.2},
           Adams(0.1).betas({0.8, 0.9}).eps(1e-3).weight_decay(0.2)),
      adam("AdamWithAmsgrad", {.learning_rate = 0.1, .amsgrad = true}, Adams(0.1).amsgrad(true)),
      adamw("AdamW", {}, AdamWs()),
      adamw("AdamWWithRate", {.learning_rate = 0.1}, AdamWs(0.1)),
      adamw("AdamWWithAll", {.learning_rate = 0.1, .beta1 = 0.8, .beta2 = 0.9, .epsilon = 1e-3, .weight_decay = 0.2},
            AdamWs(0.1).betas({0.8, 0.9}).eps(1e-3).weight_decay(0.2)),
      adamw("AdamWWithoutDecay", {.learning_rate = 0.1, .weight_decay = 0}, AdamWs(0.1).weight_decay(0)),
      adamw("AdamWWithAmsgrad", {.learning_rate = 0.1, .amsgrad = true}, AdamWs(0.1).amsgrad(true)),
      rmsprop("RmsProp", {}, RmsProps()),
      rmsprop("RmsPropWithAll",
              {.learning_rate = 0.02,
               .alpha = 0.9,
               .epsilon = 1e-4,
               .momentum = 0.5,
               .centered = true,
               .weight_decay = 0.1},
              RmsProps(0.02).alpha(0.9).eps(1e-4).momentum(0.5).centered(true).weight_decay(0.1)),
  };
}

class OptimizerBesidePyTorch : public ::testing::TestWithParam<Rule> {
 protected:
  void begin(const std::vector<at::Tensor>& values) {
    for (const at::Tensor& value : values) {
      variables.emplace_back(value);
      parameters.push_back(value.clone().requires_grad_());
    }
    ours = GetParam().ours(variables);
    theirs = GetParam().theirs(parameters);
  }
  void step_theirs(const at::Tensor& loss) {
    theirs->zero_grad();
    loss.backward();
    theirs->step();
  }
  void expect_equal(int step) {
    for (size_t i = 0; i < variables.size(); ++i) {
      ASSERT_TRUE(torch::allclose(variables[i].value(), parameters[i].detach(), 1e-5, 1e-6))
          << "variable " << i << " after step " << step << ":\n"
          << variables[i].value() << "\ninstead of\n"
          << parameters[i].detach();
    }
  }

  Variables variables;
  Parameters parameters;
  std::shared_ptr<Optimizer> ours;
  std::shared_ptr<torch::optim::Optimizer> theirs;
};

TEST_P(OptimizerBesidePyTorch, TakesTheSameSteps) {
  torch::manual_seed(1);
  begin({torch::randn({4, 3}), torch::randn({3})});
  auto loss_of = [](const at::Tensor& w, const at::Tensor& b, const at::Tensor& x) {
    return torch::addmm(b, x, w).square().mean();
  };
  auto step = function([&](at::Tensor x) { ours->minimize(loss_of(variables[0], variables[1], x)); });

  for (int i = 0; i < 6; ++i) {
    const at::Tensor x = torch::randn({8, 4});
    step(x);
    step_theirs(loss_of(parameters[0], parameters[1], x));
    expect_equal(i);
  }
}

TEST_P(OptimizerBesidePyTorch, LeavesVariablesAloneThatTheLossDoesNotDependOn) {
  torch::manual_seed(2);
  begin({torch::randn({4, 3}), torch::randn({3}), torch::randn({2})});
  std::vector<at::Tensor> before;
  for (const Variable& slot : ours->slots()) before.push_back(slot.value().clone());
  auto loss_of = [](const at::Tensor& w, const at::Tensor& b, const at::Tensor& x, bool biased) {
    return (biased ? torch::addmm(b, x, w) : torch::matmul(x, w)).square().mean();
  };
  auto step =
      function([&](at::Tensor x, bool biased) { ours->minimize(loss_of(variables[0], variables[1], x, biased)); });

  for (int i = 0; i < 6; ++i) {  // the second one every other time, the third one never
    const at::Tensor x = torch::randn({8, 4});
    const bool biased = i % 2 == 0;
    step(x, biased);
    step_theirs(loss_of(parameters[0], parameters[1], x, biased));
    expect_equal(i);
  }

  const size_t slots = ours->slots().size() / 3;
  for (size_t i = 2 * slots; i < 3 * slots; ++i) {
    EXPECT_TRUE(torch::equal(ours->slots()[i].value(), before[i])) << ours->slots()[i].name();
  }
}

TEST_P(OptimizerBesidePyTorch, TrainsATableThatIsLookedUpAndUsedWhole) {
  torch::manual_seed(3);
  begin({torch::randn({6, 3})});
  auto loss_of = [](const at::Tensor& rows, const at::Tensor& table, const at::Tensor& words) {
    return torch::cross_entropy_loss(torch::matmul(rows.tanh(), table.t()), words);
  };
  auto step = function([&](at::Tensor ids, at::Tensor words) {
    ours->minimize(loss_of(lookup(variables[0], ids), variables[0], words));
  });

  for (int i = 0; i < 6; ++i) {
    const at::Tensor ids = torch::randint(0, 6, {4}, torch::kLong), words = torch::randint(0, 6, {4}, torch::kLong);
    step(ids, words);
    step_theirs(loss_of(parameters[0].index_select(0, ids), parameters[0], words));
    expect_equal(i);
  }
}

// PyTorch has no rule for rows but SparseAdam's, which libtorch lacks. A table of which the same rows are looked up in
// every step is one of those rows.
TEST_P(OptimizerBesidePyTorch, TrainsRowsAsIfTheTableHadNoOthers) {
  torch::manual_seed(4);
  const at::Tensor start = torch::randn({6, 3}), ids = torch::tensor({4, 1, 4, 0}), kept = torch::tensor({0, 1, 4});
  Variable table(start);
  ours = GetParam().ours({table});
  at::Tensor rows = start.index_select(0, kept).requires_grad_();
  theirs = GetParam().theirs({rows});
  auto step = function([&](at::Tensor target) { ours->minimize((lookup(table, ids) - target).square().sum()); });

  for (int i = 0; i < 6; ++i) {
    const at::Tensor target = torch::randn({4, 3});
    step(target);
    step_theirs((rows.index_select(0, torch::tensor({2, 1, 2, 0})) - target).square().sum());
    ASSERT_TRUE(torch::allclose(table.value().index_select(0, kept), rows.detach(), 1e-5, 1e-6)) << "after step " << i;
  }

  const at::Tensor others = torch::tensor({2, 3, 5});
  EXPECT_TRUE(torch::equal(table.value().index_select(0, others), start.index_select(0, others)));
}

INSTANTIATE_TEST_SUITE_P(Rules, OptimizerBesidePyTorch, ::testing::ValuesIn(rules()),
                         [](const auto& info) { return info.param.name; });

// What each row has seen is its own affair, so a row is like a parameter that has no gradient in the other steps.
class RowsBesidePyTorch : public OptimizerBesidePyTorch {};

TEST_P(RowsBesidePyTorch, TrainsEachRowAsAParameterOfItsOwn) {
  torch::manual_seed(5);
  const at::Tensor start = torch::randn({6, 3});
  Variable table(start);
  ours = GetParam().ours({table});
  for (int64_t i = 0; i < 6; ++i) parameters.push_back(start[i].clone().requires_grad_());
  theirs = GetParam().theirs(parameters);
  auto step = function(
      [&](at::Tensor ids, at::Tensor target) { ours->minimize((lookup(table, ids) - target).square().sum()); });

  for (int i = 0; i < 8; ++i) {
    const at::Tensor ids = torch::randint(0, 6, {3}, torch::kLong), target = torch::randn({3, 3});
    step(ids, target);
    std::vector<at::Tensor> rows;
    for (int64_t j = 0; j < 3; ++j) rows.push_back(parameters[ids[j].item<int64_t>()]);
    step_theirs((torch::stack(rows) - target).square().sum());
    std::vector<at::Tensor> all;
    for (const at::Tensor& row : parameters) all.push_back(row.detach());
    ASSERT_TRUE(torch::allclose(table.value(), torch::stack(all), 1e-5, 1e-6)) << "after step " << i;
  }
}

std::vector<Rule> rules_without_a_count_of_steps() {
  std::vector<Rule> all = rules();
  std::erase_if(all, [](const Rule& rule) { return rule.name.starts_with("Adam"); });
  return all;
}

INSTANTIATE_TEST_SUITE_P(Rules, RowsBesidePyTorch, ::testing::ValuesIn(rules_without_a_count_of_steps()),
                         [](const auto& info) { return info.param.name; });

// Changes the rows that were looked up by their gradient, and what the rule remembers of those rows.
using RowFormula =
    std::function<void(at::Tensor& values, const at::Tensor& gradient, std::vector<at::Tensor>& slots, int step)>;

// Takes steps with other rows each, and compares the whole table: with rows that were looked up in each step, in some,
// and in none (the last).
void expect_rows_follow(const std::function<std::shared_ptr<Optimizer>(const Variables&)>& make, size_t slots,
                        const RowFormula& formula) {
  torch::manual_seed(6);
  at::Tensor expected = torch::randn({7, 3});
  std::vector<at::Tensor> remembered;
  for (size_t i = 0; i < slots; ++i) remembered.push_back(torch::zeros({7, 3}));
  Variable table(expected.clone());
  const std::shared_ptr<Optimizer> optimizer = make({table});
  auto step = function(
      [&](at::Tensor ids, at::Tensor target) { optimizer->minimize((lookup(table, ids) - target).square().sum()); });

  for (int i = 1; i <= 6; ++i) {
    const at::Tensor ids = torch::tensor({i % 6, (i * 2) % 5}), target = torch::randn({2, 3});
    step(ids, target);
    if (ids[0].item<int64_t>() == ids[1].item<int64_t>()) FAIL() << "rows are different in this test";
    at::Tensor values = expected.index_select(0, ids);
    std::vector<at::Tensor> rows;
    for (const at::Tensor& slot : remembered) rows.push_back(slot.index_select(0, ids));
    formula(values, 2 * (values - target), rows, i);
    expected.index_copy_(0, ids, values);
    for (size_t k = 0; k < slots; ++k) remembered[k].index_copy_(0, ids, rows[k]);
    ASSERT_TRUE(torch::allclose(table.value(), expected, 1e-4, 1e-5)) << "after step " << i << ":\n"
                                                                      << table.value() << "\ninstead of\n"
                                                                      << expected;
  }
}

template <class Kind, class Options>
std::function<std::shared_ptr<Optimizer>(const Variables&)> of_rule(Options options) {
  return [options](const Variables& variables) { return std::make_shared<Kind>(variables, options); };
}

void add_to_mean_and_variance(std::vector<at::Tensor>& slots, const at::Tensor& gradient) {
  slots[0] = slots[0] * 0.9 + gradient * 0.1;
  slots[1] = slots[1] * 0.999 + gradient.square() * 0.001;
}

// torch.optim.SparseAdam: the mean and the variance of the rows that have a gradient move, and the count of steps is
// the table's. So it is with all rules that count.
TEST(RowsBesidePyTorch, FollowSparseAdam) {
  expect_rows_follow(of_rule<Adam>(AdamOptions{.learning_rate = 0.1}), 2,
                     [](at::Tensor& values, const at::Tensor& gradient, auto& slots, int step) {
                       add_to_mean_and_variance(slots, gradient);
                       const double rate = 0.1 * std::sqrt(1 - std::pow(0.999, step)) / (1 - std::pow(0.9, step));
                       values.sub_(slots[0] / (slots[1].sqrt() + 1e-8), rate);
                     });
}

TEST(RowsBesidePyTorch, DecayInAdamWWhenTheyAreLookedUp) {
  expect_rows_follow(of_rule<AdamW>(AdamWOptions{.learning_rate = 0.1, .weight_decay = 0.5}), 2,
                     [](at::Tensor& values, const at::Tensor& gradient, auto& slots, int step) {
                       add_to_mean_and_variance(slots, gradient);
                       const double rate = 0.1 * std::sqrt(1 - std::pow(0.999, step)) / (1 - std::pow(0.9, step));
                       values.mul_(1 - 0.1 * 0.5).sub_(slots[0] / (slots[1].sqrt() + 1e-8), rate);
                     });
}

TEST(RowsBesidePyTorch, RememberTheirLargestVarianceInAmsgrad) {
  expect_rows_follow(of_rule<Adam>(AdamOptions{.learning_rate = 0.1, .amsgrad = true}), 3,
                     [](at::Tensor& values, const at::Tensor& gradient, auto& slots, int step) {
                       add_to_mean_and_variance(slots, gradient);
                       slots[2] = at::maximum(slots[2], slots[1]);
                       const double rate = 0.1 * std::sqrt(1 - std::pow(0.999, step)) / (1 - std::pow(0.9, step));
                       values.sub_(slots[0] / (slots[2].sqrt() + 1e-8), rate);
                     });
}

TEST(RowsBesidePyTorch, ShareTheMomentumOfTheTableInNadam) {
  auto momentum = [](int step) { return 0.9 * (1 - 0.5 * std::pow(0.96, step * 0.004)); };
  expect_rows_follow(of_rule<Nadam>(NadamOptions{.learning_rate = 0.1}), 2,
                     [=, product = 1.0](at::Tensor& values, const at::Tensor& gradient, auto& slots, int step) mutable {
                       add_to_mean_and_variance(slots, gradient);
                       product *= momentum(step);
                       const double next = momentum(step + 1);
                       const at::Tensor divisor = (slots[1] / (1 - std::pow(0.999, step))).sqrt() + 1e-8;
                       values.sub_(gradient / divisor, 0.1 * (1 - momentum(step)) / (1 - product));
                       values.sub_(slots[0] / divisor, 0.1 * next / (1 - product * next));
                     });
}

TEST(RowsBesidePyTorch, RememberTheirLargestGradientInAdamax) {
  expect_rows_follow(of_rule<Adamax>(AdamaxOptions{.learning_rate = 0.1}), 2,
                     [](at::Tensor& values, const at::Tensor& gradient, auto& slots, int step) {
                       slots[0] = slots[0] * 0.9 + gradient * 0.1;
                       slots[1] = at::maximum(slots[1] * 0.999, gradient.abs() + 1e-8);
                       values.sub_(slots[0] / slots[1], 0.1 / (1 - std::pow(0.9, step)));
                     });
}

}  // namespace
}  // namespace muster

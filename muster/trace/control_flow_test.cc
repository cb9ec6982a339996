#include "muster/trace/control_flow.h"

#include "muster/trace/function.h"
#include "muster/trace/module_variables.h"
#include "muster/trace/replay_test.h"
#include "muster/trace/variable.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

at::Tensor floats(std::vector<float> values) { return torch::tensor(values); }

// ---- cond
TEST(Cond, RunsTheBranchThatTheValueChooses) {
  auto choose = function([](at::Tensor x) { return cond(x.sum() > 0, [&] { return x * 2; }, [&] { return x - 1; }); });

  EXPECT_TRUE(same_bits(floats({2, 4}), choose(floats({1, 2}))));
  EXPECT_TRUE(same_bits(floats({-2, -3}), choose(floats({-1, -2}))));
  EXPECT_EQ(choose.stats().misses, 1);
}

TEST(Cond, ReturnsTuplesAndVectors) {
  auto choose = function([](at::Tensor x) {
    return cond(
        x.sum() > 0, [&] { return std::make_tuple(x, std::vector<at::Tensor>{x + 1, x + 2}); },
        [&] { return std::make_tuple(x * 0, std::vector<at::Tensor>{x, x}); });
  });

  auto [first, rest] = choose(floats({1}));
  auto [other, others] = choose(floats({-1}));

  EXPECT_TRUE(same_bits(floats({1}), first));
  EXPECT_TRUE(same_bits(floats({3}), rest[1]));
  EXPECT_TRUE(same_bits(floats({-0.0f}), other));
  EXPECT_TRUE(same_bits(floats({-1}), others[1]));
}

TEST(Cond, WritesVariablesInTheBranchThatRunsOnly) {
  Variable yes(torch::zeros({1})), no(torch::zeros({1}));
  auto count = function([&](at::Tensor x) {
    cond(x.sum() > 0, [&] { yes.assign_add(torch::ones({1})); }, [&] { no.assign_add(torch::ones({1})); });
  });

  count(floats({1}));
  count(floats({1}));
  count(floats({-1}));

  EXPECT_EQ(yes.value().item<float>(), 2);
  EXPECT_EQ(no.value().item<float>(), 1);
}

TEST(Cond, HasTheGradientOfTheBranchThatRan) {
  Variable w(floats({3, 5}));
  auto by = function([&](at::Tensor x) {
    at::Tensor y = cond(x.sum() > 0, [&] { return x * w.value(); }, [&] { return x - w.value().square(); });
    return gradient((y * y).sum(), w);
  });
  auto eager = [&](const at::Tensor& x) {
    at::Tensor value = w.value().clone().requires_grad_();
    at::Tensor y = x.sum().item<float>() > 0 ? x * value : x - value.square();
    return torch::autograd::grad({(y * y).sum()}, {value})[0];
  };

  EXPECT_TRUE(same_bits(eager(floats({1, 2})), by(floats({1, 2}))));
  EXPECT_TRUE(same_bits(eager(floats({-1, -2})), by(floats({-1, -2}))));
}

TEST(Cond, HasGradientsByTheResultsOfOpsBeforeIt) {
  Variable w(floats({3, 5}));
  auto step = [](const at::Tensor& weight, const at::Tensor& x, const auto& choose) {
    const at::Tensor before = (weight * x).sin();
    const at::Tensor y = choose(before.sum() > 0, [&] { return before.exp() * weight; }, [&] { return before * 2; });
    return (y * before).sum();
  };
  auto by = function([&](at::Tensor x) {
    return gradient(step(w.value(), x, [](const at::Tensor& p, auto a, auto b) { return cond(p, a, b); }), w);
  });

  for (const at::Tensor& x : {floats({0.3, 0.1}), floats({-0.3, -0.1})}) {
    const at::Tensor value = w.value().clone().requires_grad_();
    const at::Tensor loss =
        step(value, x, [](const at::Tensor& p, auto a, auto b) { return p.item<bool>() ? a() : b(); });

    EXPECT_TRUE(torch::allclose(torch::autograd::grad({loss}, {value})[0], by(x)));
  }
}

TEST(Cond, NestsInItself) {
  auto sign = function([](at::Tensor x) {
    return cond(
        x > 0, [&] { return torch::ones({}); },
        [&] { return cond(x < 0, [&] { return -torch::ones({}); }, [&] { return torch::zeros({}); }); });
  });

  EXPECT_EQ(sign(torch::full({}, 3.0)).item<float>(), 1);
  EXPECT_EQ(sign(torch::full({}, -3.0)).item<float>(), -1);
  EXPECT_EQ(sign(torch::full({}, 0.0)).item<float>(), 0);
}

TEST(Cond, RejectsBranchesOfDifferentShapesAndTypes) {
  auto shapes = function([](at::Tensor x) { return cond(x.sum() > 0, [&] { return x; }, [&] { return x.sum(); }); });
  auto types =
      function([](at::Tensor x) { return cond(x.sum() > 0, [&] { return x; }, [&] { return x.to(torch::kLong); }); });

  EXPECT_THAT(error_of([&] { shapes(floats({1, 2})); }),
              HasSubstr("cond: the second branch: tensor 0 is float32[], expected float32[2]"));
  EXPECT_THAT(error_of([&] { types(floats({1, 2})); }), HasSubstr("tensor 0 is int64[2], expected float32[2]"));
}

TEST(Cond, RejectsAPredicateOfSeveralElements) {
  auto choose = function([](at::Tensor x) { return cond(x > 0, [&] { return x; }, [&] { return -x; }); });

  EXPECT_THAT(error_of([&] { choose(floats({1, 2})); }),
              HasSubstr("the predicate must have one element, but it is bool[2]"));
}

TEST(Cond, IsAnOrdinaryIfOutsideOfATrace) {
  int calls = 0;
  const at::Tensor x = floats({1, 2});

  const at::Tensor y = cond(x.sum() > 0, [&] { return ++calls, x * 2; }, [&] { return ++calls, x; });

  EXPECT_TRUE(same_bits(floats({2, 4}), y));
  EXPECT_EQ(calls, 1);
}

// ---- while_loop
TEST(WhileLoop, RunsUntilItsTestSaysNo) {
  auto doubled = function([](at::Tensor x) {
    return while_loop([](at::Tensor s) { return s.sum() < 100; }, [](at::Tensor s) { return s * 2; }, x);
  });

  EXPECT_TRUE(same_bits(floats({64, 64}), doubled(floats({1, 1}))));
  EXPECT_TRUE(same_bits(floats({60, 60}), doubled(floats({15, 15}))));
  EXPECT_TRUE(same_bits(floats({70, 70}), doubled(floats({70, 70}))));  // no trip at all
  EXPECT_EQ(doubled.stats().misses, 1);
}

TEST(WhileLoop, CarriesStatesOfSeveralTensors) {
  auto fibonacci = function([](at::Tensor limit) {
    using State = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
    return while_loop([&](State s) { return std::get<1>(s) < limit; },
                      [](State s) {
                        auto [a, b, trips] = s;
                        return State{b, a + b, trips + 1};
                      },
                      State{torch::zeros({}), torch::ones({}), torch::zeros({}, torch::kLong)});
  });

  auto [last, next, trips] = fibonacci(torch::full({}, 50.0));

  EXPECT_EQ(last.item<float>(), 34);
  EXPECT_EQ(next.item<float>(), 55);
  EXPECT_EQ(trips.item<int64_t>(), 9);
}

TEST(WhileLoop, HasTheGradientAlsoBehindACounter) {
  Variable v(torch::full({}, 2.0)), u(torch::full({}, 5.0));
  using Two = std::tuple<at::Tensor, at::Tensor>;
  using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
  auto counted = function([&](at::Tensor a) {
    auto [i, y] = while_loop([](Two s) { return std::get<0>(s) < 3; },
                             [&](Two s) { return Two{std::get<0>(s) + 1, std::get<1>(s) * v.value()}; },
                             Two{torch::zeros({}, torch::kLong), a});
    return gradient(y, v);
  });
  EXPECT_EQ(counted(torch::ones({})).item<float>(), 12);

  auto between = function([&](at::Tensor a) {
    auto [y, i, z] = repeat(
        3,
        [&](at::Tensor, Three s) {
          auto [y, i, z] = s;
          return Three{y * v.value(), i + 1, z * u.value()};
        },
        Three{a, torch::zeros({}, torch::kLong), a});
    const at::Tensor loss = y + 10 * z;
    return std::make_pair(gradient(loss, v), gradient(loss, u));
  });
  auto [by_v, by_u] = between(torch::ones({}));
  EXPECT_EQ(by_v.item<float>(), 12);
  EXPECT_EQ(by_u.item<float>(), 750);
}

TEST(Cond, HasTheGradientAlsoBehindANumber) {
  Variable v(torch::full({}, 2.0)), u(torch::full({3}, 5.0));
  using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
  auto f = function([&](at::Tensor a) {
    auto branch = [&] { return Three{torch::ones({}, torch::kLong), v.value().square(), 3 * u.value()}; };
    auto [i, y, z] = cond(a.sum() > 0, branch, branch);
    const at::Tensor loss = y + 10 * z.sum();
    return std::make_pair(gradient(loss, v), gradient(loss, u));
  });
  auto [by_v, by_u] = f(torch::ones({}));
  EXPECT_EQ(by_v.item<float>(), 4);
  EXPECT_TRUE(same_bits(torch::full({3}, 30.0), by_u));
}

TEST(Cond, HasTheGradientOfComplexNumbers) {
  Variable v(torch::full({}, 2.0));
  auto f = function([&](at::Tensor a) {
    auto branch = [&] { return torch::complex(v.value() * 3, v.value()); };
    return gradient(at::real(cond(a.sum() > 0, branch, branch)) + v.value(), v);
  });
  EXPECT_EQ(f(torch::ones({})).item<float>(), 4);
}

TEST(Cond, HasNoGradientThroughABranchThatWritesAndSaysSo) {
  Variable v(torch::full({}, 2.0)), count(torch::zeros({}), {.trainable = false});
  auto branch = [&] {
    count.assign_add(torch::ones({}));
    return v.value().square();
  };
  auto inner = [&] { return cond(count.value() >= 0, branch, branch); };
  auto f = [&](bool detached, bool nested) {
    return function([&, detached, nested](at::Tensor a) {
      const at::Tensor y = nested ? cond(a.sum() > 0, inner, inner) : cond(a.sum() > 0, branch, branch);
      return gradient((detached ? y.detach() : y) + v.value(), v);
    });
  };
  EXPECT_EQ(f(/*detached=*/true, false)(torch::ones({})).item<float>(), 1);
  for (const bool nested : {false, true}) {
    try {
      f(/*detached=*/false, nested)(torch::ones({}));
      ADD_FAILURE() << "a part of the gradient was left out";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("that writes to a variable or a tensor from outside"));
    }
  }
}

TEST(Cond, HasTheGradientOfTheBranchThatWasTaken) {
  Variable v(torch::full({}, 2.0));
  auto f = function([&](at::Tensor a) {
    at::Tensor positive = a.sum() > 0;
    const at::Tensor y = cond(positive, [&] { return v.value().square(); }, [&] { return v.value().pow(3); });
    positive.logical_not_();
    return gradient(y, v);
  });
  EXPECT_THROW(f(torch::ones({})), Error) << "it was written to before the gradient was taken";
}

TEST(WhileLoop, HasTheGradientOfTheLoopUnrolled) {
  Variable w(floats({1.5, 1.25}));
  auto by = function([&](at::Tensor x) {
    at::Tensor last = while_loop([](at::Tensor s) { return s.sum() < 20; },
                                 [&](at::Tensor s) { return s * w.value() + x.sin(); }, x * w.value());
    return std::make_pair(last, gradient(last.square().sum(), w));
  });
  auto eager = [&](const at::Tensor& x) {
    const at::Tensor value = w.value().clone().requires_grad_();
    at::Tensor s = x * value;
    while (s.sum().item<float>() < 20) s = s * value + x.sin();
    return std::make_pair(s.detach(), torch::autograd::grad({s.square().sum()}, {value})[0]);
  };

  for (const at::Tensor& x : {floats({1, 2}), floats({0.5, 0.75}), floats({30, 1})}) {  // the last without a trip
    auto [expected, expected_gradient] = eager(x);
    auto [got, got_gradient] = by(x);

    EXPECT_TRUE(same_bits(expected, got));
    EXPECT_TRUE(torch::allclose(expected_gradient, got_gradient)) << got_gradient << expected_gradient;
  }
}

TEST(WhileLoop, RejectsABodyThatChangesTheShape) {
  auto grow = function([](at::Tensor x) {
    return while_loop([](at::Tensor s) { return s.sum() < 9; }, [](at::Tensor s) { return torch::cat({s, s}); }, x);
  });

  EXPECT_THAT(error_of([&] { grow(floats({1, 2})); }),
              AllOf(HasSubstr("the body of the loop: tensor 0 is float32[4], expected float32[2]"),
                    HasSubstr("stay the same")));
}

TEST(WhileLoop, IsAnOrdinaryLoopOutsideOfATrace) {
  const at::Tensor last =
      while_loop([](at::Tensor s) { return s.sum() < 100; }, [](at::Tensor s) { return s * 2; }, floats({1, 1}));

  EXPECT_TRUE(same_bits(floats({64, 64}), last));
}

// ---- repeat
TEST(Repeat, RunsItsBodyWithTheIndexOfTheTrip) {
  auto sum = function([](at::Tensor x) { return repeat(4, [](at::Tensor i, at::Tensor s) { return s + i; }, x); });

  EXPECT_TRUE(same_bits(floats({16}), sum(floats({10}))));
}

TEST(Repeat, DoesNothingZeroTimes) {
  Variable count(torch::zeros({1}));
  auto none = function([&](at::Tensor x) {
    repeat(0, [&] { count.assign_add(torch::ones({1})); });
    return repeat(0, [](at::Tensor, at::Tensor s) { return s * 2; }, x);
  });

  EXPECT_TRUE(same_bits(floats({3}), none(floats({3}))));
  EXPECT_EQ(count.value().item<float>(), 0);
  EXPECT_THAT(error_of([&] { function([] { repeat(-1, [] {}); })(); }), HasSubstr("-1 times"));
}

TEST(Repeat, IsOneInstructionHoweverOftenItRuns) {
  auto long_loop =
      function([](at::Tensor x) { return repeat(1000, [](at::Tensor, at::Tensor s) { return s + 1; }, x); });

  EXPECT_EQ(long_loop(torch::zeros({})).item<float>(), 1000);
  EXPECT_EQ(long_loop.program(torch::zeros({})).instructions.size(), 1);
}

TEST(Repeat, HasTheGradientOfTheLoopUnrolled) {
  Variable w(torch::randn({3, 3}));
  auto run = [](const at::Tensor& weight, const at::Tensor& x, const auto& times) {
    const at::Tensor start = torch::matmul(x, weight);
    const at::Tensor last = times(
        5, [&](at::Tensor i, at::Tensor s) { return torch::tanh(torch::matmul(s, weight) + start * i * 0.1); }, start);
    return (last * start).sum();
  };
  auto by = function([&](at::Tensor x) {
    at::Tensor loss = run(w.value(), x, [](int64_t n, auto body, at::Tensor s) { return repeat(n, body, s); });
    return std::make_pair(loss, gradient(loss, w));
  });
  const at::Tensor x = torch::randn({2, 3});
  const at::Tensor value = w.value().clone().requires_grad_();
  const at::Tensor loss = run(value, x, [](int64_t n, auto body, at::Tensor s) {
    for (int64_t i = 0; i < n; ++i) s = body(torch::scalar_tensor(i, torch::kLong), s);
    return s;
  });

  auto [got, got_gradient] = by(x);

  EXPECT_TRUE(same_bits(loss.detach(), got));
  EXPECT_TRUE(torch::allclose(torch::autograd::grad({loss}, {value})[0], got_gradient, 1e-4, 1e-6));
}

TEST(Repeat, OfNoTripsLetsTheGradientThrough) {
  Variable w(floats({2}));
  auto by = function([&](at::Tensor x) {
    return gradient(repeat(0, [&](at::Tensor, at::Tensor s) { return s * w.value(); }, x * w.value()).sum(), w);
  });

  EXPECT_TRUE(same_bits(floats({3}), by(floats({3}))));
}

TEST(Repeat, HasGradientsByTheStateThatItBeginsWith) {
  Variable w(floats({2}));
  auto by =
      function([&] { return gradient(repeat(3, [](at::Tensor, at::Tensor s) { return s * s; }, w.value()).sum(), w); });

  EXPECT_TRUE(same_bits(floats({8 * 128}), by()));  // d w^8
}

TEST(Repeat, NestsInItselfAndInCond) {
  auto nested = function([](at::Tensor x) {
    return repeat(
        3,
        [&](at::Tensor i, at::Tensor s) {
          at::Tensor inner = repeat(2, [&](at::Tensor j, at::Tensor t) { return t + i * 10 + j + x; }, s);
          return cond(i == 1, [&] { return inner * 2; }, [&] { return inner; });
        },
        torch::zeros({}));
  });
  const float x = 0.5;
  float expected = 0;
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 2; ++j) expected += i * 10 + j + x;
    if (i == 1) expected *= 2;
  }

  EXPECT_EQ(nested(torch::full({}, x)).item<float>(), expected);
}

TEST(Repeat, NestedHasTheGradientOfTheLoopsUnrolled) {
  Variable w(floats({0.9, 1.1}));
  auto run = [](const at::Tensor& weight, const at::Tensor& x, const auto& times) {
    return times(
               2,
               [&](at::Tensor, at::Tensor s) {
                 return times(3, [&](at::Tensor, at::Tensor t) { return (t * weight).sin() + s * x; }, s);
               },
               x)
        .sum();
  };
  auto by = function([&](at::Tensor x) {
    return gradient(run(w.value(), x, [](int64_t n, const auto& body, at::Tensor s) { return repeat(n, body, s); }), w);
  });
  const at::Tensor x = floats({0.3, 0.4}), value = w.value().clone().requires_grad_();
  const at::Tensor loss = run(value, x, [](int64_t n, const auto& body, at::Tensor s) {
    for (int64_t i = 0; i < n; ++i) s = body(torch::scalar_tensor(i, torch::kLong), s);
    return s;
  });

  EXPECT_TRUE(torch::allclose(torch::autograd::grad({loss}, {value})[0], by(x)));
}

TEST(Repeat, OfATrainingStepIsThatManyCallsOfIt) {
  auto train = [](bool in_one) {
    torch::manual_seed(3);
    torch::nn::Sequential net(torch::nn::Linear(4, 6), torch::nn::BatchNorm1d(6), torch::nn::ReLU(),
                              torch::nn::Linear(6, 2));
    const ModuleVariables variables = adopt(net);
    Variable total(torch::zeros({}));
    auto step = [&](const at::Tensor& x, const at::Tensor& y) {
      at::Tensor loss = torch::mse_loss(net->forward(x), y);
      std::vector<at::Tensor> gradients = gradient(loss, variables.trainable());
      for (size_t i = 0; i < gradients.size(); ++i) {
        Variable variable = variables.trainable()[i];
        variable.assign_sub(gradients[i] * 0.1);
      }
      total.assign_add(loss.detach());
    };
    const at::Tensor x = torch::randn({10, 8, 4}), y = torch::randn({10, 8, 2});
    if (in_one) {
      auto ten = function([&](at::Tensor xs, at::Tensor ys) {
        repeat(10, [&](at::Tensor i) { step(xs.index_select(0, i.view({1}))[0], ys.index_select(0, i.view({1}))[0]); });
      });
      ten(x, y);
    } else {
      auto one = function(step);
      for (int i = 0; i < 10; ++i) one(x[i], y[i]);
    }
    Tensors values{total.value()};
    for (const Variable& variable : variables.all()) values.push_back(variable.value());
    return values;
  };

  EXPECT_TRUE(same_bits(train(false), train(true)));
}

TEST(Repeat, DrawsOtherRandomNumbersInEveryTrip) {
  auto draw = function([] {
    return repeat(
        4, [](at::Tensor i, at::Tensor s) { return s.index_copy(0, i.view({1}), torch::rand({1, 3})); },
        torch::zeros({4, 3}));
  });

  const at::Tensor drawn = draw();

  for (int a = 0; a < 4; ++a) {
    for (int b = 0; b < a; ++b) EXPECT_FALSE(torch::equal(drawn[a], drawn[b]));
  }
}

TEST(Repeat, DrawsTheNumbersThatTheLoopUnrolledWouldDraw) {
  auto draw = [](const auto& times) {
    return times(
        3, [](at::Tensor, at::Tensor s) { return torch::dropout(s, 0.5, true) + torch::randn({20}); },
        torch::ones({20}));
  };
  auto looped = function([&] { return draw([](int64_t n, auto body, at::Tensor s) { return repeat(n, body, s); }); },
                         {.seed = 5});
  auto unrolled = function(
      [&] {
        return draw([](int64_t n, auto body, at::Tensor s) {
          for (int64_t i = 0; i < n; ++i) s = body(torch::zeros({}), s);
          return s;
        });
      },
      {.seed = 5});

  EXPECT_TRUE(same_bits(unrolled.run({.step = 1}), looped.run({.step = 1})));
}

TEST(Repeat, WritesCapturedTensorsAndViewsOfThemInPlace) {
  Variable table(torch::zeros({3, 2}));
  auto fill = function([&](at::Tensor x) {
    at::Tensor sums = torch::zeros({2});
    at::Tensor row = table.value()[1];
    repeat(3, [&](at::Tensor i) {
      sums.add_(x);
      torch::NoGradGuard no_gradients;
      row.add_(i);
      table.value()[2].add_(row);
    });
    return sums;
  });

  EXPECT_TRUE(same_bits(floats({3, 6}), fill(floats({1, 2}))));
  EXPECT_TRUE(same_bits(torch::tensor({{0.0f, 0.0f}, {3.0f, 3.0f}, {4.0f, 4.0f}}), table.value()));
}

TEST(Repeat, IsAnOrdinaryLoopOutsideOfATrace) {
  int trips = 0;
  repeat(3, [&] { ++trips; });
  const at::Tensor sum = repeat(4, [](at::Tensor i, at::Tensor s) { return s + i; }, floats({10}));

  EXPECT_EQ(trips, 3);
  EXPECT_TRUE(same_bits(floats({16}), sum));
}

TEST(ControlFlow, CannotBeDifferentiatedTwice) {
  Variable w(floats({2}));
  auto twice = function([&](at::Tensor x) {
    at::Tensor y = cond(x.sum() > 0, [&] { return x * w.value().square(); }, [&] { return x; });
    at::Tensor first = torch::autograd::grad({y.sum()}, {w.value()}, {}, true, /*create_graph=*/true)[0];
    return gradient(first.sum(), w);
  });

  EXPECT_THAT(error_of(StatusCode::kUnimplemented, [&] { twice(floats({1})); }),
              HasSubstr("can be differentiated once"));
}

TEST(ControlFlow, RejectsAGradientAfterAWriteToWhatItUsed) {
  Variable w(floats({2}));
  auto late = function([&](at::Tensor x) {
    at::Tensor y = repeat(2, [&](at::Tensor, at::Tensor s) { return s * w.value(); }, x);
    w.assign_add(torch::ones({1}));
    return gradient(y.sum(), w);
  });

  EXPECT_THAT(error_of([&] { late(floats({1})); }), HasSubstr("was written to before its gradient was taken"));
}

TEST(ControlFlow, MayReturnTensorsInAnyOrderOfMemory) {
  auto chosen = [](at::Tensor x, at::Tensor which) {
    auto turned = [&] { return x.t(); };
    auto straight = [&] { return x + 1; };
    return cond(which > 0, turned, straight).reshape({-1}) * 2;
  };
  auto repeated = [](at::Tensor x, at::Tensor times) {
    auto turn = [&](at::Tensor, at::Tensor state) { return state.reshape({-1}).view({3, 3}).t() + times; };
    return repeat(3, turn, x.t()).reshape({-1});
  };
  const at::Tensor x = torch::arange(9).to(torch::kFloat).view({3, 3});

  for (const double which : {0.0, 1.0}) {
    const at::Tensor number = torch::full({}, which);

    EXPECT_TRUE(same_bits(chosen(x, number), function(chosen)(x, number)));
    EXPECT_TRUE(same_bits(repeated(x, number), function(repeated)(x, number)));
  }
}

TEST(ControlFlow, HasTheGradientOfASum) {  // which is one number, expanded
  Variable w(torch::ones({2, 3}));
  auto slope = function([&](at::Tensor which) {
    auto turned = [&] { return w.value().t().reshape({-1}); };
    auto straight = [&] { return w.value().view({6}) * 3; };
    return gradient(cond(which > 0, turned, straight).sum(), w);
  });

  EXPECT_TRUE(same_bits(torch::ones({2, 3}), slope(torch::ones({}))));
  EXPECT_TRUE(same_bits(torch::full({2, 3}, 3.0f), slope(torch::zeros({}))));
}

TEST(ControlFlow, MayReturnAPartOfWhatItUsesAndAnotherMayUseAPartOfThat) {
  auto work = [](at::Tensor x, at::Tensor which) {
    auto row = [&] { return x[1]; };
    const at::Tensor chosen = cond(which > -1, row, row);
    const at::Tensor part = chosen.slice(0, 1, 3);
    return repeat(2, [&](at::Tensor, at::Tensor sum) { return sum + part; }, torch::zeros({2}));
  };
  const at::Tensor x = torch::arange(12).to(torch::kFloat).view({3, 4});

  EXPECT_TRUE(same_bits(work(x, torch::ones({})), function(work)(x, torch::ones({}))));
}

TEST(ControlFlow, RefusesToWriteToAStateThatItHasAsACopy) {
  auto write = function(
      [](at::Tensor x) { return repeat(2, [](at::Tensor, at::Tensor state) { return state.add_(1); }, x.t()); });

  EXPECT_THAT(error_of([&] { write(torch::ones({2, 3})); }), HasSubstr("begins as a tensor that is not contiguous"));
}

TEST(ControlFlow, ReturnsTheUsualOrderOfMemoryInEagerCodeAsInATrace) {
  const at::Tensor turned = torch::arange(6).view({2, 3}).t();
  auto work = [](at::Tensor x) {
    at::Tensor state = x.t();
    const at::Tensor kept = repeat(0, [](at::Tensor, at::Tensor each) { return each; }, state);
    const at::Tensor chosen = cond(x.sum() > 0, [&] { return state; }, [&] { return state; });
    x.add_(1);
    return std::vector<at::Tensor>{kept + 0, chosen + 0};
  };
  auto traced = function(work);

  EXPECT_TRUE(
      same_bits(work(turned.clone(at::MemoryFormat::Contiguous)), traced(turned.clone(at::MemoryFormat::Contiguous))));
}

TEST(ControlFlow, UsesAViewOfAVariableThatWasWrittenSinceWhereGradientsAreOff) {
  Variable w(torch::ones({2}));
  auto step = function([&](at::Tensor x) {
    torch::NoGradGuard no_gradients;
    const at::Tensor view = w.value().unsqueeze(0);
    w.value().mul_(2);
    return cond(x.sum() > 0, [&] { return view + x; }, [&] { return view * x; });
  });

  EXPECT_TRUE(same_bits(step(torch::ones({1, 2})), torch::full({1, 2}, 3.0F)));
}

}  // namespace
}  // namespace muster

#include "muster/trace/function.h"

#include <map>
#include <optional>
#include <thread>

#include "muster/base/log.h"
#include "muster/runtime/worker/local_worker.h"
#include "muster/trace/control_flow.h"
#include "muster/trace/module_variables.h"
#include "muster/trace/replay_test.h"
#include "muster/trace/variable.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// ---- The cache
TEST(Function, GivesNoMemoryOfItsConstantsAway) {
  const at::Tensor captured = torch::ones({3});
  auto f = function([captured](at::Tensor x) {
    return std::make_tuple(captured.view({3, 1}), captured, captured.slice(0, 1), x + captured);
  });
  for (int call = 0; call < 3; ++call) {
    auto [view, whole, part, sum] = f(torch::zeros({3}));
    for (const at::Tensor& result : {view, whole, part, sum}) {
      EXPECT_TRUE(torch::equal(result, torch::ones_like(result))) << call;
      result.add_(5);
    }
  }
}

TEST(Function, IsTracedOnceForArgumentsOfOneKind) {
  int traced = 0;
  auto twice = function([&](at::Tensor x) { return ++traced, x * 2; });

  const at::Tensor first = twice(torch::ones({3})), second = twice(torch::arange(3).to(torch::kFloat));

  EXPECT_EQ(traced, 1);
  EXPECT_TRUE(same_bits(torch::full({3}, 2.0f), first));
  EXPECT_TRUE(same_bits(torch::tensor({0.0f, 2.0f, 4.0f}), second));
  EXPECT_EQ(twice.stats().hits, 1);
  EXPECT_EQ(twice.stats().misses, 1);
  EXPECT_EQ(twice.stats().retraces, 0);
}

TEST(Function, ForgetsTheTracesThatWereNotUsedForLongest) {
  LogCapture quiet;
  constexpr int kMost = static_cast<int>(TracedFunction::kMostEntries), kMore = 20;
  auto scaled = function([](at::Tensor x, double factor) { return x * factor; });
  const size_t before = local_worker().status().programs;
  const at::Tensor x = torch::ones({2});
  scaled(x, 0.5);

  for (int i = 0; i < kMost + kMore; ++i) {
    scaled(x, static_cast<double>(i + 1));
    scaled(x, 0.5);  // is never the one
  }

  EXPECT_EQ(local_worker().status().programs, before + kMost);
  EXPECT_EQ(scaled.stats().misses, 1 + kMost + kMore);
  EXPECT_TRUE(same_bits(torch::full({2}, 1.0f), scaled(x, 1.0))) << "the first one is traced again";
  EXPECT_EQ(scaled.stats().misses, 2 + kMost + kMore);
}

TEST(Function, ForgetsTracesForModesAndSharedMemoryLikeAllOthers) {
  LogCapture quiet;
  constexpr int kMost = static_cast<int>(TracedFunction::kMostEntries);
  torch::nn::Linear net(2, 2);
  auto variables = adopt(net);
  auto add = function([&](at::Tensor x, at::Tensor y, int64_t number) {
    x.add_(number);
    return net(x) + y;
  });
  std::weak_ptr<TracedFunction::Entry> first;
  auto call = [&](int number) {
    at::Tensor x = torch::ones({2});
    std::vector<at::Tensor> tensors;
    auto entry = add.bind(tensors, x, x, int64_t{number});
    if (number == 0 && first.expired()) first = entry;
  };

  for (int i = 0; i < kMost / 4; ++i) {
    for (const bool training : {true, false}) {
      net->train(training);
      call(i);  // two traces: before the first one nobody knows that it matters that they share memory
    }
  }
  const bool there = !first.expired();
  call(kMost);

  EXPECT_EQ(add.stats().misses, kMost + 2);
  EXPECT_TRUE(there);
  EXPECT_TRUE(first.expired());
}

TEST(Function, IsTracedAgainForAnotherShapeTypeOrRank) {
  auto twice = function([](at::Tensor x) { return x + x; });

  EXPECT_TRUE(same_bits(torch::full({3}, 2.0f), twice(torch::ones({3}))));
  EXPECT_TRUE(same_bits(torch::full({4}, 2.0f), twice(torch::ones({4}))));
  EXPECT_TRUE(same_bits(torch::full({3, 1}, 2.0f), twice(torch::ones({3, 1}))));
  EXPECT_TRUE(same_bits(torch::full({3}, 2.0, torch::kDouble), twice(torch::ones({3}, torch::kDouble))));
  EXPECT_TRUE(same_bits(torch::full({3}, 2), twice(torch::ones({3}, torch::kLong))));
  twice(torch::ones({3}));

  EXPECT_EQ(twice.stats().misses, 5);
  EXPECT_EQ(twice.stats().retraces, 4);
  EXPECT_EQ(twice.stats().hits, 1);
}

TEST(Function, IsTracedAgainForAnotherPlainValue) {
  auto scaled = function([](at::Tensor x, double factor, bool negative, const std::string& mode) {
    if (mode == "double") factor *= 2;
    return x * (negative ? -factor : factor);
  });
  const at::Tensor one = torch::ones({1});

  EXPECT_EQ(scaled(one, 2.0, false, std::string("plain")).item<float>(), 2);
  EXPECT_EQ(scaled(one, 2.0, true, std::string("plain")).item<float>(), -2);
  EXPECT_EQ(scaled(one, 3.0, false, std::string("plain")).item<float>(), 3);
  EXPECT_EQ(scaled(one, 3.0, false, std::string("double")).item<float>(), 6);
  EXPECT_EQ(scaled(one, 2.0, false, std::string("plain")).item<float>(), 2);

  EXPECT_EQ(scaled.stats().misses, 4);
  EXPECT_EQ(scaled.stats().hits, 1);
}

TEST(Function, IsTracedAgainForOtherStridesAndForGradients) {
  auto flat = function([](at::Tensor x) { return x.reshape({-1}) * 1; });
  const at::Tensor x = torch::arange(6).to(torch::kFloat);

  EXPECT_TRUE(same_bits(x, flat(x.view({2, 3}))));
  EXPECT_TRUE(same_bits(x.view({3, 2}).t().reshape({-1}), flat(x.view({3, 2}).t())));
  EXPECT_EQ(flat.stats().misses, 2);
  flat(torch::ones({2, 3}).requires_grad_());
  EXPECT_EQ(flat.stats().misses, 3);
}

TEST(Function, WarnsWhenItIsTracedAgainAndAgainAndNamesTheArgumentThatChanged) {
  auto sum = function([](at::Tensor x, at::Tensor y, int) { return x.sum() + y.sum(); }, {.name = "sum"});
  LogCapture log;

  for (int size = 1; size <= 5; ++size) sum(torch::ones({2}), torch::ones({size}), 3);
  EXPECT_TRUE(log.lines().empty());
  sum(torch::ones({2}), torch::ones({6}), 3);

  ASSERT_EQ(log.lines().size(), 1);
  EXPECT_EQ(log.lines()[0].level, LogLevel::kWarning);
  EXPECT_THAT(log.lines()[0].text, AllOf(HasSubstr("function \"sum\" was traced 6 times"),
                                         HasSubstr("argument 1: float32[6] was float32[5] before")));
}

TEST(Function, NamesAPlainValueThatKeepsChanging) {
  auto scaled = function([](at::Tensor x, int factor) { return x * factor; }, {.name = "scaled"});
  LogCapture log;

  for (int factor = 0; factor < 6; ++factor) scaled(torch::ones({2}), factor);

  EXPECT_TRUE(log.contains("argument 1: 5 was 4 before"));
}

TEST(Function, IsCalledAfterItsPlaceInTheSourceUnlessItHasAName) {
  auto unnamed = function([](at::Tensor x) { return x + 1; });
  auto named = function([](at::Tensor x) { return x + 1; }, {.name = "plus"});

  EXPECT_THAT(unnamed.name(), HasSubstr("function_test.cc:"));
  EXPECT_EQ(named.name(), "plus");
  EXPECT_EQ(named.program(torch::ones({1})).name, "plus");
}

// ---- Arguments and results
struct Batch {
  at::Tensor features;
  at::Tensor labels;
  int weight = 1;
};
struct Scores {
  at::Tensor loss;
  std::optional<at::Tensor> accuracy;
  std::string kind;
};

TEST(Function, TakesAndReturnsSmallStructs) {
  auto step = function(
      [](Batch batch) { return Scores{(batch.features * batch.weight).sum(), (batch.labels > 0).sum(), "train"}; });

  const Scores scores = step(Batch{torch::ones({4}), torch::tensor({1, 0, 1, 0}), 3});
  const Scores again = step(Batch{torch::zeros({4}), torch::tensor({1, 1, 1, 0}), 3});

  EXPECT_EQ(scores.loss.item<float>(), 12);
  EXPECT_EQ(scores.accuracy->item<int64_t>(), 2);
  EXPECT_EQ(scores.kind, "train");
  EXPECT_EQ(again.loss.item<float>(), 0);
  EXPECT_EQ(again.accuracy->item<int64_t>(), 3);
  EXPECT_EQ(step.stats().misses, 1);
}

TEST(Function, TakesAndReturnsTuplesVectorsMapsAndOptionals) {
  using Map = std::map<std::string, at::Tensor>;
  auto mix = function(
      [](std::tuple<at::Tensor, int> pair, std::vector<at::Tensor> list, Map map, std::optional<at::Tensor> extra) {
        at::Tensor sum = std::get<0>(pair) * std::get<1>(pair);
        for (const at::Tensor& tensor : list) sum = sum + tensor;
        for (auto& [name, tensor] : map) tensor = tensor * 2;
        return std::make_tuple(sum, map, extra ? std::optional(*extra + 1) : std::nullopt, std::vector<int>{1, 2});
      });
  const at::Tensor one = torch::ones({2});

  auto [sum, map, extra, numbers] = mix(std::make_tuple(one, 5), std::vector<at::Tensor>{one, one},
                                        Map{{"a", one}, {"b", one * 3}}, std::optional<at::Tensor>(one));
  auto without =
      mix(std::make_tuple(one, 5), std::vector<at::Tensor>{one}, Map{{"a", one}}, std::optional<at::Tensor>());

  EXPECT_TRUE(same_bits(one * 7, sum));
  EXPECT_TRUE(same_bits(one * 6, map.at("b")));
  EXPECT_TRUE(same_bits(one * 2, *extra));
  EXPECT_EQ(numbers, (std::vector<int>{1, 2}));
  EXPECT_TRUE(same_bits(one * 6, std::get<0>(without)));
  EXPECT_FALSE(std::get<2>(without).has_value());
  EXPECT_EQ(mix.stats().misses, 2);
}

TEST(Function, TellsApartContainersOfOneTensorEach) {
  auto last =
      function([](std::map<std::string, at::Tensor> map) { return map.begin()->second * (map.contains("a") ? 1 : 2); });

  EXPECT_EQ(last(std::map<std::string, at::Tensor>{{"a", torch::ones({})}}).item<float>(), 1);
  EXPECT_EQ(last(std::map<std::string, at::Tensor>{{"b", torch::ones({})}}).item<float>(), 2);
}

TEST(Function, MayReturnNothing) {
  Variable count(torch::zeros({2}));
  auto add = function([&](at::Tensor x) { count.assign_add(x); });

  add(torch::ones({2}));
  add(torch::full({2}, 3.0));

  EXPECT_TRUE(same_bits(torch::full({2}, 4.0f), count.value()));
}

TEST(Function, MayTakeNothing) {
  auto constant = function([] { return torch::arange(3); });

  EXPECT_TRUE(same_bits(torch::arange(3), constant()));
}

TEST(Function, MayReturnAnArgumentTwiceAndAPlainNumber) {
  auto same = function([](at::Tensor x) { return std::make_tuple(x, x, 0.5); });
  const at::Tensor x = torch::arange(4);

  auto [a, b, half] = same(x);

  EXPECT_TRUE(same_bits(x, a));
  EXPECT_TRUE(same_bits(x, b));
  EXPECT_EQ(half, 0.5);
}

TEST(Function, ReadsArgumentsThatBeginInTheMiddleOfTheirMemory) {
  auto flip = function([](at::Tensor x) { return x.as_strided({2}, {1}, x.storage_offset()) + x.t()[0]; });
  const at::Tensor base = torch::arange(12).to(torch::kFloat);

  const at::Tensor first = flip(base.slice(0, 0, 4).view({2, 2}));
  const at::Tensor second = flip(base.slice(0, 6, 10).view({2, 2}));

  EXPECT_TRUE(same_bits(torch::tensor({0.0f, 3.0f}), first));
  EXPECT_TRUE(same_bits(torch::tensor({12.0f, 15.0f}), second));
}

TEST(Function, LeavesTheMemoryOfItsCallerAlone) {
  auto triple = function([](at::Tensor x) { return x.as_strided({2}, {1}, x.storage_offset()) * 3; });
  auto twice = function([](at::Tensor a, at::Tensor) { return a * 2; });
  const at::Tensor x = torch::arange(10.0F), weight = torch::ones({3}).requires_grad_();

  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(torch::equal(triple(x.slice(0, 4, 8)), torch::tensor({12.0F, 15.0F})));
    EXPECT_TRUE(torch::equal(twice(weight, weight).detach(), torch::full({3}, 2.0F)));
  }

  EXPECT_TRUE(torch::equal(x, torch::arange(10.0F)) && torch::equal(weight.detach(), torch::ones({3})));
}

TEST(Function, ReadsTransposedAndSteppedArguments) {
  auto sum = function([](at::Tensor x) { return std::make_tuple(x.sum(0), x.contiguous().view({-1})); });
  const at::Tensor base = torch::arange(24).to(torch::kFloat).view({4, 6});

  for (const at::Tensor& x :
       {base.t(), base.slice(1, 1, 6, 2), base.t().slice(0, 2, 5), base.select(0, 1).expand({3, 6})}) {
    auto [summed, flat] = sum(x);

    EXPECT_TRUE(same_bits(x.sum(0), summed));
    EXPECT_TRUE(same_bits(x.reshape({-1}), flat));
  }
}

TEST(Function, WritesToItsArgumentsInPlace) {
  auto increment = function([](at::Tensor x) { return x.add_(1).sum(); });
  at::Tensor x = torch::zeros({3}), part = torch::zeros({6}).slice(0, 2, 5);

  increment(x);
  increment(x);
  const at::Tensor sum = increment(part);

  EXPECT_TRUE(same_bits(torch::full({3}, 2.0f), x));
  EXPECT_TRUE(same_bits(torch::full({3}, 1.0f), part));
  EXPECT_EQ(sum.item<float>(), 3);
}

TEST(Function, SeesThatTwoArgumentsShareMemoryAsTheLambdaWould) {
  auto both = function([](at::Tensor a, at::Tensor b) {
    a.add_(1);
    return b * 2;
  });
  at::Tensor x = torch::zeros({3});

  both(torch::zeros({3}), torch::zeros({3}));
  const at::Tensor doubled = both(x, x);

  EXPECT_TRUE(same_bits(torch::full({3}, 2.0f), doubled));
}

TEST(Function, RejectsAnUndefinedArgument) {
  auto twice = function([](at::Tensor x) { return x * 2; }, {.name = "twice"});

  EXPECT_THAT(error_of([&] { twice(at::Tensor()); }), HasSubstr("undefined"));
}

// ---- Functions in functions
TEST(Function, BecomesPartOfTheFunctionThatCallsIt) {
  auto inner = function([](at::Tensor x) { return x * 3; });
  auto outer = function([&](at::Tensor x) { return inner(x) + inner(x + 1); });

  EXPECT_EQ(outer(torch::ones({})).item<float>(), 9);
  EXPECT_EQ(inner.stats().misses, 0);
  EXPECT_EQ(outer.stats().misses, 1);
}

TEST(Function, MayRecurOverAPlainValue) {
  struct Power {
    std::function<at::Tensor(at::Tensor, int)> self;
  };
  auto power = std::make_shared<Power>();
  auto traced =
      function([power](at::Tensor x, int n) { return n == 0 ? torch::ones_like(x) : x * power->self(x, n - 1); });
  power->self = [&](at::Tensor x, int n) { return traced(x, n); };

  EXPECT_EQ(traced(torch::full({}, 2.0), 10).item<float>(), 1024);
  EXPECT_EQ(traced.stats().misses, 1);
}

TEST(Function, StopsARecursionWithoutEnd) {
  std::function<at::Tensor(at::Tensor)> self;
  auto endless = function([&](at::Tensor x) { return self(x + 1); }, {.name = "endless"});
  self = [&](at::Tensor x) { return endless(x); };

  EXPECT_THAT(error_of([&] { endless(torch::ones({})); }),
              AllOf(HasSubstr("function \"endless\" calls itself more than 256 deep"), HasSubstr("plain C++ value")));
  EXPECT_FALSE(tracing());
}

// ---- Failures
TEST(Function, LetsAnExceptionOfTheLambdaThroughAndForgetsTheTrace) {
  bool fails = true;
  Variable count(torch::zeros({2}));
  auto step = function([&](at::Tensor x) {
    count.assign_add(x);
    if (fails) throw std::out_of_range("no such row");
    return x * 2;
  });

  EXPECT_THROW(step(torch::ones({2})), std::out_of_range);
  EXPECT_FALSE(tracing());
  EXPECT_TRUE(same_bits(torch::zeros({2}), count.value()));
  fails = false;
  EXPECT_TRUE(same_bits(torch::full({2}, 2.0f), step(torch::ones({2}))));
  EXPECT_TRUE(same_bits(torch::ones({2}), count.value()));
  EXPECT_EQ(step.stats().misses, 2);
  EXPECT_EQ(step.stats().hits, 0);
}

TEST(Function, SaysWithWhatItWasCalledWhenLibtorchRefusesWhatItDoes) {
  Variable w(torch::ones({3}));
  auto labels = function([](at::Tensor x, at::Tensor y) { return torch::nll_loss(x, y); }, {.name = "labels"});
  auto no_scalar = function([&](at::Tensor x) { return gradient(x * w, w); }, {.name = "no_scalar"});
  auto no_loss = function([&](at::Tensor x, int) { return gradient(x.sum(), w); }, {.name = "no_loss"});

  EXPECT_THAT(error_of([&] { labels(torch::ones({2, 3}), torch::ones({2})); }),
              AllOf(HasSubstr("function \"labels\" (function_test.cc:"), HasSubstr("argument 0: float32[2, 3]"),
                    HasSubstr("argument 1: float32[2]"), Not(HasSubstr("frame #"))));
  EXPECT_THAT(error_of([&] { no_scalar(torch::ones({3})); }),
              AllOf(HasSubstr("function \"no_scalar\""), HasSubstr("float32[3]"), HasSubstr("scalar")));
  EXPECT_THAT(error_of([&] { no_loss(torch::ones({3}), 7); }),
              AllOf(HasSubstr("depends on no trainable variable"), HasSubstr("function \"no_loss\""),
                    HasSubstr("argument 1: 7")));
  EXPECT_FALSE(tracing());
}

TEST(Function, NamesTheOpThatFailsWhenItIsReplayed) {
  auto pick = function([](at::Tensor x, at::Tensor i) { return x.index_select(0, i); }, {.name = "pick"});
  pick(torch::ones({3}), torch::tensor({1}));

  EXPECT_THAT(error_of([&] { pick(torch::ones({3}), torch::tensor({7})); }),
              AllOf(HasSubstr("aten::index_select"), HasSubstr("program \"pick\""), HasSubstr("device:CPU:0")));
  EXPECT_TRUE(same_bits(torch::ones({1}), pick(torch::ones({3}), torch::tensor({2}))));
}

TEST(Function, RejectsAValueThatDecidesWhatItDoes) {
  auto branch = function([](at::Tensor x) { return x.sum().item<float>() > 0 ? x * 2 : x - 1; }, {.name = "branch"});

  EXPECT_THAT(
      error_of([&] { branch(torch::ones({2})); }),
      AllOf(HasSubstr("branch (function_test.cc:"), HasSubstr("the value of a tensor decides what the function does"),
            HasSubstr("aten::_local_scalar_dense"), HasSubstr("muster::cond")));
  EXPECT_FALSE(tracing());
}

TEST(Function, RejectsANumberThatItReadsAndReturns) {
  auto sum = function([](at::Tensor x) { return x.sum().item<float>(); }, {.name = "sum"});
  auto both = function([](at::Tensor x) { return std::pair(x * 2, x.sum().item<int64_t>()); });

  EXPECT_THAT(error_of([&] { sum(torch::ones({4})); }),
              AllOf(HasSubstr("which number it returns"), HasSubstr("return the tensor instead")));
  EXPECT_THAT(error_of([&] { both(torch::ones({4})); }), HasSubstr("which number it returns"));
}

TEST(Function, LeavesWhatItReadsAsItWas) {
  LogCapture quiet;
  float last = 0;
  auto step = function([&](at::Tensor x) {
    last = x.sum().item<float>();
    return std::pair(x * 2, x.size(0));
  });

  EXPECT_EQ(step(torch::ones({4})).second, 4);
  EXPECT_EQ(last, 4) << "what a run with another value has left";
}

TEST(Function, RejectsALoopOverTheValueOfATensor) {
  auto halve = function([](at::Tensor x) {
    while (x.max().item<float>() > 1) x = x / 2;
    return x;
  });

  EXPECT_THAT(error_of([&] { halve(torch::full({2}, 8.0)); }), HasSubstr("muster::while_loop"));
}

TEST(Function, RejectsAValueThatBecomesANumberOfTheProgram) {
  auto scaled = function([](at::Tensor x) { return x * x.sum().item<float>(); });

  EXPECT_THAT(error_of([&] { scaled(torch::ones({2})); }), HasSubstr("aten::_local_scalar_dense"));
}

TEST(Function, RejectsAComparisonOfTensorsThatDecides) {
  auto branch = function([](at::Tensor x) { return torch::equal(x, x * 1) ? x * 2 : x; });

  EXPECT_THAT(error_of([&] { branch(torch::ones({2})); }), HasSubstr("aten::equal"));
}

TEST(Function, WarnsAboutAValueThatIsOnlyReported) {
  float seen = 0;
  auto report = function(
      [&](at::Tensor x) {
        seen = x.sum().item<float>();
        return x * 2;
      },
      {.name = "report"});
  LogCapture log;

  const at::Tensor doubled = report(torch::ones({2}));

  EXPECT_TRUE(same_bits(torch::full({2}, 2.0f), doubled));
  ASSERT_EQ(log.lines().size(), 1);
  EXPECT_THAT(log.lines()[0].text, AllOf(HasSubstr("report (function_test.cc:"), HasSubstr("aten::_local_scalar_dense"),
                                         HasSubstr("return the tensor")));
}

TEST(Function, RejectsOpsWhoseShapesDependOnTheData) {
  auto nonzero = function([](at::Tensor x) { return torch::nonzero(x); }, {.name = "find"});
  auto masked = function([](at::Tensor x) { return x.index({x > 0}); });
  auto selected = function([](at::Tensor x) { return x.masked_select(x > 0); });
  auto unique = function([](at::Tensor x) { return std::get<0>(torch::_unique2(x)); });
  const at::Tensor x = torch::ones({3});

  EXPECT_THAT(error_of([&] { nonzero(x); }),
              AllOf(HasSubstr("find: the shape of the result of aten::nonzero depends on the data"),
                    HasSubstr("torch::where")));
  EXPECT_THAT(error_of([&] { masked(x); }), HasSubstr("aten::index.Tensor"));
  EXPECT_THAT(error_of([&] { selected(x); }), HasSubstr("aten::masked_select"));
  EXPECT_THAT(error_of([&] { unique(x); }), HasSubstr("aten::_unique2"));
}

// ---- What is captured
TEST(Function, KeepsACapturedTensorAsItWasWhenTraced) {
  at::Tensor captured = torch::ones({2});
  auto add = function([&](at::Tensor x) { return x + captured; });
  add(torch::zeros({2}));

  captured.fill_(5);

  EXPECT_TRUE(same_bits(torch::ones({2}), add(torch::zeros({2}))));
}

TEST(Function, RejectsAWriteToACapturedTensor) {
  at::Tensor captured = torch::ones({2});
  auto add = function([&](at::Tensor x) { captured.add_(x); }, {.name = "add"});

  EXPECT_THAT(
      error_of([&] { add(torch::ones({2})); }),
      AllOf(HasSubstr(
                "add: op aten::add_.Tensor writes to a tensor (float32[2]) that is neither an argument nor a variable"),
            HasSubstr("muster::Variable"), HasSubstr("muster::adopt")));
  EXPECT_TRUE(same_bits(torch::ones({2}), captured));
}

TEST(Function, RejectsAWriteToACapturedTensorThatItHasReadBefore) {
  at::Tensor captured = torch::ones({2});
  auto add = function([&](at::Tensor x) {
    at::Tensor sum = x + captured;
    captured.view({2, 1})[0].mul_(2);
    return sum;
  });

  EXPECT_THAT(error_of([&] { add(torch::ones({2})); }), HasSubstr("neither an argument nor a variable"));
  EXPECT_TRUE(same_bits(torch::ones({2}), captured));
}

TEST(Function, RejectsACapturedTensorThatIsTooLargeForAConstant) {
  at::Tensor captured = torch::empty({257, 1024, 1024}, torch::kByte);  // its pages are never touched
  auto first = function([&] { return captured.select(0, 0).select(0, 0) + 1; }, {.name = "first"});

  EXPECT_THAT(error_of([&] { first(); }), AllOf(HasSubstr("first: a tensor of 269484032 bytes from outside"),
                                                HasSubstr("pass it as an argument or make it a muster::Variable")));
}

TEST(Function, RejectsATensorThatLeftTheBodyThatMadeIt) {
  auto leak = function(
      [](at::Tensor x) {
        at::Tensor inside;
        cond(x.sum() > 0, [&] { return inside = x * 2, x + 1; }, [&] { return x - 1; });
        return inside + 1;
      },
      {.name = "leak"});

  EXPECT_THAT(
      error_of([&] { leak(torch::ones({2})); }),
      HasSubstr(
          "a tensor made inside the body of cond, while_loop or repeat is used outside of it; let the body return it"));
  EXPECT_FALSE(tracing());
}

// ---- Threads
void from_threads(int count, const std::function<void(int)>& work) {
  std::vector<std::jthread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(work, i);
}

TEST(Function, MayBeCalledByTwoThreadsAtOnce) {
  auto twice = function([](at::Tensor x) { return x * 2; });
  std::vector<at::Tensor> results(2);

  from_threads(2, [&](int i) { results[i] = twice(torch::full({3}, i)); });

  EXPECT_TRUE(same_bits(torch::full({3}, 0), results[0]));
  EXPECT_TRUE(same_bits(torch::full({3}, 2), results[1]));
  EXPECT_EQ(twice.stats().misses, 1);
  EXPECT_EQ(twice.stats().hits, 1);
}

TEST(Function, LosesNoUpdateOfEightThreadsAndTracesEachKindOnce) {
  Variable count(torch::zeros({4}));
  auto add = function([&](at::Tensor x) { count.assign_add(x.sum(0)); });
  constexpr int kCalls = 50;

  from_threads(8, [&](int i) {
    for (int call = 0; call < kCalls; ++call) add(torch::ones({1 + i % 2, 4}));
  });

  EXPECT_TRUE(same_bits(torch::full({4}, 4.0f * kCalls * 1 + 4.0f * kCalls * 2), count.value()));
  EXPECT_EQ(add.stats().misses, 2);
  EXPECT_EQ(add.stats().hits, 8 * kCalls - 2);
}

TEST(Function, LetsOtherThreadsUseLibtorchWhileItIsTraced) {
  at::Tensor elsewhere;
  auto slow = function([&](at::Tensor x) {
    std::jthread([&] { elsewhere = torch::ones({2}) + 1; }).join();
    return x * 2;
  });

  const Program program = slow.program(torch::ones({2}));

  EXPECT_TRUE(same_bits(torch::full({2}, 2.0f), elsewhere));
  EXPECT_EQ(program.instructions.size(), 1);
}

}  // namespace
}  // namespace muster

#include "muster/trace/variable.h"

#include <gmock/gmock.h>

#include <latch>
#include <limits>
#include <thread>

#include "muster/runtime/worker/local_worker.h"
#include "muster/trace/device_scope.h"
#include "muster/trace/function.h"
#include "muster/trace/replay_test.h"
#include "muster/trace/variable_arithmetic.h"

namespace muster {
namespace {

using testing_support::caught;

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Variable, HasTheValueTypeAndShapeThatItWasMadeWith) {
  at::Tensor initial = torch::arange(6).view({2, 3}).to(torch::kDouble);
  Variable variable(initial);

  initial.zero_();  // the variable has a copy

  EXPECT_TRUE(same_bits(torch::arange(6).view({2, 3}).to(torch::kDouble), variable.value()));
  EXPECT_EQ(variable.dtype(), torch::kDouble);
  EXPECT_EQ(variable.sizes(), (std::vector<int64_t>{2, 3}));
  EXPECT_TRUE(variable.trainable());
}

TEST(Variable, TakesATransposedValueAndATensorThatNeedsGradients) {
  const at::Tensor initial = torch::randn({2, 3}).t().requires_grad_();
  Variable variable(initial);

  EXPECT_TRUE(same_bits(initial.detach(), variable.value()));
  EXPECT_FALSE(variable.value().requires_grad());
}

TEST(Variable, GetsANameOfItsOwn) {
  Variable first(torch::zeros({1}), {.name = "weight"});
  Variable second(torch::zeros({1}), {.name = "weight"});
  Variable third(torch::zeros({1}), {.name = "weight"});

  EXPECT_EQ(first.name(), "weight");
  EXPECT_EQ(second.name(), "weight_1");
  EXPECT_EQ(third.name(), "weight_2");
}

TEST(Variable, GivesItsNameBackWithItsLastHandle) {
  {
    Variable first(torch::zeros({1}), {.name = "short_lived"});
    Variable copy = first;
    EXPECT_NE(local_worker().store().find("short_lived"), nullptr);
  }

  EXPECT_EQ(local_worker().store().find("short_lived"), nullptr);
  EXPECT_EQ(Variable(torch::zeros({2}), {.name = "short_lived"}).name(), "short_lived");
}

TEST(Variable, LeavesNothingBehindWhenItsFirstValueCannotBeMade) {
  const auto made_from = [](const InitialValue& value) { Variable(value, {.name = "never_made"}); };

  const Status refused = caught([&] {
    made_from(InitialValue::by_parts({2}, [](auto&, auto&) { return torch::ones({2}) + torch::ones({3}); }));
  });
  const Status too_large = caught([&] { made_from(InitialValue::constant({int64_t{1} << 50, 8}, 0)); });

  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("variable \"never_made\" (float32[2], 8 bytes): "),
                                       HasSubstr("must match the size of tensor b"), Not(HasSubstr("frame #"))));
  EXPECT_EQ(too_large.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(too_large.message(),
              AllOf(HasSubstr("\"never_made\""), HasSubstr("36028797018963968 bytes"), HasSubstr("on_demand()")));
  EXPECT_EQ(local_worker().store().find("never_made"), nullptr);
  for (const auto& state : Variable::State::all_here()) EXPECT_NE(state->options.name, "never_made");

  const VariableOptions elsewhere{.name = "never_made_there", .device = "/job:ps/task:0"};
  const Status too_large_there = caught([&] { Variable(InitialValue::constant({int64_t{1} << 50, 8}, 0), elsewhere); });
  EXPECT_EQ(too_large_there.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(Variable(torch::zeros({}), elsewhere).name(), "never_made_there") << "nobody has the name";
}

TEST(InitialValue, RefusesWhatIsNone) {
  const auto message = [](auto make) {
    const Status refused = caught([&] { static_cast<void>(make()); });
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
    return refused.message();
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();

  EXPECT_THAT(message([] { return InitialValue::constant({3, -1}, 0); }), HasSubstr("float32[3, -1]: expected sizes"));
  EXPECT_THAT(message([] { return InitialValue::normal({int64_t{1} << 62, 4}, 0, 1); }), HasSubstr("no more bytes"));
  EXPECT_THAT(message([] { return InitialValue::normal({2}, 0, -1); }), HasSubstr("the deviation is -1"));
  EXPECT_THAT(message([&] { return InitialValue::normal({2}, 0, nan); }), HasSubstr("the deviation is nan"));
  EXPECT_THAT(message([] { return InitialValue::uniform({2}, 1, 0); }), HasSubstr("from 1 to 0"));
  EXPECT_THAT(message([] { return InitialValue::uniform({2}, -3e38, 3e38); }), HasSubstr("further apart"));
}

TEST(Variable, LivesOnInTheFunctionThatUsesIt) {
  auto count = [] {
    Variable hidden(torch::zeros({1}), {.name = "hidden"});
    auto function = muster::function([hidden]() mutable { return hidden.assign_add(torch::ones({1})).value() * 1; });
    function();
    return function;
  }();

  EXPECT_EQ(count().item<float>(), 2);
  EXPECT_NE(local_worker().store().find("hidden"), nullptr);
}

TEST(Variable, KeepsTheDeviceThatItWasGivenElseThatOfTheScope) {
  DeviceScope scope("/job:localhost/task:0");
  Variable inside(torch::zeros({1}));
  Variable given(torch::zeros({1}), {.device = "/device:CPU:0"});

  EXPECT_EQ(inside.device(), "/job:localhost/task:0");
  EXPECT_EQ(given.device(), "/device:CPU:0");
}

TEST(Variable, NamesADeviceThatIsNotThere) {
  EXPECT_THAT(error_of(StatusCode::kInvalidArgument,
                       [] { Variable(torch::zeros({1}), {.name = "far", .device = "/job:localhost/task:3"}); }),
              AllOf(HasSubstr("variable \"far\" asked for \"/job:localhost/task:3\""), HasSubstr("does not exist")));
  EXPECT_EQ(local_worker().store().find("far"), nullptr);
}

TEST(Variable, IsAssignedOutsideOfAFunctionAtOnce) {
  Variable variable(torch::zeros({2, 2}));

  variable.assign(torch::ones({2, 2})).assign_add(torch::full({2}, 3.0)).assign_sub(torch::full({}, 0.5));

  EXPECT_TRUE(same_bits(torch::full({2, 2}, 3.5f), variable.value()));
}

TEST(Variable, ConvertsWhatItIsAssignedToItsType) {
  Variable variable(torch::zeros({2}));

  variable.assign(torch::tensor({1, 2}));

  EXPECT_TRUE(same_bits(torch::tensor({1.0f, 2.0f}), variable.value()));
}

TEST(Variable, IsAssignedInsideAFunctionWhenItRuns) {
  Variable variable(torch::zeros({2}));
  auto update = function([&](at::Tensor x) {
    variable.assign_add(x);
    at::Tensor between = variable.value() * 1;
    variable.assign(variable.value() * 2).assign_sub(torch::ones({2}));
    return between;
  });

  const Program program = update.program(torch::ones({2}));
  EXPECT_TRUE(same_bits(torch::zeros({2}), variable.value()));  // traced, but not run
  const at::Tensor first = update(torch::ones({2})), second = update(torch::ones({2}));

  EXPECT_EQ(program.variables.size(), 1);
  EXPECT_TRUE(same_bits(torch::full({2}, 1.0f), first));
  EXPECT_TRUE(same_bits(torch::full({2}, 2.0f), second));
  EXPECT_TRUE(same_bits(torch::full({2}, 3.0f), variable.value()));
}

TEST(Variable, IsReadWhereATensorIsExpected) {
  Variable w(torch::full({2}, 3.0f));
  auto dot = function([&](at::Tensor x) { return torch::dot(w, x); });

  const at::Tensor before = dot(torch::ones({2}));
  w.assign(torch::ones({2}));

  EXPECT_EQ(before.item<float>(), 6);
  EXPECT_EQ(dot(torch::ones({2})).item<float>(), 2);
  EXPECT_EQ(torch::sum(w).item<float>(), 2);
}

TEST(Variable, GoesIntoFormulasWithNumbersTensorsAndOtherVariables) {
  const Variable w(torch::tensor({1.0F, 2.0F})), v(torch::tensor({3.0F, 2.0F}));
  auto formula = function([&] { return 2 * (w + v) / v - w + torch::ones({2}); });
  const at::Tensor expected = 2 * (w.value() + v.value()) / v.value() - w.value() + torch::ones({2});

  EXPECT_TRUE(torch::equal(formula(), expected));
  EXPECT_TRUE(torch::equal(w == v, torch::tensor({false, true})));
  EXPECT_TRUE(torch::equal(w == 1, torch::tensor({true, false})));
}

TEST(Variable, SaysWhichShapesDoNotFit) {
  Variable variable(torch::zeros({2, 3}), {.name = "matrix"});
  const std::string words = "variable \"matrix\" is float32[2, 3]; cannot assign float32[4]";

  EXPECT_THAT(error_of(StatusCode::kInvalidArgument, [&] { variable.assign(torch::ones({4})); }), HasSubstr(words));
  EXPECT_THAT(error_of(StatusCode::kInvalidArgument, [&] { variable.assign_add(torch::ones({4})); }), HasSubstr(words));
  EXPECT_THAT(error_of(StatusCode::kInvalidArgument, [&] { variable.assign_sub(torch::ones({4})); }), HasSubstr(words));
  EXPECT_TRUE(same_bits(torch::zeros({2, 3}), variable.value()));
}

TEST(Variable, CannotBeMadeInsideATracedFunction) {
  auto make = function([] { return Variable(torch::zeros({1}), {.name = "inner"}).value() + 1; });

  EXPECT_THAT(error_of(StatusCode::kFailedPrecondition, [&] { make(); }),
              AllOf(HasSubstr("variable \"inner\" is made inside a traced function"), HasSubstr("make it outside")));
  EXPECT_EQ(local_worker().store().find("inner"), nullptr);
}

TEST(Variable, ReaderKeepsWhatItHasReadWhileAWriterGoesOn) {
  Variable variable(torch::zeros({1000}));
  const at::Tensor snapshot = variable.value();

  variable.assign_add(torch::ones({1000}));
  const at::Tensor later = variable.value();
  auto update = function([&] { variable.assign_add(torch::ones({1000})); });
  update();

  EXPECT_TRUE(same_bits(torch::zeros({1000}), snapshot));
  EXPECT_TRUE(same_bits(torch::ones({1000}), later));
  EXPECT_TRUE(same_bits(torch::full({1000}, 2.0f), variable.value()));
}

TEST(Variable, IsUpdatedInPlaceWhenNobodyHoldsItsValue) {
  Variable variable(torch::zeros({1000}));
  const void* memory = variable.value().const_data_ptr();
  auto update = function([&] { variable.assign_add(torch::ones({1000})); });

  update();

  EXPECT_EQ(variable.value().const_data_ptr(), memory);
}

TEST(Variable, ShowsNobodyHalfAnUpdate) {
  Variable variable(torch::zeros({4}));
  auto update = function([&] {
    variable.assign_add(torch::ones({4}));
    variable.assign_add(torch::ones({4}));
  });
  update();
  std::latch start(2);
  bool even = true;

  {
    std::jthread writer([&] {
      start.arrive_and_wait();
      for (int i = 0; i < 200; ++i) update();
    });
    std::jthread reader([&] {
      start.arrive_and_wait();
      for (int i = 0; i < 200; ++i) even = even && variable.value().remainder(2).sum().item<float>() == 0;
    });
  }

  EXPECT_TRUE(even);
  EXPECT_EQ(variable.value()[0].item<float>(), 402);
}

TEST(Variable, ReturnedFromAFunctionIsASnapshot) {
  Variable variable(torch::zeros({3}));
  auto next = function([&] { return variable.assign_add(torch::ones({3})).value(); });

  const at::Tensor first = next(), second = next();

  EXPECT_TRUE(same_bits(torch::ones({3}), first));
  EXPECT_TRUE(same_bits(torch::full({3}, 2.0f), second));
}

// ---- Gradients
TEST(Gradient, IsThatOfTheLossByTheVariable) {
  Variable w(torch::tensor({1.0f, 2.0f})), unused(torch::ones({3}));
  auto by = function([&](at::Tensor x) { return gradient((w.value().square() * x).sum(), w, unused); });

  const std::vector<at::Tensor> gradients = by(torch::tensor({3.0f, 4.0f}));

  EXPECT_TRUE(same_bits(torch::tensor({6.0f, 16.0f}), gradients[0]));
  EXPECT_TRUE(same_bits(torch::zeros({3}), gradients[1]));
}

TEST(Gradient, MayBeTakenTwiceOfOneLoss) {
  Variable w(torch::ones({2}));
  auto by = function([&](at::Tensor x) {
    at::Tensor loss = (w.value() * x).sum();
    return std::make_pair(gradient(loss, w), gradient(loss, std::vector<Variable>{w})[0]);
  });

  auto [first, second] = by(torch::tensor({3.0f, 4.0f}));

  EXPECT_TRUE(same_bits(torch::tensor({3.0f, 4.0f}), first));
  EXPECT_TRUE(same_bits(first, second));
}

TEST(Gradient, ComputesNeitherTheLossNorWhatFollowsFromItsShapeInEveryRun) {
  Variable w(torch::ones({2}));
  auto by = function([&](at::Tensor x) { return gradient((w.value() * x).mean(), w); });
  const at::Tensor x = torch::tensor({3.0f, 4.0f});
  LocalWorker worker;
  const ProgramHandle handle = worker.register_program(by.program(x));

  EXPECT_EQ(worker.prepared_program(handle).instructions.size(), 1u);  // x times what was folded
  EXPECT_TRUE(same_bits(torch::tensor({1.5f, 2.0f}), by(x)));
}

TEST(Gradient, BelongsInsideATracedFunction) {
  Variable w(torch::ones({2}));

  EXPECT_THAT(error_of(StatusCode::kFailedPrecondition, [&] { gradient(w.value().sum(), w); }),
              HasSubstr("gradient() belongs inside a traced function"));
}

TEST(Gradient, NamesAVariableThatHasNone) {
  Variable frozen(torch::ones({2}), {.name = "frozen", .trainable = false});
  Variable count(torch::zeros({2}, torch::kLong), {.name = "count"});
  auto by_frozen = function([&] { return gradient((frozen.value() * 2).sum(), frozen); });
  auto by_count = function([&] { return gradient((count.value() * 2.0).sum(), count); });

  EXPECT_THAT(error_of(StatusCode::kInvalidArgument, [&] { by_frozen(); }),
              HasSubstr("variable \"frozen\" (float32[2]) is not trainable or not of a floating-point type"));
  EXPECT_THAT(error_of(StatusCode::kInvalidArgument, [&] { by_count(); }), HasSubstr("variable \"count\" (int64[2])"));
}

TEST(Gradient, SaysSoWhenTheLossDependsOnNothing) {
  Variable w(torch::ones({2}));
  auto by = function([&](at::Tensor x) { return gradient((x * w.value().detach()).sum(), w); });

  EXPECT_THAT(error_of(StatusCode::kInvalidArgument, [&] { by(torch::ones({2})); }),
              HasSubstr("gradient: the loss (float32[]) depends on no trainable variable"));
}

}  // namespace
}  // namespace muster

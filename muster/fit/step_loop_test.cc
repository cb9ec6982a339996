#include "muster/fit/step_loop.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <atomic>
#include <numeric>

#include "muster/base/test_errors.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/trace/control_flow.h"

namespace muster::step_loop_test {
namespace {

using testing_support::message_of;

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Each step takes a number and returns it; several their sum.
Steps counting(int64_t several) {
  auto made = [](int64_t count) {
    return function(std::function<at::Tensor(Iterator&)>([count](Iterator& it) {
      at::Tensor sum = it.next<1>()[0];
      for (int64_t i = 1; i < count; ++i) sum = sum + it.next<1>()[0];
      return sum;
    }));
  };
  return {made(1), made(several), several};
}

struct Taken {
  std::vector<int64_t> sums{}, steps{};
  StepLoop::Each each = [this](const at::Tensor& sum, int64_t count) {
    sums.push_back(sum.item<int64_t>());
    steps.push_back(count);
    return true;
  };
};

TEST(StepLoop, TakesNoMoreStepsWhenItIsToldSo) {
  const auto loop = make_step_loop(Strategy(), Dataset::range(5));

  EXPECT_EQ(loop->run(counting(1), {}, [](const at::Tensor& sum, int64_t) { return sum.item<int64_t>() < 2; }), 3);
}

TEST(StepLoop, BeginsAnewWithEachEpochOfAWholeDataset) {
  const auto loop = make_step_loop(Strategy(), Dataset::range(5));
  Taken first, second;

  EXPECT_EQ(loop->run(counting(2), {}, first.each), 5);
  EXPECT_EQ(loop->run(counting(2), {}, second.each), 5);

  EXPECT_THAT(first.steps, ElementsAre(1, 1, 1, 1, 1)) << "nobody knows where it ends";
  EXPECT_THAT(second.steps, ElementsAre(2, 2, 1));
  EXPECT_THAT(second.sums, ElementsAre(1, 5, 4));
}

TEST(StepLoop, ShufflesEachEpochAnewAndReadsWhatIsCachedOnce) {
  int begun = 0;
  const Dataset numbers = Dataset::generator([&begun] {
    ++begun;
    return [next = int64_t{0}]() mutable -> std::optional<Element> {
      if (next == 20) return std::nullopt;
      return Element{torch::tensor(next++)};
    };
  });
  const auto loop = make_step_loop(Strategy(), numbers.cache().shuffle(20, 7));
  std::vector<Taken> epochs(3);
  const int before = begun;  // to see what an element looks like
  for (Taken& epoch : epochs) EXPECT_EQ(loop->run(counting(4), {}, epoch.each), 20);

  EXPECT_LE(begun, before + 2);
  EXPECT_NE(epochs[1].sums, epochs[2].sums);
  for (const Taken& epoch : epochs) {
    int64_t sum = 0;
    for (const int64_t some : epoch.sums) sum += some;
    EXPECT_EQ(sum, 190);
  }
}

TEST(StepLoop, TakesOnlyTheEndOfTheDataForAnEnd) {
  const auto loop = make_step_loop(Strategy(), Dataset::range(5));
  const StepFunction step = function(
      std::function<at::Tensor(Iterator&)>([](Iterator& it) { return element(torch::arange(3), it.next<1>()[0]); }));
  Taken taken;

  EXPECT_THAT(message_of([&] { loop->run({step, step, 1}, {}, taken.each); }), HasSubstr("index 3"));
}

TEST(StepLoop, GoesOnWhereItWasIfStepsAreCounted) {
  const auto loop = make_step_loop(Strategy(), Dataset::range(5));
  Taken first, second;

  EXPECT_EQ(loop->run(counting(2), 3, first.each), 3);
  EXPECT_EQ(loop->run(counting(2), 3, second.each), 2) << "there are no more";

  EXPECT_THAT(first.sums, ElementsAre(1, 2));
  EXPECT_THAT(second.sums, ElementsAre(3 + 4));
}

double sum_of(const Totals& totals) { return totals.examples(); }  // these have one number

TEST(StepLoop, TakesAllOnceFromTheBeginningEachTime) {
  const auto loop = make_step_loop(Strategy(), Dataset::range(7));
  const Steps steps = counting(3);

  EXPECT_EQ(sum_of(loop->once(steps, 2)), 0 + 1);
  EXPECT_EQ(sum_of(loop->once(steps, {})), 21);
  EXPECT_FALSE(steps.several.last_program()) << "nobody knew where it ends";
  EXPECT_EQ(sum_of(loop->once(steps, {})), 21);
  EXPECT_TRUE(steps.several.last_program());
  EXPECT_EQ(sum_of(loop->once(steps, 4)), 6);
}

TEST(StepLoop, TakesSeveralAtATimeOfDataWhoseLengthItIsTold) {
  const Steps steps = counting(3);

  EXPECT_EQ(sum_of(make_step_loop(Strategy(), Dataset::range(7), 7)->once(steps, {})), 21);

  EXPECT_TRUE(steps.several.last_program());
}

TEST(StepLoop, ReadsWhatIsCachedOnceWhereItIsToldTheLength) {
  auto made = std::make_shared<std::atomic<int>>(0);
  const Dataset numbers = Dataset::range(6).map_native([made](Columns columns) {
    ++*made;
    return columns;
  });
  const auto loop = make_step_loop(Strategy(), numbers.cache(), 6);
  std::vector<Taken> epochs(3);
  const int before = *made;

  for (Taken& epoch : epochs) {
    EXPECT_EQ(loop->run(counting(3), {}, epoch.each), 6);
    EXPECT_THAT(epoch.steps, ElementsAre(3, 3)) << "the length is known before the first one";
    EXPECT_THAT(epoch.sums, ElementsAre(3, 12));
  }

  EXPECT_LE(*made, before + 6 + 1) << "each once, and the first to see what an element looks like";
}

TEST(StepLoop, LosesNothingBeforeTheEndOfDataThatIsShorterThanWasAskedFor) {
  const auto loop = make_step_loop(Strategy(), Dataset::range(6));

  for (int time = 0; time < 2; ++time) EXPECT_EQ(sum_of(loop->once(counting(4), 10)), 15);
}

TEST(StepLoop, TakesAllOfDataThatIsLongerThanItWas) {
  int64_t length = 3;
  const Dataset numbers = Dataset::generator([&length] {
    return [next = int64_t{0}, end = length]() mutable -> std::optional<Element> {
      if (next == end) return std::nullopt;
      return Element{torch::tensor(next++)};
    };
  });
  const auto epochs = make_step_loop(Strategy(), numbers), validations = make_step_loop(Strategy(), numbers);
  Taken first, second;

  EXPECT_EQ(epochs->run(counting(2), {}, first.each), 3);
  EXPECT_EQ(sum_of(validations->once(counting(2), 10)), 3);
  length = 6;
  EXPECT_EQ(epochs->run(counting(2), {}, second.each), 6);
  EXPECT_EQ(sum_of(validations->once(counting(2), 10)), 15);
  EXPECT_EQ(sum_of(validations->once(counting(2), {})), 15);

  EXPECT_THAT(second.steps, ElementsAre(2, 1, 1, 1, 1)) << "nobody knows where it ends now";
}

class StepLoopOnWorkers : public ::testing::Test {
 protected:
  InProcessCluster cluster_{{.workers = 2, .ps = 1, .transport = Transport::kLocal}};
  ParameterServerStrategy strategy_ = testing_support::strategy_of(cluster_, Transport::kLocal);
};

TEST_F(StepLoopOnWorkers, EndsAnEpochWhenTheDataOfAllWorkersHasEnded) {
  const auto loop = make_step_loop(strategy_, [](InputContext input) {
    return input.input_pipeline_id == 0 ? Dataset::range(3) : Dataset::range(100, 130);
  });

  for (int epoch = 0; epoch < 3; ++epoch) {
    Taken taken;
    EXPECT_EQ(loop->run(counting(1), {}, taken.each), 33);
    std::sort(taken.sums.begin(), taken.sums.end());
    std::vector<int64_t> all{0, 1, 2};
    for (int64_t i = 100; i < 130; ++i) all.push_back(i);
    EXPECT_EQ(taken.sums, all);
  }
}

TEST_F(StepLoopOnWorkers, TakesCountedStepsFromThoseWhoseDataHasNotEnded) {
  const auto loop = make_step_loop(strategy_, [](InputContext input) {
    return input.input_pipeline_id == 0 ? Dataset::range(3) : Dataset::range(30);
  });
  Taken taken;

  EXPECT_EQ(loop->run(counting(4), 20, taken.each), 20);
  EXPECT_EQ(loop->run(counting(4), 20, taken.each), 13);
}

TEST_F(StepLoopOnWorkers, TakesEachElementOnceOfDataThatCannotBeHandedOut) {
  for (const Dataset& data :
       {Dataset::range(20).shuffle(20).cache(), Dataset::range(30).take(20), Dataset::range(1).cache()}) {
    const auto loop = make_step_loop(strategy_, data);
    for (int epoch = 0; epoch < 2; ++epoch) {
      Taken taken;
      const int64_t steps = loop->run(counting(4), {}, taken.each);
      EXPECT_EQ(std::accumulate(taken.sums.begin(), taken.sums.end(), int64_t{0}), steps * (steps - 1) / 2);
      EXPECT_TRUE(steps == 20 || steps == 1) << steps;
    }
  }
}

TEST_F(StepLoopOnWorkers, KnowThatTheyTakeStepsOneByOneWhereNobodyKnowsAnEnd) {
  const Dataset numbers = Dataset::range(6), kept = numbers.cache();
  for (const auto& [data, count, one_by_one] : {std::tuple(numbers, std::optional<int64_t>(), true),
                                                {numbers, 6, false},
                                                {kept, 6, false},
                                                {kept, std::nullopt, false},
                                                {kept.filter([](const at::Tensor& i) { return i.lt(9); }), 6, true},
                                                {kept.repeat(), 6, false}}) {
    const auto loop = make_step_loop(strategy_, data);
    loop->begin(count);
    EXPECT_EQ(loop->always_one_by_one(count), one_by_one);

    const Steps steps = counting(3);
    loop->run(steps, count, Taken().each);
    EXPECT_EQ(steps.several.last_program().has_value(), !one_by_one);
  }
  const auto alone = make_step_loop(Strategy(), numbers);
  alone->begin({});
  EXPECT_FALSE(alone->always_one_by_one({})) << "it is known after an epoch";
}

TEST_F(StepLoopOnWorkers, TakeAllOnceEachTime) {
  const auto loop = make_step_loop(strategy_, Dataset::range(20));

  for (int time = 0; time < 2; ++time) EXPECT_EQ(sum_of(loop->once(counting(4), {})), 190);
  EXPECT_EQ(sum_of(make_step_loop(strategy_, Dataset::range(6))->once(counting(4), 10)), 15);
}

TEST_F(StepLoopOnWorkers, SchedulesOneStepForEachWorkerBehindAnEndThatIsKnown) {
  const auto scheduled = [](const StepFunction& step) { return step.stats().hits + step.stats().misses; };
  const std::vector<std::variant<Dataset, ModelInput::Make>> inputs{
      Dataset::range(300), Dataset::range(300).cache(),
      ModelInput::Make([](InputContext input) { return Dataset::range(300).shard(input); }),
      ModelInput::Make([](InputContext) { return Dataset::range(300).shard({}, ShardPolicy::kDynamic); })};
  for (const auto& input : inputs) {
    const Steps steps = counting(1);
    const auto loop = make_step_loop(strategy_, input);
    for (int epoch = 1; epoch <= 2; ++epoch) {
      Taken taken;
      EXPECT_EQ(loop->run(steps, {}, taken.each), 300);
      EXPECT_LE(scheduled(steps.one), epoch * (300 + 2));
    }
  }
}

TEST_F(StepLoopOnWorkers, TakesSeveralAtATimeOfWhatAWorkerHasAloneAndLosesNothingBehindThem) {
  const auto loop = make_step_loop(strategy_, [](InputContext input) {
    return input.input_pipeline_id == 0 ? Dataset::range(7) : Dataset::range(100, 106);
  });

  for (int epoch = 0; epoch < 2; ++epoch) {
    Taken taken;
    EXPECT_EQ(loop->run(counting(4), {}, taken.each), 7 + 6);
    std::sort(taken.sums.begin(), taken.sums.end());
    EXPECT_THAT(taken.sums, ElementsAre(4, 5, 6, 0 + 1 + 2 + 3, 104, 105, 100 + 101 + 102 + 103));
  }
}

TEST_F(StepLoopOnWorkers, EndsWhereEachOfThemHasTooFewForAStep) {
  const Steps of_four{counting(4).several, counting(4).several, 1};
  const auto loop = make_step_loop(strategy_, Dataset::range(9));

  for (int epoch = 0; epoch < 2; ++epoch) {
    Taken taken;
    const int64_t steps = loop->run(of_four, {}, taken.each);
    EXPECT_TRUE(steps == 1 || steps == 2) << steps;
  }
}

TEST_F(StepLoopOnWorkers, RefusesDataWithoutAnEndIfStepsAreNotCounted) {
  const auto loop = make_step_loop(strategy_, [](InputContext) { return Dataset::range(3).repeat(); });
  Taken taken;

  EXPECT_THAT(message_of([&] { loop->run(counting(1), {}, taken.each); }), HasSubstr("has no end"));
}

TEST_F(StepLoopOnWorkers, LeavesNothingOfARunThatHasFailed) {
  const Dataset bad = Dataset::range(100).map([](const at::Tensor& i) { return element(torch::arange(50), i); });
  const std::vector<std::variant<Dataset, ModelInput::Make>> inputs{
      bad, ModelInput::Make([&](InputContext input) { return bad.shard(input, ShardPolicy::kData); })};

  for (int trial = 0; trial < 6; ++trial) {
    Taken failed, good;
    const auto first = make_step_loop(strategy_, inputs[trial % 2]);
    EXPECT_THAT(message_of([&] { first->run(counting(1), {}, failed.each); }), HasSubstr("index "));

    EXPECT_EQ(make_step_loop(strategy_, Dataset::range(20))->run(counting(1), {}, good.each), 20);
    EXPECT_EQ(std::accumulate(good.sums.begin(), good.sums.end(), int64_t{0}), 190);
  }
}

TEST_F(StepLoopOnWorkers, FailsWithAFunctionThatIsScheduledBesideIt) {
  const auto loop = make_step_loop(strategy_, Dataset::range(5).repeat());
  ClusterCoordinator coordinator(strategy_);
  const auto fails = function([] { return element(torch::arange(3), torch::tensor(5)); });
  bool scheduled = false;
  const auto each = [&](const at::Tensor&, int64_t) {
    if (!std::exchange(scheduled, true)) coordinator.schedule(fails);
    return true;
  };

  EXPECT_THAT(message_of([&] { loop->run(counting(1), 500, each); }), HasSubstr("index 5"));
}

}  // namespace
}  // namespace muster::step_loop_test

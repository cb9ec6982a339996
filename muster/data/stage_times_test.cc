#include "muster/data/stage_times.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "muster/data/sources/source.h"
#include "muster/data/test_elements.h"

namespace muster::stage_times_test {
namespace {

using namespace testing_support;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Clock = Stage::Clock;

std::vector<std::string> names_of(const InputTiming& timing) {
  std::vector<std::string> names;
  for (const StageTiming& stage : timing.stages) names.push_back(stage.name);
  return names;
}

const StageTiming& stage_called(const InputTiming& timing, const std::string& name) {
  const auto found = std::ranges::find(timing.stages, name, &StageTiming::name);
  if (found == timing.stages.end()) throw not_found("no stage \"", name, "\"");
  return *found;
}

// Takes at least so long, by the clock that measures it.
void work_for(Clock::duration time) {
  const Clock::time_point begin = Clock::now();
  while (Clock::now() - begin < time) {
  }
}

Dataset slow_generator(int64_t end, Clock::duration each) {
  return Dataset::generator([=] {
    return [=, next = int64_t{0}]() mutable -> std::optional<Element> {
      if (next == end) return std::nullopt;
      work_for(each);
      return Element{torch::tensor(next++)};
    };
  });
}

TEST(StageTimes, GivesEachStageItsOwnTimeAlone) {
  Stage outer("outer", 0, 1), inner("inner", 0, 1);
  const Clock::time_point begin = Clock::now();

  for (int i = 0; i < 3; ++i) {
    const Spending outside(outer);
    {
      const Spending inside(inner);
      work_for(std::chrono::milliseconds(2));
      const NotSpending waits;
      work_for(std::chrono::milliseconds(20));
    }
    work_for(std::chrono::milliseconds(1));
  }

  EXPECT_GE(inner.timing().seconds, 0.006);
  EXPECT_GE(outer.timing().seconds, 0.003);
  const double all = std::chrono::duration<double>(Clock::now() - begin).count();
  EXPECT_LE(inner.timing().seconds + outer.timing().seconds, all - 0.06) << "without that of waiting";
  EXPECT_EQ(inner.timing().elements, 3);
  EXPECT_EQ(outer.timing().elements, 3);
}

TEST(StageTimes, CountsShortStagesWithoutLookingAtTheClockEachTime) {
  Stage outer("outer", 0, 1), inner("inner", 0, 1);

  for (int i = 0; i < 16 + 160; ++i) {
    const Spending outside(outer);
    for (int k = 0; k < 10; ++k) const Spending inside(inner);
  }

  EXPECT_NEAR(static_cast<double>(outer.timing().elements), 176, 170) << "a sum of ones and sixteens";
  EXPECT_EQ(inner.timing().elements, 10 * outer.timing().elements) << "what is measured is so with all that is in it";
}

TEST(StageTimes, NamesTheStagesOfADataset) {
  const Dataset described = counting_generator(64)
                                .shuffle(8)
                                .map(function([](at::Tensor x) { return x + 1; }, {.name = "add"}), {.threads = 2})
                                .batch(4)
                                .prefetch(2)
                                .repeat(1);
  auto source = described.open(local_worker());

  rest_of(*source);

  const InputTiming timing = source->timing();
  EXPECT_THAT(names_of(timing), ElementsAre("batch", "map \"add\"", "shuffle", "generator"));
  EXPECT_EQ(timing.elements, 17) << "and the end";
  EXPECT_EQ(stage_called(timing, "map \"add\"").elements, 64);
  EXPECT_EQ(stage_called(timing, "map \"add\"").threads, 2);
  EXPECT_EQ(stage_called(timing, "shuffle").lane, stage_called(timing, "generator").lane);
  EXPECT_NE(stage_called(timing, "shuffle").lane, stage_called(timing, "map \"add\"").lane);
  EXPECT_NE(stage_called(timing, "batch").lane, stage_called(timing, "map \"add\"").lane);
  EXPECT_LE(timing.waited, timing.seconds);
}

TEST(StageTimes, FindTheStageThatLimits) {
  const Dataset slow = slow_generator(16, std::chrono::milliseconds(3)).map([](at::Tensor x) { return x + 1; });
  for (const Dataset& each : {slow.batch(2), slow.batch(2).prefetch(1)}) {
    auto source = each.open(local_worker());

    rest_of(*source);

    const InputTiming timing = source->timing();
    EXPECT_EQ(timing.bottleneck()->name, "generator") << timing.to_string();
    EXPECT_GE(timing.bottleneck()->seconds, 0.048);
    EXPECT_GE(timing.waited, 0.024);
  }
}

TEST(StageTimes, DoNotBlameWhoeverWaitsForOthers) {
  const Dataset slow = slow_generator(16, std::chrono::milliseconds(3)).prefetch(1).batch(16);
  auto source = slow.open(local_worker());

  rest_of(*source);

  EXPECT_EQ(source->timing().bottleneck()->name, "generator") << source->timing().to_string();
}

TEST(StageTimes, WarnOnceWhenDataIsWaitedForForLong) {
  StageTimes times(2, {.share = 0.2, .seconds = 5, .elements = 3});
  const Dataset described = counting_generator(4);
  Stage* const stage = times.stage_of(*described.node(), 0);
  ASSERT_NE(stage, nullptr);
  EXPECT_EQ(times.stage_of(*described.node(), 0), stage) << "opened twice, it is one";
  stage->add(std::chrono::seconds(1), 3);
  const Clock::time_point zero{};
  auto wait = [&](int from, int to) {
    return times.waited(zero + std::chrono::seconds(from), zero + std::chrono::seconds(to));
  };

  EXPECT_FALSE(wait(0, 1));
  EXPECT_FALSE(wait(1, 6)) << "two elements are too few";
  const std::optional<std::string> warning = wait(9, 10);
  EXPECT_FALSE(wait(10, 100)) << "once is enough";

  ASSERT_TRUE(warning.has_value());
  EXPECT_THAT(*warning, AllOf(HasSubstr("waited for data 7000.0 ms of 10000.0 ms, for 3 elements; generator limits it"),
                              HasSubstr("add prefetch()")));
}

TEST(StageTimes, DoNotAdviseWhatIsThereAlready) {
  StageTimes times(2, {.share = 0.2, .seconds = 5, .elements = 1});
  times.stage_of(*counting_generator(4).node(), 0)->add(std::chrono::seconds(1), 3);
  times.note_prefetch();
  const Clock::time_point zero{};

  const std::optional<std::string> warning = times.waited(zero, zero + std::chrono::seconds(10));

  ASSERT_TRUE(warning.has_value());
  EXPECT_THAT(*warning, testing::Not(HasSubstr("prefetch")));
}

TEST(StageTimes, DoNotWarnOfADatasetThatIsFastEnough) {
  StageTimes times(2, {.share = 0.2, .seconds = 5, .elements = 1});
  times.stage_of(*counting_generator(4).node(), 0);
  const Clock::time_point zero{};

  EXPECT_FALSE(times.waited(zero, zero + std::chrono::seconds(1)));
  EXPECT_FALSE(times.waited(zero + std::chrono::seconds(9), zero + std::chrono::seconds(10)));
}

TEST(StageTimes, GiveThreadsToTheStageThatLimits) {
  // A stage that leaves its threads to the tuner, another one, and a reader in a lane of its own.
  auto tuned = [](double first, double second, double read, double busy, int cores) {
    const std::vector<StageTiming> stages{{.name = "first", .lane = 1, .threads = 2, .seconds = first},
                                          {.name = "second", .lane = 2, .threads = 2, .seconds = second},
                                          {.name = "read", .lane = 3, .threads = 1, .seconds = read}};
    return tuned_threads(stages, {true, true, false}, busy, cores);
  };

  EXPECT_THAT(tuned(6, 2, 0.1, 0, 8), ElementsAre(6, 2, 1)) << "by how much there is to do";
  EXPECT_THAT(tuned(6, 2, 3, 0, 8), ElementsAre(2, 1, 1)) << "more would only wait for the reader";
  EXPECT_THAT(tuned(6, 2, 0.1, 2.5, 8), ElementsAre(3, 1, 1)) << "more than whoever takes them needs are of no use";
  EXPECT_THAT(tuned(6, 2, 0.1, 0, 1), ElementsAre(1, 1, 1)) << "one each, however few cores there are";
  EXPECT_THAT(tuned(0, 0, 0, 0, 8), ElementsAre(1, 1, 1));
}

TEST(StageTimes, StayWithinTheShareOfCores) {
  auto add = [](at::Tensor x) { return x + 1; };
  const Parallel automatic{.threads = kAutoThreads};
  const Dataset mapped = Dataset::range(2'000).map(add, automatic).batch(2).map(add, automatic);
  for (const int cores : {1, 2, 3, 8}) {
    StageTimes times(cores);
    const std::atomic<bool> closed{false};
    const auto source = open(*mapped.node(), {.runner = local_worker(), .closed = closed, .times = &times});

    int64_t next = 1;
    while (const std::optional<Columns> batch = source->next()) {
      EXPECT_EQ(numbers_in((*batch)[0].tensor()), Numbers({next + 1, next + 2}));
      next += 2;
    }

    EXPECT_EQ(next, 2'001);
    int threads = 0;
    for (const StageTiming& stage : times.timing().stages) threads += stage.name.starts_with("map") ? stage.threads : 0;
    EXPECT_LE(threads, std::max(2, cores));
  }
}

TEST(StageTimes, AreShownByTheProfileOfAFunctionThatTakesElements) {
  const Dataset slow = slow_generator(4, std::chrono::milliseconds(2));
  Iterator elements = slow.iterator();
  auto step = function([](Iterator& it) { return it.next<1>()[0] + 1; });
  Profile profile;

  step.run({.profile = &profile}, elements);

  EXPECT_EQ(profile.input().elements, 1);
  EXPECT_THAT(profile.summary(), AllOf(HasSubstr("waited for data"), HasSubstr("generator")));
}

}  // namespace
}  // namespace muster::stage_times_test

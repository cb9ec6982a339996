#include "muster/trace/iterator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "muster/base/log.h"
#include "muster/graph/elements.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/worker/local_worker.h"
#include "muster/trace/control_flow.h"
#include "muster/trace/function.h"
#include "muster/trace/replay_test.h"
#include "muster/trace/variable.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The numbers from 1 up, in batches of these sizes, each batch once.
class Batches : public ElementSource {
 public:
  explicit Batches(std::vector<int64_t> sizes) : sizes_(std::move(sizes)) {}
  std::optional<Element> next() override {
    absl::MutexLock lock(&mu_);
    if (batch_ == sizes_.size()) return std::nullopt;
    const int64_t first = next_;
    next_ += sizes_[batch_++];
    return Element{torch::arange(first, next_)};
  }

 private:
  const std::vector<int64_t> sizes_;
  absl::Mutex mu_;
  size_t batch_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t next_ ABSL_GUARDED_BY(mu_) = 1;
};

// For functions that are traced for batches of `expected`.
Iterator batches(const std::vector<int64_t>& sizes, int64_t expected = 4) {
  static int64_t number = 1000;
  const auto mine = static_cast<uint64_t>(++number);
  local_worker().add_source(mine, std::make_shared<Batches>(sizes));
  return {.number = torch::tensor(number), .specs = numbers_of({{DType::kLong, {expected}}})};
}

std::vector<int64_t> numbers_in(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<int64_t>(), tensor.const_data_ptr<int64_t>() + tensor.numel()};
}

TEST(Iterator, HasItsFunctionTracedOnceForEachShapeOfItsElements) {
  int traces = 0;
  auto sum = function([&](Iterator& it) {
    ++traces;
    return it.next<1>()[0].sum();
  });
  Iterator it = batches({4, 4, 2, 4, 4, 2});

  std::vector<int64_t> sums;
  for (int i = 0; i < 6; ++i) sums.push_back(sum(it).item<int64_t>());

  EXPECT_THAT(sums, ElementsAre(10, 26, 19, 50, 66, 39));
  EXPECT_EQ(traces, 2);
  EXPECT_EQ(sum.stats().misses, 2);
  EXPECT_EQ(sum.stats().retraces, 1);
  EXPECT_EQ(sum.stats().hits, 5) << "one for each call but the first";
  EXPECT_THAT(error_of(StatusCode::kOutOfRange, [&] { sum(it); }), HasSubstr("has ended"));
}

TEST(Iterator, AppliesAStepOnceWhateverTheShapeOfItsElement) {
  Variable steps(torch::zeros({}, torch::kLong)), total(torch::zeros({}, torch::kLong));
  auto step = function([&](Iterator& it) {
    steps.assign_add(torch::ones({}, torch::kLong));
    total.assign_add(it.next<1>()[0].sum());
  });
  Iterator it = batches({4, 4, 2});

  for (int i = 0; i < 3; ++i) step(it);

  EXPECT_EQ(steps.value().item<int64_t>(), 3);
  EXPECT_EQ(total.value().item<int64_t>(), 55);
}

TEST(Iterator, GivesSeveralElementsOfDifferentShapesToOneStep) {
  auto join = function([](Iterator& it) {
    auto [a] = it.next<1>();
    auto [b] = it.next<1>();
    return torch::cat({a, b});
  });
  Iterator it = batches({4, 4, 2, 4, 4, 3});

  std::vector<std::vector<int64_t>> joined;
  for (int i = 0; i < 3; ++i) joined.push_back(numbers_in(join(it)));

  EXPECT_THAT(joined, ElementsAre(ElementsAre(1, 2, 3, 4, 5, 6, 7, 8), ElementsAre(9, 10, 11, 12, 13, 14),
                                  ElementsAre(15, 16, 17, 18, 19, 20, 21)));
  EXPECT_EQ(join.stats().misses, 3);
}

TEST(Iterator, GivesResultsThatAreNoTensorsForTheElementThatCame) {
  auto rows = function([](Iterator& it) {
    auto [x] = it.next<1>();
    return std::make_tuple(x.size(0), x + 0);
  });
  Iterator it = batches({4, 2, 4});

  for (int64_t expected : {4, 2, 4}) EXPECT_EQ(std::get<0>(rows(it)), expected);
}

TEST(Iterator, MayBeCapturedByTheFunction) {
  Iterator it = batches({4, 2});
  auto sum = function([&] { return it.next<1>()[0].sum(); });

  EXPECT_EQ(sum().item<int64_t>(), 10);
  EXPECT_EQ(sum().item<int64_t>(), 11);
}

TEST(Iterator, KeepsItsElementsForARunThatCannotBegin) {
  auto two = function([](Iterator& it) { return it.next<1>()[0].sum() + it.next<1>()[0].sum(); });
  Iterator it = batches({4});

  EXPECT_THAT(error_of(StatusCode::kOutOfRange, [&] { two(it); }), HasSubstr("has ended"));

  EXPECT_EQ(it.next<1>()[0].numel(), 4) << "the one that was there";
}

TEST(Iterator, GivesEachElementToOneOfSeveralThreads) {
  std::vector<int64_t> sizes;
  for (int i = 0; i < 300; ++i) sizes.push_back(i % 3 == 2 ? 2 : 4);
  const int64_t count = 300 / 3 * 10;
  Variable total(torch::zeros({}, torch::kLong)), steps(torch::zeros({}, torch::kLong));
  auto step = function([&](Iterator& it) {
    total.assign_add(it.next<1>()[0].sum());
    steps.assign_add(torch::ones({}, torch::kLong));
  });
  const Iterator it = batches(sizes);
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        for (int turn = 0; turn < 100; ++turn) step(it);
      });
    }
  }

  EXPECT_EQ(steps.value().item<int64_t>(), 300);
  EXPECT_EQ(total.value().item<int64_t>(), count * (count + 1) / 2);
  EXPECT_EQ(step.stats().misses, 2);
}

TEST(Iterator, WarnsWhenEveryElementHasAnotherShape) {
  LogCapture log;
  auto sum = function([](Iterator& it) { return it.next<1>()[0].sum(); }, {.name = "sum"});
  Iterator it = batches({4, 1, 2, 3, 5, 6});

  for (int i = 0; i < 6; ++i) sum(it);

  EXPECT_EQ(sum.stats().retraces, 5);
  ASSERT_EQ(log.lines().size(), 1);
  EXPECT_THAT(log.lines()[0].text, AllOf(HasSubstr("function \"sum\" was traced 6 times"),
                                         HasSubstr("takes elements (int64[6]) and took (int64[5]) before")));
}

TEST(Iterator, SaysWhatToDoAboutAnElementThatALoopCannotTake) {
  auto loop = function([](Iterator& it) {
    return repeat(
        3, [&](at::Tensor, at::Tensor sum) { return sum + it.next<1>()[0].sum(); }, torch::zeros({}, torch::kLong));
  });
  Iterator it = batches({4, 4, 4, 4, 4, 2});
  EXPECT_EQ(loop(it).item<int64_t>(), 78);

  EXPECT_THAT(error_of([&] { loop(it); }),
              AllOf(HasSubstr("element 5 of its sequence is (int64[2]), but the function was traced for (int64[4])"),
                    HasSubstr("batch(n, true)"), HasSubstr("pad")));
}

TEST(Iterator, KeepsTheOrderOfElementsBeforeInAndAfterALoop) {
  auto step = function([](Iterator& it) {
    auto [before] = it.next<1>();
    at::Tensor inside =
        repeat(2, [&](at::Tensor, at::Tensor) { return it.next<1>()[0] + 0; }, torch::zeros({4}, torch::kLong));
    auto [after] = it.next<1>();
    return torch::cat({before, inside, after});
  });
  Iterator it = batches({4, 4, 4, 4, 2, 4, 4, 4});

  EXPECT_THAT(numbers_in(step(it)), ElementsAre(1, 2, 3, 4, 9, 10, 11, 12, 13, 14, 15, 16));
  EXPECT_THAT(numbers_in(step(it)), ElementsAre(17, 18, 23, 24, 25, 26, 27, 28, 29, 30));
}

TEST(Iterator, RefusesAFunctionThatTakesOtherElementsForAnotherShape) {
  auto odd = function([](Iterator& it) {
    auto [x] = it.next<1>();
    return x.size(0) == 4 ? x.sum() : x.sum() + it.next<1>()[0].sum();
  });
  Iterator it = batches({2, 4});

  EXPECT_THAT(error_of([&] { odd(it); }), HasSubstr("must not depend on their shapes"));
}

}  // namespace
}  // namespace muster

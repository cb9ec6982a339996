#include <gmock/gmock.h>

#include "muster/data/test_elements.h"
#include "muster/trace/control_flow.h"
#include "muster/trace/variable.h"

namespace muster {
namespace {

using namespace testing_support;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

at::Tensor plus_ten(at::Tensor x) { return x + 10; }

TEST(DatasetMap, AppliesAFunctionToEveryElement) {
  EXPECT_THAT(numbers_of(Dataset::range(10).map([](at::Tensor x) { return x + 10; }).take(3)), ElementsAre(10, 11, 12));
  EXPECT_THAT(numbers_of(Dataset::range(2).map(function([](at::Tensor x) { return x * 3; }))), ElementsAre(0, 3));
  EXPECT_THAT(numbers_of(Dataset::range(2).map(plus_ten)), ElementsAre(10, 11));
}

TEST(DatasetMap, TakesTheTensorsOfAnElementAndReturnsAnyNumberOfThem) {
  const Dataset pairs = Dataset::zip({Dataset::range(3), Dataset::range(10, 20)});
  const Dataset tuple = pairs.map([](at::Tensor x, at::Tensor y) { return std::make_tuple(y, x, x + y); });
  const Dataset list = pairs.map([](const at::Tensor& x, const at::Tensor& y) { return std::vector{x * y}; });
  const Dataset array = pairs.map([](auto x, auto y) { return std::array{y, x}; });

  const Element element = elements_of(tuple)[1];
  EXPECT_EQ(element.size(), 3);
  EXPECT_EQ(element[0].item<int64_t>(), 11);
  EXPECT_EQ(element[2].item<int64_t>(), 12);
  EXPECT_THAT(numbers_of(list), ElementsAre(0, 11, 24));
  EXPECT_THAT(numbers_of(array), ElementsAre(10, 11, 12));
}

TEST(DatasetMap, IsTracedOnceForAllElementsAndIterators) {
  int traced = 0;
  const Dataset mapped = Dataset::range(5).shuffle(3).map([&](at::Tensor x) { return ++traced, x + 1; }).prefetch(2);
  EXPECT_EQ(traced, 0);

  elements_of(mapped);
  elements_of(mapped);
  (void)mapped.serialize();
  (void)mapped.element_spec();

  EXPECT_EQ(traced, 1);
}

TEST(DatasetMap, FollowsAMapInEveryRound) {
  const Dataset chain =
      Dataset::range(2).map([](at::Tensor x) { return x.to(torch::kFloat); }).batch(2).map([](at::Tensor x) {
        return x.sum();
      });

  EXPECT_THAT(numbers_of(chain.repeat(2)), ElementsAre(1, 1));
  EXPECT_EQ(chain.element_spec(), (std::vector<TensorSpec>{{DType::kFloat, {}}}));
}

TEST(DatasetMap, OfAnEmptyDatasetIsEmpty) {
  const Dataset none = Dataset::range(0).map([](at::Tensor x) { return x + 1; });

  EXPECT_THAT(numbers_of(none), IsEmpty());
  EXPECT_THAT(numbers_of(parse_dataset(none.serialize())), IsEmpty());
}

TEST(DatasetMap, LeavesTheDatasetAloneWhenItsFunctionWritesInPlace) {
  const at::Tensor xs = torch::zeros({3, 2});

  elements_of(Dataset::tensors({xs}).map([](at::Tensor x) { return x.add_(1); }).repeat(2));

  EXPECT_EQ(xs.sum().item<float>(), 0);
}

TEST(DatasetMap, TakesAnElementThatHasOneTensorTwiceAlsoWhenItsFunctionWritesInPlace) {
  const Dataset numbers = Dataset::range(3);
  const Dataset mapped = Dataset::zip({numbers, numbers}).map([](at::Tensor x, at::Tensor y) { return x.add_(1) + y; });
  const Dataset twice =
      numbers.map([](at::Tensor x) { return std::make_tuple(x, x); }).map([](at::Tensor x, at::Tensor y) {
        return x.add_(1) + y;
      });

  EXPECT_TRUE(torch::equal(elements_of(mapped)[2][0], torch::tensor(5)));
  EXPECT_TRUE(torch::equal(elements_of(twice)[2][0], torch::tensor(5)));
}

TEST(DatasetMap, SaysWhatItsFunctionWasGivenWhenLibtorchRefusesIt) {
  const Dataset mapped = Dataset::range(3).map(
      function([](at::Tensor x) { return torch::matmul(x, torch::ones({2, 2})); }, {.name = "product"}));

  EXPECT_THAT(error_of([&] { elements_of(mapped); }),
              AllOf(HasSubstr("function \"product\" (dataset_function_test.cc:"), HasSubstr("argument 0: int64[]")));
}

TEST(DatasetMap, ReadsSlicesThatBeginInTheMiddleOfTheirMemory) {
  const Dataset rows = Dataset::tensors({torch::arange(12).view({3, 4}), torch::arange(6).view({2, 3}).t()});

  const Dataset sums = rows.map(
      [](at::Tensor x, at::Tensor y) { return x.as_strided({2}, {1}, x.storage_offset() + 1).sum() + y.sum(); });

  EXPECT_THAT(numbers_of(sums), ElementsAre(3 + 3, 11 + 5, 19 + 7));
}

TEST(DatasetMap, MayUseControlFlowAndVariables) {
  Variable offset(torch::full({}, 100));
  const Dataset mapped = Dataset::range(3).map(
      [&](at::Tensor x) { return cond(x > 1, [&] { return x + offset.value(); }, [&] { return x * 1; }); });

  EXPECT_THAT(numbers_of(mapped), ElementsAre(0, 1, 102));
}

TEST(DatasetMap, LetsARandomFunctionDrawAnewForEveryElement) {
  const auto elements = elements_of(Dataset::range(3).map([](at::Tensor) { return torch::rand({4}); }));

  EXPECT_FALSE(torch::equal(elements[0][0], elements[1][0]));
}

TEST(DatasetMap, LetsARandomFunctionDrawAnewEachTimeThatItIsOpened) {
  const Dataset noise = Dataset::range(3).map([](at::Tensor) { return torch::rand({4}); });
  const auto first = elements_of(noise), second = elements_of(noise);

  for (size_t i = 0; i < 3; ++i) EXPECT_FALSE(torch::equal(first[i][0], second[i][0])) << i;
}

TEST(DatasetMap, RejectsAFunctionThatCannotTakeTheElementOrReturnsNothing) {
  const Dataset some = Dataset::range(5);
  const Dataset two = some.map(function([](at::Tensor x, at::Tensor) { return x; }, {.name = "two"}));
  const Dataset none = some.map(function([](at::Tensor) { return std::vector<at::Tensor>(); }, {.name = "none"}));

  EXPECT_EQ(error_of([&] { elements_of(two); }),
            "map \"two\": the function cannot take an element of 1 tensors: int64[]");
  EXPECT_EQ(error_of([&] { (void)none.serialize(); }),
            "map \"none\": the function returns 0 tensors, expected at least one");
}

TEST(DatasetMap, NamesALambdaAfterThePlaceWhereItWasGiven) {
  const Dataset mapped = Dataset::range(3).map([](at::Tensor) { return std::vector<at::Tensor>(); });

  EXPECT_THAT(error_of([&] { elements_of(mapped); }), HasSubstr("map \"dataset_function_test.cc:"));
}

TEST(DatasetMap, DeregistersItsProgramsWhenItIsClosed) {
  const Dataset mapped = Dataset::range(3).map([](at::Tensor x) { return x + 1; });
  const size_t before = local_worker().status().programs;

  {
    auto source = mapped.open(local_worker());
    EXPECT_EQ(local_worker().status().programs, before + 1);
  }

  EXPECT_EQ(local_worker().status().programs, before);
}

TEST(DatasetMap, IsNotRecordedByAFunctionThatIsTracedAround) {
  auto source = Dataset::range(3).map([](at::Tensor x) { return x + 10; }).batch(2).open(local_worker());
  auto outer = function([&](at::Tensor x) { return x + source->next()->at(0); });

  const Program program = outer.program(torch::zeros({2}, torch::kLong));

  EXPECT_EQ(program.instructions.size(), 1);
}

TEST(DatasetFilter, KeepsWhatItsFunctionSays) {
  const Dataset even = Dataset::range(7).filter([](at::Tensor x) { return x % 2 == 0; });

  EXPECT_THAT(numbers_of(even), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(numbers_of(even.repeat(2).skip(2)), ElementsAre(4, 6, 0, 2, 4, 6));
}

TEST(DatasetFilter, IsNotWaitedForToKnowWhatElementsLookLike) {
  const Dataset none = Dataset::range(7).repeat().filter([](at::Tensor x) { return x > 100; });

  EXPECT_EQ(none.element_spec(), (std::vector<TensorSpec>{{DType::kLong, {}}}));
  EXPECT_EQ(none.map([](at::Tensor x) { return x * 0.5; }).element_spec(),
            (std::vector<TensorSpec>{{DType::kFloat, {}}}));
}

TEST(DatasetFilter, LeavesTheNextFunctionWhatItLetsThrough) {
  const Dataset late =
      Dataset::range(7).filter([](at::Tensor x) { return x > 4; }).map([](at::Tensor x) { return x * 2; });

  EXPECT_THAT(numbers_of(late), ElementsAre(10, 12));
}

TEST(DatasetFilter, RejectsAFunctionThatDoesNotReturnOneBool) {
  const Dataset some = Dataset::range(7);
  auto number = function([](at::Tensor x) { return x; }, {.name = "number"});
  auto many = function([](at::Tensor x) { return x.expand({3}) > 1; }, {.name = "many"});
  auto two = function([](at::Tensor x) { return std::make_tuple(x > 1, x > 2); }, {.name = "two"});

  EXPECT_EQ(error_of([&] { elements_of(some.filter(number)); }),
            "filter \"number\": the function returns int64[], expected one bool");
  EXPECT_THAT(error_of([&] { elements_of(some.filter(many)); }), HasSubstr("returns bool[3], expected one bool"));
  EXPECT_EQ(error_of([&] { elements_of(some.filter(two)); }),
            "filter \"two\": the function returns 2 tensors, expected one bool");
}

TEST(DatasetMap, NamesWhatItReturnsIfItIsToldTo) {
  const Dataset pairs =
      Dataset::range(3).map([](at::Tensor x) { return std::make_tuple(x, x * 2); }, {}, {"one", "two"});

  EXPECT_EQ(pairs.column_names(), std::vector<std::string>({"one", "two"}));
  EXPECT_EQ(testing_support::numbers_of(parse_dataset(pairs.select({"two"}).serialize())),
            testing_support::Numbers({0, 2, 4}));
  const Dataset wrong = Dataset::range(3).map([](at::Tensor x) { return x; }, {}, {"one", "two"});
  EXPECT_THAT(testing_support::error_of([&] { testing_support::elements_of(wrong); }),
              testing::HasSubstr("returns 1 tensors, expected as many as there are names: one, two"));
}

}  // namespace
}  // namespace muster

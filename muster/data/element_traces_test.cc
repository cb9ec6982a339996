#include "muster/data/element_traces.h"

#include <gmock/gmock.h>

#include "muster/data/test_elements.h"

namespace muster::element_traces_test {
namespace {

using namespace testing_support;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// One element of each length: 0, 1, 2, … in a row.
Dataset of_lengths(const std::vector<int64_t>& lengths) {
  std::vector<Dataset> each;
  for (const int64_t length : lengths) each.push_back(Dataset::from_tensors({torch::arange(length)}));
  return Dataset::concatenate(each);
}

template <class F>
void expect_eager(const std::vector<Element>& elements, const Dataset& input, const F& function) {
  const std::vector<Element> inputs = elements_of(input);
  ASSERT_EQ(elements.size(), inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_TRUE(torch::equal(elements[i][0], function(inputs[i][0]))) << i;
  }
}

// What the program depends on the length for is a number in it.
at::Tensor depends_on_length(const at::Tensor& x) { return x.view({1, x.size(0)}) * x.size(0); }
at::Tensor any_length(const at::Tensor& x) { return x.cumsum(0) + x.sum(); }

TEST(ElementTraces, AreMadeForEveryShapeWhereTheFunctionIs) {
  const Dataset ragged = of_lengths({3, 5, 3, 1, 5, 0});

  for (const int threads : {1, 3}) {
    expect_eager(elements_of(ragged.map(depends_on_length, {threads}).prefetch(2)), ragged, depends_on_length);
    expect_eager(elements_of(ragged.map(any_length, {threads})), ragged, any_length);
  }
}

TEST(ElementTraces, AreMadeOncePerShape) {
  int traced = 0;
  const Dataset mapped = of_lengths({3, 5, 3, 1, 5}).map([&](at::Tensor x) { return ++traced, x + 1; });

  elements_of(mapped);
  elements_of(mapped);

  EXPECT_EQ(traced, 3);
}

TEST(ElementTraces, LetAFilterAndWhatFollowsItTakeSeveralShapes) {
  const Dataset long_ones = of_lengths({3, 5, 4, 1, 6}).filter([](at::Tensor x) { return x.sum() > 5; });

  EXPECT_THAT(numbers_of(long_ones.shuffle(2, 1).map([](at::Tensor x) { return x.sum(); }).padded_batch(9)),
              testing::UnorderedElementsAre(10, 6, 15));
  EXPECT_THAT(numbers_of(parse_dataset(long_ones.map([](at::Tensor x) { return x.sum(); }).serialize())),
              ElementsAre(10, 6, 15));
}

TEST(ElementTraces, AreMadeInsideOfAFunctionThatIsTracedAround) {
  auto source = Dataset::range(3).batch(2).map([](at::Tensor x) { return x + 10; }).open(local_worker());
  auto outer = function([&](at::Tensor x) {
    (void)source->next();
    return x + source->next()->at(0);  // of another shape
  });

  const Program program = outer.program(torch::zeros({1}, torch::kLong));

  EXPECT_EQ(program.instructions.size(), 1);
}

TEST(ElementTraces, OfTooManyShapesAreAnErrorUnlessTheyAreAllTheSame) {
  std::vector<int64_t> lengths;
  for (int64_t length = 1; length <= 70; length += 3) lengths.push_back(length);
  for (int64_t length = 2; length <= 70; ++length) lengths.push_back(length);
  const Dataset ragged = of_lengths(lengths);

  expect_eager(elements_of(ragged.map(any_length)), ragged, any_length);

  EXPECT_THAT(error_of([&] { elements_of(ragged.map(function(depends_on_length, {.name = "f"}))); }),
              AllOf(HasSubstr("map \"f\": an element is int64["),
                    HasSubstr("but the function was traced for int64[1] or int64[4] or "), HasSubstr(" or 56 others;"),
                    HasSubstr("padded_batch")));
}

// ---- In another process
TEST(SentTraces, TakeTheLastSmallerBatch) {
  const Dataset batches = Dataset::range(100).batch(3);
  const Dataset pairs =
      Dataset::zip({batches, batches}).map([](at::Tensor x, at::Tensor y) { return torch::stack({x, y * 2}, 1); });
  auto sum = [](at::Tensor x) { return x.sum(0); };

  const Dataset sent = parse_dataset(pairs.map(sum).serialize());

  const auto here = elements_of(pairs.map(sum)), there = elements_of(sent);
  ASSERT_EQ(there.size(), 34);
  for (size_t i = 0; i < there.size(); ++i) EXPECT_TRUE(torch::equal(there[i][0], here[i][0])) << i;
}

TEST(SentTraces, TakeLengthsThatNobodySawIfTheProgramIsTheSame) {
  std::vector<int64_t> lengths;
  for (int i = 0; i < 32; ++i) lengths.push_back(4 + i % 3);
  for (const int64_t length : {5, 2, 20, 1}) lengths.push_back(length);
  const Dataset ragged = of_lengths(lengths);

  expect_eager(elements_of(parse_dataset(ragged.map(any_length).serialize())), ragged, any_length);
}

TEST(SentTraces, AreOfTheShapesThatWereSeenIfTheProgramIsAnotherOneForEach) {
  std::vector<int64_t> lengths(31, 4);
  lengths.push_back(7);
  const Dataset ragged = of_lengths(lengths);
  expect_eager(elements_of(parse_dataset(ragged.map(depends_on_length).serialize())), ragged, depends_on_length);

  lengths.push_back(5);
  const Dataset longer = of_lengths(lengths).map(function(depends_on_length, {.name = "f"}));

  EXPECT_EQ(error_of([&] { elements_of(parse_dataset(longer.serialize())); }),
            "map \"f\": an element is int64[5], but the function was traced for int64[4] or int64[7]; make elements "
            "alike before it (padded_batch, ExampleFeature::Kind::kPadded), and if it is the last, smaller batch, give "
            "batch drop_remainder = true");
}

TEST(SentTraces, OfAFunctionThatDecidesByLengthTakeNothingInBetween) {
  auto decides = function([](at::Tensor x) { return x.size(0) > 5 && x.size(0) < 8 ? x * 2 : x + 1; }, {.name = "f"});
  std::vector<int64_t> lengths(29, 4);
  for (const int64_t length : {6, 9, 3, 5}) lengths.push_back(length);

  EXPECT_THAT(error_of([&] { elements_of(parse_dataset(of_lengths(lengths).map(decides).serialize())); }),
              HasSubstr("an element is int64[5], but the function was traced for int64[4] or int64[9] or int64[3]"));
}

TEST(SentTraces, AreOneWhereAllElementsLookAlike) {
  int traced = 0;
  const Dataset mapped = Dataset::range(9).batch(2, true).map([&](at::Tensor x) { return ++traced, x + 1; });

  const std::string bytes = mapped.serialize();

  EXPECT_EQ(traced, 1);
  EXPECT_EQ(parse_dataset(bytes).serialize(), bytes);
}

TEST(SentTraces, LeaveOutWhatTheFunctionCannotTakeAndAFilterMay) {
  std::vector<int64_t> lengths{4, 5, 1, 6};
  const Dataset third =
      of_lengths(lengths).filter([](at::Tensor x) { return x.sum() > 3; }).map([](at::Tensor x) { return x[2]; });

  EXPECT_THAT(numbers_of(parse_dataset(third.serialize())), ElementsAre(2, 2, 2));
}

TEST(SentTraces, NeedNoFunctionThatTakesSmallerBatches) {
  const Dataset squares = Dataset::range(8).batch(4).map([](at::Tensor x) {
    if (x.size(0) < 4) throw std::runtime_error("too small");
    return x.view({2, 2});
  });
  const Dataset sums = squares.map([](at::Tensor x) { return x.sum(); });

  EXPECT_THAT(numbers_of(parse_dataset(sums.serialize())), ElementsAre(6, 22));
}

// ---- One element becomes several
TEST(DatasetFlatMap, MakesAsManyElementsAsTheFunctionHasRows) {
  const Dataset flat = of_lengths({3, 1, 0, 2}).flat_map([](at::Tensor x) { return std::make_tuple(x, x * 10); });

  EXPECT_THAT(numbers_of(flat), ElementsAre(0, 1, 2, 0, 0, 1));
  EXPECT_THAT(numbers_of(flat.repeat(2).skip(4)), ElementsAre(0, 1, 0, 1, 2, 0, 0, 1));
  EXPECT_THAT(numbers_of(parse_dataset(flat.serialize())), ElementsAre(0, 1, 2, 0, 0, 1));
  EXPECT_EQ(elements_of(flat)[2][1].item<int64_t>(), 20);
  EXPECT_EQ(flat.element_spec(), (std::vector<TensorSpec>{{DType::kLong, {}}, {DType::kLong, {}}}));
}

TEST(DatasetFlatMap, KeepsTheOrderWhateverTheThreads) {
  const Dataset flat = Dataset::range(100).flat_map([](at::Tensor x) { return torch::stack({x, -x}); }, {.threads = 4});

  Numbers expected;
  for (int64_t i = 0; i < 100; ++i) expected.insert(expected.end(), {i, -i});
  EXPECT_EQ(numbers_of(flat), expected);
}

TEST(DatasetFlatMap, RejectsAFunctionWhoseTensorsHaveDifferentRows) {
  const Dataset uneven =
      Dataset::range(2).flat_map([](at::Tensor x) { return std::make_tuple(torch::stack({x, x}), torch::stack({x})); });
  const Dataset scalar = Dataset::range(2).flat_map([](at::Tensor x) { return x; });

  EXPECT_THAT(error_of([&] { elements_of(uneven); }), HasSubstr("int64[2], int64[1], expected columns with as many"));
  EXPECT_THAT(error_of([&] { elements_of(scalar); }), HasSubstr("int64[], expected columns with as many rows"));
}

TEST(DatasetFlatMap, ThatMakesNothingEndsWhenItIsClosed) {
  const Dataset nothing = Dataset::range(4).repeat().flat_map([](at::Tensor x) { return x.expand({0}); });
  auto source = nothing.take(1).open(local_worker());
  source->close();

  EXPECT_THAT(error_of(StatusCode::kCancelled, [&] { source->next(); }), HasSubstr("closed"));
}

}  // namespace
}  // namespace muster::element_traces_test

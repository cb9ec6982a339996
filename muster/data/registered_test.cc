#include "muster/data/registered.h"

#include <gmock/gmock.h>

#include <atomic>

#include "muster/data/dataset.pb.h"
#include "muster/data/sources/sources.h"
#include "muster/data/test_elements.h"

namespace muster::registered_test {
namespace {

using namespace testing_support;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Counts up to the option "end", as numbers and as words.
ColumnGenerator counts(const RegisteredOptions& options) {
  const int64_t end = std::stoll(options.at("end"));
  return [end, next = int64_t{0}]() mutable -> std::optional<Columns> {
    if (next == end) return std::nullopt;
    const int64_t number = next++;
    return Columns{torch::tensor(number), Strings(str_cat("number ", number))};
  };
}

ColumnFunction times(const RegisteredOptions& options) {
  const int64_t factor = std::stoll(options.at("factor"));
  return [factor](const Columns& element) { return Columns{element.at(0).tensor() * factor}; };
}

// Once in a process.
void register_all() {
  static const bool once = [] {
    register_dataset_source("test counts", counts);
    register_dataset_map("test times", times);
    return true;
  }();
  (void)once;
}

TEST(NativeMap, CallsAFunctionOfColumnsInOrderWhateverTheThreads) {
  for (const int threads : {1, 4}) {
    std::atomic<int> calls{0};
    const Dataset mapped = Dataset::range(50).map_native(
        [&](const Columns& element) {
          ++calls;
          return Columns{element[0], Strings(std::string("text"))};
        },
        {threads}, {"x", "text"});

    EXPECT_EQ(numbers_of(mapped.select({"x"})), numbers_of(Dataset::range(50)));
    EXPECT_GE(calls, 50);
    EXPECT_THAT(mapped.column_names(), ElementsAre("x", "text"));
  }
}

TEST(NativeMap, IsCalledOnceMoreForTheFirstElementWhereItsShapeIsNeeded) {
  std::vector<int64_t> seen;
  const Dataset mapped = Dataset::range(3).map_native([&](const Columns& element) {
    seen.push_back(element[0].tensor().item<int64_t>());
    return element;
  });

  elements_of(mapped);
  EXPECT_THAT(seen, ElementsAre(0, 1, 2));
  seen.clear();
  (void)mapped.element_spec();
  (void)mapped.element_spec();
  elements_of(mapped);

  EXPECT_THAT(seen, ElementsAre(0, 0, 1, 2)) << "docs/data.md says so";
}

TEST(NativeMap, MayDependOnValues) {
  const Dataset rows = Dataset::range(1, 4).map_native(
      [](const Columns& element) { return Columns{torch::arange(element[0].tensor().item<int64_t>())}; });

  EXPECT_THAT(numbers_of(rows.unbatch()), ElementsAre(0, 0, 1, 0, 1, 2));
  EXPECT_THAT(numbers_of(rows.map([](at::Tensor x) { return x.sum(); })), ElementsAre(0, 1, 3));
  EXPECT_THAT(numbers_of(rows.padded_batch(3)), ElementsAre(0, 0, 0, 0, 1, 0, 0, 1, 2));
}

TEST(NativeMap, HandsOnWhatIsWrong) {
  const Dataset some = Dataset::range(3);

  EXPECT_THAT(error_of([&] { elements_of(some.map_native([](const Columns&) { return Columns(); })); }),
              HasSubstr("map_native: an element of 0 columns, expected at least one"));
  EXPECT_THAT(error_of([&] { elements_of(some.map_native([](Columns element) { return element; }, {}, {"a", "b"})); }),
              HasSubstr("an element of 1 columns, expected those named a, b"));
  EXPECT_THAT(error_of([&] { elements_of(some.map_native([](const Columns&) { return Columns{at::Tensor()}; })); }),
              HasSubstr("undefined tensor"));
  EXPECT_EQ(error_of(StatusCode::kUnknown,
                     [&] {
                       elements_of(some.map_native([](const Columns&) -> Columns { throw std::runtime_error("no"); }));
                     }),
            "map_native: no");
  EXPECT_THAT(error_of([&] {
                elements_of(some.map_native([](const Columns& x) { return Columns{x[0].tensor().view({7})}; }));
              }),
              HasSubstr("map_native: shape '[7]' is invalid for input of size 1"));
  EXPECT_THAT(error_of([&] { some.map_native(nullptr); }), HasSubstr("map_native: an empty function"));
  EXPECT_THAT(error_of([&] { (void)some.map_native([](Columns element) { return element; }).serialize(); }),
              HasSubstr("register_dataset_map"));
}

TEST(Registered, SourcesAndMapsGoOverTheWireByName) {
  register_all();
  const Dataset made = Dataset::registered("test counts", {{"end", "5"}}, {"x", "text"})
                           .map_registered("test times", {{"factor", "3"}}, {.threads = 2}, {"x"});

  const std::string bytes = made.serialize();

  EXPECT_THAT(numbers_of(made.repeat(2)), ElementsAre(0, 3, 6, 9, 12, 0, 3, 6, 9, 12));
  EXPECT_THAT(numbers_of(rest_of(*open_source(bytes, local_worker()))), ElementsAre(0, 3, 6, 9, 12));
  EXPECT_EQ(parse_dataset(bytes).serialize(), bytes);
  EXPECT_THAT(parse_dataset(bytes).column_names(), ElementsAre("x"));
  EXPECT_EQ(made.element_spec(), (std::vector<TensorSpec>{{DType::kLong, {}}}));
}

TEST(Registered, CanBeShardedSeededAndMapped) {
  register_all();
  const Dataset numbers = Dataset::registered("test counts", {{"end", "6"}}, {"x", "text"})
                              .select({"x"})
                              .map([](at::Tensor x) { return x + 1; })
                              .prefetch(1);

  EXPECT_THAT(numbers_of(numbers.shard({.num_input_pipelines = 2, .input_pipeline_id = 1}, ShardPolicy::kAuto)),
              ElementsAre(2, 4, 6));
  EXPECT_EQ(numbers_of(seeded(numbers.shuffle(6), 3)), numbers_of(seeded(numbers.shuffle(6), 3)));
}

TEST(Registered, OfAnUnknownNameSaysWhichThereAre) {
  register_all();
  const std::string source = Dataset::registered("test nobody").serialize();
  const std::string map = Dataset::range(3).map_registered("test nothing").serialize();

  EXPECT_THAT(error_of(StatusCode::kNotFound, [&] { open_source(source, local_worker()); }),
              AllOf(HasSubstr("dataset source \"test nobody\" is not registered in this process; there are "),
                    HasSubstr("\"test counts\"")));
  EXPECT_THAT(error_of(StatusCode::kNotFound, [&] { open_source(map, local_worker()); }),
              AllOf(HasSubstr("dataset map \"test nothing\""), HasSubstr("\"test times\"")));
}

TEST(Registered, OnceAndWithAFunction) {
  register_all();

  EXPECT_THAT(error_of(StatusCode::kAlreadyExists, [] { register_dataset_source("test counts", counts); }),
              HasSubstr("dataset source \"test counts\" is registered already"));
  EXPECT_THAT(error_of([] { register_dataset_map("test empty", nullptr); }),
              HasSubstr("expected a name and a function"));
  EXPECT_THAT(error_of([] { register_dataset_map("", times); }), HasSubstr("expected a name and a function"));
}

TEST(Registered, FailsToOpenIfItsMakerDoes) {
  register_all();

  EXPECT_THAT(error_of(StatusCode::kUnknown, [] { Dataset::registered("test counts").open(local_worker()); }),
              HasSubstr("dataset source \"test counts\": "));
}

}  // namespace
}  // namespace muster::registered_test

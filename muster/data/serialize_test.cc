#include <gmock/gmock.h>

#include "muster/base/log.h"
#include "muster/data/dataset.pb.h"
#include "muster/data/dataset_node.h"
#include "muster/data/sources/sources.h"
#include "muster/data/test_elements.h"

namespace muster {
namespace {

using namespace testing_support;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Every kind of step, each with its own numbers.
Dataset everything() {
  const Dataset digits = Dataset::synthetic_digits(40, 5).shard(2, 1).skip(1).cache().prefetch(2);
  const Dataset rows = Dataset::tensors({torch::arange(40).view({20, 2}), torch::ones({20}, torch::kBool)});
  const Dataset whole = Dataset::from_tensors({torch::full({2}, 0.5), torch::zeros({0, 3})}).repeat();
  return Dataset::zip({digits, rows, whole, Dataset::range(100, 0, -2)})
      .filter(
          [](at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor n) { return n != 98; })
      .map([](at::Tensor x, at::Tensor y, at::Tensor a, at::Tensor, at::Tensor half, at::Tensor, at::Tensor n) {
        return std::make_tuple(a + n, x.sum() + half, y);
      })
      .shuffle(4, 3, false)
      .batch(3, true)
      .take(4)
      .repeat(2);
}

bool same(const std::vector<Element>& a, const std::vector<Element>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[i].size(); ++j) {
      if (!torch::equal(a[i][j], b[i][j])) return false;
    }
  }
  return true;
}

TEST(SerializeDataset, BringsBackEveryStep) {
  const Dataset dataset = everything();

  const std::string bytes = dataset.serialize();
  const Dataset back = parse_dataset(bytes);

  EXPECT_EQ(back.serialize(), bytes);
  const auto elements = elements_of(dataset);
  EXPECT_EQ(elements.size(), 8);
  EXPECT_TRUE(same(elements, elements_of(back)));
}

TEST(SerializeDataset, RunsItsFunctionsAfterItIsParsed) {
  const std::string bytes = Dataset::range(10).map([](at::Tensor x) { return x + 10; }).serialize();

  auto source = open_source(bytes, local_worker());

  EXPECT_EQ(source->next()->at(0).item<int64_t>(), 10);
  EXPECT_EQ(rest_of(*source).size(), 9);
}

TEST(SerializeDataset, KeepsAShuffleWithoutASeedRandom) {
  const std::string bytes = Dataset::range(50).shuffle(50).serialize();

  EXPECT_NE(numbers_of(parse_dataset(bytes)), numbers_of(parse_dataset(bytes)));
}

TEST(SerializeDataset, SaysThatAGeneratorCannotBeSerializedAndWhatToDo) {
  const std::string words = error_of([] { (void)counting_generator(3).batch(2).serialize(); });

  EXPECT_THAT(words, HasSubstr("generator: a C++ function cannot be serialized"));
  EXPECT_THAT(words, HasSubstr("Dataset::open"));
}

TEST(SerializeDataset, SaysThatBytesAreNoDataset) {
  EXPECT_THAT(error_of(StatusCode::kDataLoss, [] { parse_dataset("nonsense"); }),
              HasSubstr("dataset: 8 bytes that are not a dataset"));
  EXPECT_EQ(error_of(StatusCode::kFailedPrecondition, [] { parse_dataset(""); }),
            "dataset: format version 0, but this Muster reads version 2");
}

// Changes a small description and returns what is wrong with it then.
template <class Change>
std::string words_after(const Dataset& dataset, const Change& change) {
  proto::Dataset message;
  EXPECT_TRUE(message.ParseFromString(dataset.serialize()));
  change(message);
  return error_of([&] { parse_dataset(message.SerializeAsString()); });
}

TEST(SerializeDataset, ChecksTensorsBeforeItMakesThem) {
  const Dataset rows = Dataset::tensors({torch::ones({2, 3})});
  auto after = [&](auto change) {
    return words_after(rows, [&](proto::Dataset& message) { change(*message.mutable_slices()->mutable_tensors(0)); });
  };

  EXPECT_EQ(after([](auto& tensor) { tensor.mutable_data()->pop_back(); }),
            "dataset: 23 bytes for float32[2, 3], expected 24");
  EXPECT_THAT(after([](auto& tensor) { tensor.mutable_spec()->set_dtype(99); }), HasSubstr("the element type 99"));
  EXPECT_THAT(after([](auto& tensor) { tensor.mutable_spec()->set_sizes(0, -2); }), HasSubstr("-2 elements"));
  EXPECT_THAT(after([](auto& tensor) { tensor.mutable_spec()->set_sizes(0, int64_t{1} << 62); }),
              HasSubstr("elements in one dimension"));
  EXPECT_THAT(after([](auto& tensor) {
                tensor.mutable_spec()->clear_sizes();
                for (const int64_t size : {int64_t{0}, int64_t{1} << 40, int64_t{1} << 40}) {
                  tensor.mutable_spec()->add_sizes(size);
                }
                tensor.clear_data();
              }),
              HasSubstr("elements in one dimension"));
  EXPECT_THAT(after([](auto& tensor) {
                for (int i = 0; i < 100; ++i) tensor.mutable_spec()->add_sizes(1);
              }),
              HasSubstr("102 dimensions"));
}

TEST(SerializeDataset, ChecksStepsAsThoseOfAUser) {
  const Dataset some = Dataset::range(3).batch(2);

  EXPECT_EQ(words_after(some, [](auto& message) { message.mutable_batch()->set_size(0); }),
            "batch: size 0, expected at least 1");
  EXPECT_THAT(words_after(some, [](auto& message) { message.clear_inputs(); }), HasSubstr("has 0 inputs, expected 1"));
  EXPECT_THAT(words_after(some, [](auto& message) { *message.add_inputs() = message.inputs(0); }),
              HasSubstr("has 2 inputs, expected 1"));
  EXPECT_THAT(words_after(some, [](auto& message) { message.mutable_inputs(0)->mutable_range()->set_step(0); }),
              HasSubstr("in steps of 0"));
}

TEST(SerializeDataset, KeepsHowManyThreadsAStepHasWithinWhatIsSensible) {
  auto add = [](at::Tensor x) { return x + 1; };
  const Dataset mapped = Dataset::range(3).map(add, {.threads = kAutoThreads, .deterministic = false});
  auto threads_after = [&](int threads) {
    proto::Dataset message;
    EXPECT_TRUE(message.ParseFromString(mapped.serialize()));
    message.mutable_map()->set_threads(threads);
    return std::get<FunctionOp>(parse_dataset(message.SerializeAsString()).node()->op()).parallel.threads;
  };

  EXPECT_FALSE(std::get<FunctionOp>(parse_dataset(mapped.serialize()).node()->op()).parallel.deterministic);
  EXPECT_EQ(threads_after(kAutoThreads), kAutoThreads);
  EXPECT_EQ(threads_after(3), 3);
  EXPECT_EQ(threads_after(0), 1) << "as it is if nothing is said";
  EXPECT_EQ(threads_after(-7), 1);
  EXPECT_EQ(threads_after(1 << 30), 1024);
  const Dataset lines = Dataset::text_lines({"a"}).parse_csv(
      {.columns = {{.name = "a", .type = CsvColumn::Type::kInt64}}, .header = {"a"}});
  EXPECT_THAT(words_after(lines, [](auto& message) { message.mutable_parse()->set_threads(-7); }),
              HasSubstr("a parse by -7 threads, expected 1 to 1024"));
}

TEST(SerializeDataset, ChecksThePrograms) {
  const Dataset mapped = Dataset::range(3).map([](at::Tensor x) { return x + 1; });

  EXPECT_THAT(words_after(mapped, [](auto& message) { message.mutable_map()->mutable_traces(0)->add_compact(true); }),
              HasSubstr("a map whose program takes 1 tensors, of which it describes 2"));
  for (const auto& least : {std::vector<int64_t>{}, {-1}, {4}}) {
    const Dataset batches = Dataset::range(5).batch(3).map([](at::Tensor x) { return x + 1; });
    EXPECT_THAT(words_after(batches,
                            [&](auto& message) {
                              auto& sizes = *message.mutable_map()->mutable_traces(0)->mutable_least(0);
                              sizes.mutable_sizes()->Assign(least.begin(), least.end());
                            }),
                HasSubstr("no sizes between the least and the most"));
  }
  EXPECT_THAT(words_after(mapped,
                          [](auto& message) {
                            for (int i = 0; i < 200; ++i)
                              *message.mutable_map()->add_traces() = message.map().traces(0);
                          }),
              HasSubstr("a map with 201 traces, expected at most"));
  EXPECT_THAT(words_after(mapped,
                          [](auto& message) {
                            proto::Program program;
                            ASSERT_TRUE(program.ParseFromString(message.map().traces(0).program()));
                            program.set_outputs(0, 77);
                            message.mutable_map()->mutable_traces(0)->set_program(program.SerializeAsString());
                          }),
              HasSubstr("77"));
}

TEST(SerializeDataset, RejectsWhatIsNestedTooDeep) {
  for (const int depth : {70, 90, 500}) {
    proto::Dataset message;
    message.mutable_range()->set_step(1);
    for (int i = 0; i < depth; ++i) {
      proto::Dataset outer;
      outer.set_take(1);
      outer.add_inputs()->Swap(&message);
      message.Swap(&outer);
    }
    message.set_version(kDatasetVersion);

    EXPECT_THROW(parse_dataset(message.SerializeAsString()), Error);
  }
}

TEST(SerializeDataset, SurvivesDamagedBytes) {
  const std::string bytes = Dataset::zip({Dataset::tensors({torch::ones({2, 3})}), Dataset::range(3)})
                                .map([](at::Tensor x, at::Tensor n) { return x + n; })
                                .filter([](at::Tensor x) { return x.sum() > 0; })
                                .batch(2)
                                .serialize();
  LogCapture log;  // the placer has a lot to say about damaged devices
  size_t opened = 0;
  auto attempt = [&](const std::string& damaged) {
    try {
      auto source = open_source(damaged, local_worker());
      ++opened;
      rest_of(*source, 3);
    } catch (const Error&) {
    }
  };

  for (size_t length = 0; length < bytes.size(); ++length) attempt(bytes.substr(0, length));
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
    attempt(damaged);
  }

  EXPECT_GT(opened, 0);  // some of them are datasets, too
}

}  // namespace
}  // namespace muster

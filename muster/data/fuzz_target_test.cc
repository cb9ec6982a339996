// The fuzzer's corpus as a unit test.
#include "muster/data/fuzz_target.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "muster/data/dataset_node.h"
#include "muster/data/files/example_builder.h"
#include "muster/data/files/parquet_reader.h"
#include "muster/data/files/tfrecord_writer.h"
#include "muster/data/preprocessing/preprocessing_layers.h"
#include "muster/data/sources/source.h"

namespace muster {
namespace {

using testing_support::try_dataset;

std::vector<std::pair<std::string, std::string>> dataset_seeds() {
  const Dataset rows = Dataset::tensors({at::arange(8).view({4, 2}), at::ones({4}, at::kBool)}).shuffle(4, 3, false);
  const Dataset steps =
      Dataset::zip({Dataset::synthetic_digits(8, 5).shard(2, 1).skip(1).cache(), rows}).batch(2, true);
  const CsvFormat lines{.columns = {{.name = "a", .type = CsvColumn::Type::kFloat, .otherwise = 1.5},
                                    {.name = "b", .type = CsvColumn::Type::kString}}};
  const Dataset files = Dataset::text_lines({"/no/such/file"}, {.cycle_length = 2})
                            .parse_csv(lines)
                            .preprocess("b", hashing({.bins = 5}))
                            .label("a");
  const Dataset examples =
      Dataset::tfrecords({"/no/such/file"})
          .parse_examples({{.name = "x", .kind = ExampleFeature::Kind::kSparse, .type = ExampleFeature::Type::kInt64}},
                          {.threads = 2});
  const Dataset pictures = Dataset::image_folder("/no/such/folder")
                               .decode_images("image", {.steps = {ImageStep::resize(8, 8)}, .seed = 3}, {.threads = 2});
  const std::vector<PackedField> fields{
      {.name = "x", .type = PackedField::Type::kFloat, .sizes = {2, 3}, .otherwise = 1.5},
      {.name = "y", .type = PackedField::Type::kInt16, .varies = true},
      {.name = "t", .type = PackedField::Type::kInt64, .unit = PackedField::Unit::kNanoseconds},
      {.name = "z", .type = PackedField::Type::kString, .otherwise = std::string("?")}};
  const Dataset columns = dataset_of(
      FilesOp{.patterns = {"/no/such/file"}, .format = {.kind = RecordFormat::Kind::kParquet, .fields = fields}});
  const Dataset rows_of_columns = dataset_of(ParseOp{.what = fields, .parser = parser_of(fields)}, {columns.node()});
  return {{"parquet", rows_of_columns.select({"z", "x"}).batch(2).serialize()},
          {"files", Dataset::concatenate({files.shard_hint().padded_batch(3), files}).unbatch().serialize()},
          {"examples", examples.bucket_by_length(0, {3}, {4, 5}).enumerate(2).window(3, 1).serialize()},
          {"pictures", Dataset::sample({pictures, pictures}, {1, 2}, 7).serialize()},
          {"names", Dataset::range(3).batch(2).named({"a"}).labels({"a"}).serialize()},
          {"cache", Dataset::range(3).cache("/no/such/file").serialize()},
          {"registered", Dataset::registered("a", {{"b", "c"}}, {"d"}).map_registered("e", {}, {2}).serialize()},
          {"device", Dataset::range(3).prefetch(2, "CPU:0").serialize()},
          {"range", Dataset::range(100, 0, -2).map([](at::Tensor x) { return x + 1; }).serialize()},
          {"shapes", Dataset::range(9).batch(4).flat_map([](at::Tensor x) { return x + 1; }).serialize()},
          {"steps", steps.take(4).repeat(2).prefetch(2).serialize()}};
}

TEST(DatasetCorpus, SeedsAreTaken) {
  for (const auto& [name, bytes] : dataset_seeds()) {
    EXPECT_EQ(parse_dataset(bytes).serialize(), bytes) << name;
    const bool opened =
        name != "pictures" && name != "cache" && name != "registered" && (name != "parquet" || has_parquet());
    EXPECT_EQ(try_dataset(bytes), opened) << name << ": what it names is looked at when it is opened";
  }
}

// MUSTER_WRITE_CORPUS=1 data_test --gtest_filter='DatasetCorpus.*' writes the seeds anew after a change of the format.
TEST(DatasetCorpus, FilesAreTakenOrRefused) {
  const std::filesystem::path folder = MUSTER_FUZZ_CORPUS;
  if (std::getenv("MUSTER_WRITE_CORPUS")) {
    for (const auto& [name, bytes] : dataset_seeds()) std::ofstream(folder / name, std::ios::binary) << bytes;
  }
  int files = 0, taken = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(file.path(), std::ios::binary);
    ++files;
    taken += try_dataset(std::string(std::istreambuf_iterator<char>(in), {})) ? 1 : 0;
  }
  EXPECT_GE(files, 2);
  EXPECT_GE(taken, 2);
}

TEST(DatasetCorpus, SeedsAreTakenOrRefusedWhicheverBitIsFlipped) {
  for (const auto& [name, bytes] : dataset_seeds()) {
    for (size_t bit = 0; bit < bytes.size() * 8; bit += 7) {
      std::string damaged = bytes;
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
      try_dataset(damaged);
    }
  }
}

std::vector<std::string> record_seeds() {
  const std::string example =
      ExampleBuilder().int64s("x", {3}).floats("y", {1, 2}).strings("z", {"a", "b"}).serialize();
  const std::string path = str_cat(std::filesystem::temp_directory_path().string(), "/muster-seed-", ::getpid());
  std::vector<std::string> seeds{"e" + example, "c1.5,2,\"three, four\"", "qone\n\"two\nlines\"\nthree\n"};
  for (const auto& [letter, compression] : {std::pair("t", Compression::kNone), std::pair("g", Compression::kGzip)}) {
    TfRecordWriter out(path, compression);
    out.write(example);
    out.write("");
    out.close();
    std::ifstream in(path, std::ios::binary);
    seeds.push_back(letter + std::string(std::istreambuf_iterator<char>(in), {}));
    std::filesystem::remove(path);
  }
  return seeds;
}

TEST(RecordCorpus, SeedsAreReadAndSurviveWhicheverBitIsFlipped) {
  for (const std::string& seed : record_seeds()) {
    EXPECT_TRUE(testing_support::try_records(seed)) << seed[0];
    for (size_t bit = 8; bit < seed.size() * 8; bit += 3) {
      std::string damaged = seed;
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
      testing_support::try_records(damaged);
    }
  }
}

}  // namespace
}  // namespace muster

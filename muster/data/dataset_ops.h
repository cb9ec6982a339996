// The steps of a dataset, as data.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "muster/data/dataset.h"
#include "muster/data/element_traces.h"
#include "muster/data/files/csv_parser.h"
#include "muster/data/files/example_parser.h"
#include "muster/data/files/packed_rows.h"
#include "muster/data/files/record_parser.h"
#include "muster/data/files/record_reader.h"
#include "muster/data/preprocessing/preprocessing.h"

namespace muster {

inline constexpr int kMostThreads = 1024;  // of one step

struct RangeOp {
  int64_t begin, end, step;
  uint64_t count() const;
};
struct SlicesOp {
  std::vector<at::Tensor> tensors;
};
struct WholeOp {
  Element element;
};
struct GeneratorOp {
  std::function<Dataset::Generator()> start;
};
// Found by name where it is opened: a source if it has no input, else a map.
struct RegisteredOp {
  std::string name;
  RegisteredOptions options{};
  std::vector<std::string> names{};
  Parallel parallel{};
};
struct NativeMapOp {
  ColumnFunction function;
  std::vector<std::string> names{};
  Parallel parallel{};
};
struct DigitsOp {
  int64_t count;
  uint64_t seed;
};
// Every n-th of the files.
struct FilePart {
  int64_t shards = 1, index = 0;

  FilePart part(int64_t of, int64_t number) const { return {shards * of, index + shards * number}; }
};
// Records of files, one string each.
struct FilesOp {
  std::vector<std::string> patterns;  // paths, in which * ? and [] stand for what is there when it is opened
  RecordFormat format{};
  std::string header{};  // the first line of each file, if they have one
  bool ignore_errors = false;
  FilePart part{};
  int64_t cycle = 1, block = 1;  // so many files at a time, so many records of each in turn
};
// The slices of the arrays of a numpy file.
struct NumpyOp {
  std::string path;
  std::vector<std::string> names{};
};
// The pictures below a directory and the number of the folder that each is in.
struct ImageFolderOp {
  std::string directory;
  FilePart part{};
};
struct DecodeImagesOp {
  std::string column;
  ImageOptions options{};
  Parallel parallel{};
};
// What is in records: examples, fields of a line, a packed row.
using RecordContent = std::variant<std::vector<ExampleFeature>, CsvFormat, std::vector<PackedField>>;
// Turns records into that.
struct ParseOp {
  RecordContent what;
  std::shared_ptr<const RecordParser> parser;
  bool ignore_errors = false;
  Parallel parallel{};
};
// One column becomes another one.
struct PreprocessOp {
  std::string column;
  std::shared_ptr<const Preprocessing> how;
};
// Some columns, in this order. The last ones, so many, are what the others are to predict.
struct SelectOp {
  std::vector<std::string> columns;
  size_t labels = 0;
  bool names_all = false;  // instead, all of them get these names
};
struct ConcatenateOp {};
struct FunctionOp {
  bool filters;  // else maps
  Parallel parallel{};
  std::shared_ptr<ElementTraces> traces{};
  std::vector<std::string> names{};  // of what a map returns
  const char* name() const { return filters ? "filter" : "map"; }
};
struct BatchOp {
  int64_t size;
  bool drop_remainder;
};
struct PaddedBatchOp {
  int64_t size;
  bool drop_remainder;
  double padding;
};
// Padded batches of elements that are about as long.
struct BucketOp {
  int64_t column;                   // whose first size is the length
  std::vector<int64_t> boundaries;  // ascending: a bucket below the first, one between each two, one from the last on
  std::vector<int64_t> batches;     // the size of a batch of each bucket
  bool drop_remainder;
  double padding;
};
struct UnbatchOp {};
struct EnumerateOp {
  int64_t first;
};
struct WindowOp {
  int64_t size, shift;
  bool drop_remainder;
};
// One of several datasets at random.
struct SampleOp {
  std::vector<double> weights;
  std::optional<uint64_t> seed;
};
struct ShuffleOp {
  int64_t buffer;
  std::optional<uint64_t> seed;
  bool reshuffle;
};
struct RepeatOp {
  std::optional<int64_t> count;
};
struct TakeOp {
  int64_t count;
};
struct SkipOp {
  int64_t count;
};
struct ShardOp {
  int64_t shards, index;
  bool of_all = false;  // each shard is to have an element, or it is an error
};
// Where ShardPolicy::kHint puts a ShardOp; else nothing.
struct ShardHintOp {};
// What is before it is read by several together, each part by one of them. REQUIRES: it makes elements.
struct HandOutOp {
  int64_t rows = 1;  // a part that is a range has a multiple of them, but for the last
};
// All before it, from a position on. Nothing comes after it.
struct FromOp {
  std::string position;
};
struct ZipOp {};
struct PrefetchOp {
  int64_t count;
  std::string device{};  // that they are copied to, if one is named
};
struct CacheOp {
  std::string path{};  // of the file; none: in memory
};

using DatasetOp =
    std::variant<RangeOp, SlicesOp, WholeOp, GeneratorOp, RegisteredOp, NativeMapOp, DigitsOp, FilesOp, NumpyOp,
                 ImageFolderOp, DecodeImagesOp, ParseOp, PreprocessOp, SelectOp, ConcatenateOp, SampleOp, FunctionOp,
                 BatchOp, PaddedBatchOp, BucketOp, UnbatchOp, EnumerateOp, WindowOp, ShuffleOp, RepeatOp, TakeOp,
                 SkipOp, ShardOp, ShardHintOp, HandOutOp, FromOp, ZipOp, PrefetchOp, CacheOp>;

}  // namespace muster

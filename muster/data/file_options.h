// How files are read.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "muster/data/files/compression.h"
#include "muster/data/files/csv_parser.h"
#include "muster/data/files/example_parser.h"
#include "muster/data/images/image_decoder.h"
#include "muster/data/images/image_steps.h"

namespace muster {

// Which files: one path or pattern, or several.
class Files {
 public:
  Files(const char* one) : patterns_{one} {}                                  // NOLINT: a path is files
  Files(std::string one) : patterns_{std::move(one)} {}                       // NOLINT
  Files(std::vector<std::string> several) : patterns_(std::move(several)) {}  // NOLINT
  Files(std::initializer_list<std::string> several) : patterns_(several) {}   // NOLINT
  std::vector<std::string> take() && { return std::move(patterns_); }

 private:
  std::vector<std::string> patterns_;
};

struct FileOptions {
  Compression compression = Compression::kNone;
  // Records that cannot be read or parsed are left out, and counted in the log; else they are an error.
  bool ignore_errors = false;
  // So many files are read in turn, so many records of each at a time, as tf.data's interleave does it.
  int64_t cycle_length = 1, block_length = 1;
};

struct FixedRecordOptions {
  int64_t header_bytes = 0, footer_bytes = 0;  // of each file, around its records
  FileOptions files{};
};

struct CsvOptions {
  // Those that are wanted, in this order. Without: all that the first file has, numbers where its first hundred lines
  // have nothing else, and 0 or "" for fields that are empty.
  std::vector<CsvColumn> columns{};
  bool header = true;  // the first line of each file has the names of the fields
  char separator = ',';
  bool quotes = true;      // "a, ""b""" is one field, be it of several lines
  std::string na_value{};  // says, like nothing at all, that a value is missing
  FileOptions files{};
};

struct ParquetColumn {
  std::string name;
  // What a null stands for, as in CsvColumn, also one within a list; a list that is null is empty then. Without: a null
  // is an error.
  std::optional<std::variant<double, int64_t, std::string>> otherwise{};
};

struct ParquetOptions {
  // Those that are wanted, in this order. Without: all that the first file has; with `ignore_errors`, the first that
  // can be read.
  std::vector<ParquetColumn> columns{};
  FileOptions files{};  // not `compression`: the files say themselves how they are compressed
};

// Pictures become tensors of their pixels: uint8 [height, width, channels], and what the steps make of them.
struct ImageOptions {
  DecodeOptions decode{};
  std::vector<ImageStep> steps{};
  // Of the random steps: an element has its numbers from its place in the sequence, other ones in each round. Without:
  // every opened sequence draws its own.
  std::optional<uint64_t> seed{};
};

inline constexpr int kAutoThreads = -1;  // as many as pays, by what is measured, within the task's share of the cores

// How many threads do something to different elements at once.
struct Parallel {
  int threads = 1;
  bool deterministic = true;  // their order stays as it was; else they come as they are done
};

}  // namespace muster

// What the fuzzer does with its bytes; the corpus test does the same. Not part of the library.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <span>
#include <string>

#include "muster/base/check.h"
#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/data/dataset.h"
#include "muster/data/files/numpy_file.h"
#include "muster/data/files/parquet_reader.h"
#include "muster/data/files/record_reader.h"
#include "muster/data/images/image_decoder.h"
#include "muster/data/sources/sources.h"
#include "muster/runtime/worker/local_worker.h"

namespace muster::testing_support {

// A description of a dataset, to the point where it could be read from. Returns whether it got there.
inline bool try_dataset(const std::string& bytes) {
  static LocalWorker& worker = *new LocalWorker({.devices = {.gpus = false}, .run_memory = 64 << 20});
  LogCapture quiet;
  try {
    const std::string written = parse_dataset(bytes).serialize();
    MUSTER_CHECK(parse_dataset(written).serialize() == written);
    open_source(bytes, worker, {.readable = {"/no/such"}});
    return true;
  } catch (const Error&) {
    return false;
  }
}

// The bytes of a file, after one that says what it is read as. Returns whether it was read to its end.
inline bool try_records(const std::string& bytes) {
  if (bytes.empty()) return false;
  const std::string_view content = std::string_view(bytes).substr(1);
  const std::string path = str_cat(std::filesystem::temp_directory_path().string(), "/muster-fuzz-", ::getpid(),
                                   bytes[0] == 'z' ? ".npz" : ".npy");
  LogCapture quiet;
  auto read_as = [&](const RecordFormat& format) {
    std::ofstream(path, std::ios::binary) << content;
    const std::unique_ptr<RecordReader> reader = open_records(path, format);
    while (reader->next()) {
    }
  };
  using Kind = ExampleFeature::Kind;
  using Type = ExampleFeature::Type;
  static const ExampleParser& examples = *new ExampleParser(
      {{.name = "x", .kind = Kind::kFixed, .type = Type::kInt64, .otherwise = std::vector<int64_t>{1}},
       {.name = "y", .kind = Kind::kPadded, .type = Type::kFloat, .most = 100},
       {.name = "z", .kind = Kind::kSparse, .type = Type::kString},
       {.name = "s", .kind = Kind::kPadded, .type = Type::kInt64, .most = 100, .sequence = true}});
  static const CsvParser& lines = *new CsvParser({.columns = {{.name = "a", .type = CsvColumn::Type::kFloat},
                                                              {.name = "b", .type = CsvColumn::Type::kInt64},
                                                              {.name = "c", .type = CsvColumn::Type::kString}}});
  try {
    switch (bytes[0]) {
      case 'e': examples.parse(std::span(&content, 1)); break;
      case 'c': lines.parse(std::span(&content, 1)); break;
      case 't': read_as({.kind = RecordFormat::Kind::kTfRecord}); break;
      case 'g': read_as({.kind = RecordFormat::Kind::kTfRecord, .compression = Compression::kGzip}); break;
      case 'q': read_as({.kind = RecordFormat::Kind::kLines, .quoted = true}); break;
      case 'p': {
        std::ofstream(path, std::ios::binary) << content;
        const std::unique_ptr<RecordReader> rows = open_parquet(path, parquet_fields(path, {}));
        while (rows->next()) {
        }
        break;
      }
      case 'n':
      case 'z':
        std::ofstream(path, std::ios::binary) << content;
        bytes[0] == 'n' ? (void)read_npy(path) : (void)read_npz(path);
        break;
      default: decode_image(content, {.most_pixels = 1 << 20});
    }
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace muster::testing_support

// The steps of an opened dataset.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "muster/data/column.h"
#include "muster/data/dataset_node.h"
#include "muster/runtime/program_runner.h"

namespace muster {

// One step. Not thread-safe: whoever opened the dataset lets one thread in at a time.
class Source {
 public:
  virtual ~Source() = default;
  // After the last element: nothing, however often it is asked.
  virtual std::optional<Columns> next() = 0;
  // Begins the next round, from the first element.
  virtual void restart() = 0;
  // Leaves out elements; whether there were so many.
  virtual bool skip(int64_t count) {
    while (count > 0 && next()) --count;
    return count == 0;
  }
};

// What a dataset is opened with. The nodes and what is referred to here outlive the sources.
struct OpenContext {
  ProgramRunner& runner;
  const std::atomic<bool>& closed;
  // Random functions draw other numbers at each task and each time that a dataset is opened.
  uint64_t draws = 0;
  bool example = false;  // only the first element is wanted, in any order: no threads, no buffers
  // Files are read below these directories. Null: wherever they are, as the dataset is this process's own.
  const std::vector<std::string>* readable = nullptr;
  // Steps that are opened elsewhere: what is done to each element of a batch is done to the batch at once.
  const std::vector<const DatasetNode*>* left_out = nullptr;

  // For those that may take many elements to make one. Throws Error{kCancelled} once nobody wants them any more.
  void check_open() const;
  // Throws Error{kPermissionDenied} for a file that is not to be read.
  void check_readable(const std::string& path) const;
};

std::unique_ptr<Source> open(const DatasetNode& node, const OpenContext& context);

// ---- Of sources.cc, by what they have in common
std::unique_ptr<Source> open_op(const RangeOp& op);
std::unique_ptr<Source> open_op(const SlicesOp& op);
std::unique_ptr<Source> open_op(const NumpyOp& op, const OpenContext& context);
std::unique_ptr<Source> open_op(const WholeOp& op);
std::unique_ptr<Source> open_op(const GeneratorOp& op);
std::unique_ptr<Source> open_op(const DigitsOp& op);

// ---- Of file_sources.cc
std::unique_ptr<Source> open_op(const FilesOp& op, const OpenContext& context);
std::unique_ptr<Source> open_op(const ParseOp& op, std::unique_ptr<Source> input, const OpenContext& context);
std::unique_ptr<Source> open_op(const ImageFolderOp& op, const OpenContext& context);
std::unique_ptr<Source> open_decode(const DecodeImagesOp& op, size_t column, std::unique_ptr<Source> input,
                                    const OpenContext& context);
std::unique_ptr<Source> open_concatenate(std::vector<std::unique_ptr<Source>> inputs);
// Those that it reads, in this order. Throws Error{kNotFound} for a pattern that nothing matches.
std::vector<std::string> record_files(const FilesOp& op, const OpenContext* context = nullptr);
std::vector<std::pair<std::string, at::Tensor>> read_numpy(const std::string& path);  // by its ending
std::shared_ptr<const RecordParser> parser_of(const std::variant<std::vector<ExampleFeature>, CsvFormat>& what);
// Of one record, or of a batch of them.
Columns parse_records(const RecordParser& parser, const Columns& element);

// ---- Of parallel_source.cc: `change` is called by so many threads, and the order stays.
std::unique_ptr<Source> open_change(std::function<Columns(Columns)> change, int threads, std::unique_ptr<Source> input);

// ---- Of grouping_sources.cc
std::unique_ptr<Source> open_op(const BatchOp& op, std::unique_ptr<Source> input, const OpenContext& context);
std::unique_ptr<Source> open_op(const PaddedBatchOp& op, std::unique_ptr<Source> input, const OpenContext& context);
std::unique_ptr<Source> open_op(const BucketOp& op, std::unique_ptr<Source> input, const OpenContext& context);
std::unique_ptr<Source> open_op(const UnbatchOp& op, std::unique_ptr<Source> input, const OpenContext& context);
std::unique_ptr<Source> open_op(const EnumerateOp& op, std::unique_ptr<Source> input, const OpenContext& context);
std::unique_ptr<Source> open_op(const WindowOp& op, std::unique_ptr<Source> input, const OpenContext& context);
std::unique_ptr<Source> open_sample(const SampleOp& op, std::vector<std::unique_ptr<Source>> inputs);

// ---- Of transform_sources.cc
std::unique_ptr<Source> open_op(const ShuffleOp& op, std::unique_ptr<Source> input, const OpenContext& context);
std::unique_ptr<Source> open_op(const RepeatOp& op, std::unique_ptr<Source> input, const OpenContext& context);
std::unique_ptr<Source> open_op(const TakeOp& op, std::unique_ptr<Source> input, const OpenContext& context);
std::unique_ptr<Source> open_op(const SkipOp& op, std::unique_ptr<Source> input, const OpenContext& context);
std::unique_ptr<Source> open_op(const ShardOp& op, std::unique_ptr<Source> input, const OpenContext& context);
std::unique_ptr<Source> open_op(const CacheOp& op, std::unique_ptr<Source> input, const OpenContext& context);
std::unique_ptr<Source> open_zip(std::vector<std::unique_ptr<Source>> inputs);

// ---- Of prefetch_source.cc
std::unique_ptr<Source> open_op(const PrefetchOp& op, std::unique_ptr<Source> input, const OpenContext& context);

// ---- Of function_source.cc; `program` may be null, and then there must be no element.
std::unique_ptr<Source> open_function(const FunctionOp& op, std::shared_ptr<const ElementProgram> program,
                                      std::unique_ptr<Source> input, const OpenContext& context);

}  // namespace muster

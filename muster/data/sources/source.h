// The steps of an opened dataset.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "muster/data/column.h"
#include "muster/data/dataset_node.h"
#include "muster/data/sources/part_queue.h"
#include "muster/data/stage_times.h"
#include "muster/runtime/devices.h"
#include "muster/runtime/executor/program_runner.h"

namespace muster {

// One step. Not thread-safe: whoever opened the dataset lets one thread in at a time.
class Source {
 public:
  virtual ~Source() = default;
  // After the last element: nothing, however often it is asked.
  virtual std::optional<Columns> next() = 0;
  // Whether next_rows() may be called in place of next(): it is a source that has many elements at hand.
  virtual bool gives_rows() const { return false; }
  // The next elements as one, each a row of it and parsed already: as many as are at hand, up to `most`.
  virtual std::optional<Columns> next_rows([[maybe_unused]] int64_t most) { return std::nullopt; }
  // Begins the next round, from the first element.
  virtual void restart() = 0;
  // Leaves out elements; whether there were so many.
  virtual bool skip(int64_t count) {
    while (count > 0 && next()) --count;
    return count == 0;
  }
  // Leaves out so many elements without making them where that can be helped. Returns how many there were not.
  virtual int64_t fast_forward(int64_t count) {
    for (; count > 0; --count) {
      try {
        if (!next()) return count;
      } catch (const Error& error) {  // it was one of them
        if (error.code() == StatusCode::kCancelled) throw;
      }
    }
    return 0;
  }
  // How many elements a round has, if that is known without reading them.
  virtual std::optional<int64_t> length() const { return std::nullopt; }
  // Of the parts that were handed out to its source, in the order in which they came: how many at least have all their
  // elements in what it has returned. What a step keeps counts as not returned.
  virtual int64_t drained() const { return 0; }
};

// What a dataset is opened with. The nodes and what is referred to here outlive the sources.
struct OpenContext {
  ProgramRunner& runner;
  const std::atomic<bool>& closed;
  // Random functions draw other numbers at each task and each time that a dataset is opened.
  uint64_t draws = 0;
  // What steps without a seed draw by: the same ones if it is opened again to go on where it was. Not null.
  uint64_t* next_seed = nullptr;
  bool example = false;           // only the first elements are wanted, in any order: no threads, no buffers
  std::optional<int64_t> rows{};  // of a batch of these, at most
  // Files are read below these directories. Null: wherever they are, as the dataset is this process's own.
  const std::vector<std::string>* readable = nullptr;
  const std::vector<std::string>* writable = nullptr;  // and caches written below these
  const LocalDevices* devices = nullptr;               // that elements may be copied to
  // Not null: the source is read by several, and each part of it by the one who is handed it.
  PartQueue* parts = nullptr;
  // Steps that are opened elsewhere: what is done to each element of a batch is done to the batch at once.
  const std::vector<const DatasetNode*>* left_out = nullptr;
  // Where the time of its stages is counted. Null: nowhere.
  StageTimes* times = nullptr;
  Stage* stage = nullptr;  // of the step that is being opened, if it is one
  int lane = 0;            // of its stages, as in StageTiming
  // Elements of generators are handed on one by one: they may wait for what becomes of those before.
  bool one_by_one = false;

  uint64_t fresh_seed() const;
  // For those that may take many elements to make one. Throws Error{kCancelled} once nobody wants them any more.
  void check_open() const;
  // Throws Error{kPermissionDenied} for a file that is not to be read.
  void check_readable(const std::string& path) const;
  void check_writable(const std::string& path) const;  // the same for one that is written
  // The next part that was handed out. REQUIRES: parts.
  std::optional<int64_t> next_part() const;
};

std::unique_ptr<Source> open(const DatasetNode& node, const OpenContext& context);
// Of its own for each round, so that one can begin without those before: what a step draws by.
uint64_t seed_of_round(uint64_t seed, uint64_t round);

// ---- Of stage_times.cc
// What a step is opened with, and what the steps before it are: in lanes of their own where it has threads of its own.
struct StepContexts {
  OpenContext own, inputs;
};
StepContexts contexts_of(const DatasetNode& node, const OpenContext& context);
// The same source, with its time counted; one that has several threads does that itself.
std::unique_ptr<Source> measured(Stage* stage, std::unique_ptr<Source> source);

// ---- Of sources.cc, by what they have in common
std::unique_ptr<Source> open_op(const RangeOp& op);
std::unique_ptr<Source> open_op(const SlicesOp& op);
std::unique_ptr<Source> open_op(const NumpyOp& op, const OpenContext& context);
std::unique_ptr<Source> open_op(const WholeOp& op);
std::unique_ptr<Source> open_op(const GeneratorOp& op);
std::unique_ptr<Source> open_op(const DigitsOp& op);

// ---- Of file_sources.cc
std::unique_ptr<Source> open_op(const FilesOp& op, const OpenContext& context);
std::unique_ptr<Source> open_op(const ImageFolderOp& op, const OpenContext& context);
std::unique_ptr<Source> open_decode(const DecodeImagesOp& op, size_t column, std::unique_ptr<Source> input,
                                    const OpenContext& context);
std::unique_ptr<Source> open_concatenate(std::vector<std::unique_ptr<Source>> inputs, std::vector<std::string> names);
// Those that it reads, in this order. Throws Error{kNotFound} for a pattern that nothing matches.
std::vector<std::string> record_files(const FilesOp& op, const OpenContext* context = nullptr);
std::vector<std::pair<std::string, at::Tensor>> read_numpy(const std::string& path);  // by its ending
std::shared_ptr<const RecordParser> parser_of(const RecordContent& what);

// ---- Of parse_source.cc
std::unique_ptr<Source> open_op(const ParseOp& op, std::unique_ptr<Source> input, const OpenContext& context);
// The records that a parse step can parse, if it is to leave others out; else all.
std::unique_ptr<Source> open_good_records(const DatasetNode& node, std::unique_ptr<Source> input,
                                          const OpenContext& context);

// ---- Of parallel_source.cc
Parallel parallel_of(const DatasetNode& node);       // one thread for a step that has none of its own
int possible_threads(Parallel parallel, int cores);  // within what a machine can do with
// `change` is called by so many threads.
std::unique_ptr<Source> open_change(std::function<Columns(Columns)> change, Parallel parallel,
                                    std::unique_ptr<Source> input, const OpenContext& context);

// ---- Of grouping_sources.cc
std::unique_ptr<Source> open_op(const BatchOp& op, std::unique_ptr<Source> input, const OpenContext& context);
std::unique_ptr<Source> open_op(const PaddedBatchOp& op, std::unique_ptr<Source> input, const OpenContext& context);
std::unique_ptr<Source> open_op(const BucketOp& op, std::unique_ptr<Source> input, const OpenContext& context);
std::unique_ptr<Source> open_op(const UnbatchOp& op, std::unique_ptr<Source> input, const OpenContext& context);
std::unique_ptr<Source> open_op(const EnumerateOp& op, std::unique_ptr<Source> input, const OpenContext& context);
std::unique_ptr<Source> open_op(const WindowOp& op, std::unique_ptr<Source> input, const OpenContext& context);
std::unique_ptr<Source> open_sample(const SampleOp& op, std::vector<std::unique_ptr<Source>> inputs,
                                    const OpenContext& context);

// ---- Of transform_sources.cc
std::unique_ptr<Source> open_op(const ShuffleOp& op, std::unique_ptr<Source> input, const OpenContext& context);
std::unique_ptr<Source> open_repeat(const RepeatOp& op, bool rounds_alike, std::unique_ptr<Source> input,
                                    const OpenContext& context);
std::unique_ptr<Source> open_op(const TakeOp& op, std::unique_ptr<Source> input, const OpenContext& context);
std::unique_ptr<Source> open_op(const SkipOp& op, std::unique_ptr<Source> input, const OpenContext& context);
std::unique_ptr<Source> open_op(const ShardOp& op, std::unique_ptr<Source> input, const OpenContext& context);
std::unique_ptr<Source> open_op(const CacheOp& op, std::unique_ptr<Source> input, const OpenContext& context);
std::unique_ptr<Source> open_zip(std::vector<std::unique_ptr<Source>> inputs);

// ---- Of registered.cc
std::unique_ptr<Source> open_op(const RegisteredOp& op);  // a source
std::unique_ptr<Source> open_registered_map(const RegisteredOp& op, std::unique_ptr<Source> input,
                                            const OpenContext& context);
std::unique_ptr<Source> open_op(const NativeMapOp& op, std::unique_ptr<Source> input, const OpenContext& context);

// ---- Of cache_source.cc; `before` is opened if there is no file yet.
std::unique_ptr<Source> open_file_cache(const CacheOp& op, const DatasetNode& before, const OpenContext& context);

// ---- Of handed_out_source.cc: ranges of the elements of `input`, whose number is known, as parts.
std::unique_ptr<Source> open_ranges(const HandOutOp& op, std::unique_ptr<Source> input, const OpenContext& context);

// ---- Of prefetch_source.cc
std::unique_ptr<Source> open_op(const PrefetchOp& op, std::unique_ptr<Source> input, const OpenContext& context);

// ---- Of function_source.cc; `before` is the step whose elements the function takes.
std::unique_ptr<Source> open_function(const FunctionOp& op, const DatasetNode& before, std::unique_ptr<Source> input,
                                      const OpenContext& context);

}  // namespace muster

// Sequences of examples, described: made here, opened wherever they are needed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "muster/data/element_function.h"
#include "muster/data/file_options.h"
#include "muster/data/input_context.h"
#include "muster/data/preprocessing/preprocessing.h"
#include "muster/data/registered.h"
#include "muster/graph/program.h"
#include "muster/runtime/worker/element_source.h"
#include "muster/trace/iterator.h"

namespace muster {

class DatasetNode;

enum class ShardPolicy { kAuto, kFile, kData, kHint, kOff, kDynamic };

// Describes a sequence of elements; an element is a list of tensors. Immutable, cheap to copy, free to share between
// threads. Each `open` begins the sequence anew. Everything throws Error{kInvalidArgument} for bad arguments, at once.
// Elements may share memory with the dataset and with each other: read them, do not write to them.
//   Dataset::tensors({images, labels}).shuffle(10'000).batch(64, true).map(augment).prefetch(2)
class Dataset {
 public:
  using Generator = std::function<std::optional<Element>()>;  // called again and again, until it returns nothing

  // The numbers begin, begin + step, … before `end`, as int64 scalars.
  static Dataset range(int64_t end);
  static Dataset range(int64_t begin, int64_t end, int64_t step = 1);
  // Element i has the i-th slice of each tensor along its first dimension. Copies what others hold.
  static Dataset tensors(std::vector<at::Tensor> tensors);
  static Dataset from_tensors(Element element);  // one element
  // Whatever C++ can make. Every opened sequence calls `start` for a generator of its own, which is called by one
  // thread at a time. It cannot be serialized.
  static Dataset generator(std::function<Generator()> start);
  // What register_dataset_source has registered under this name where it is opened.
  static Dataset registered(const std::string& name, RegisteredOptions options = {},
                            std::vector<std::string> columns = {});
  // Pictures (float32[784], 28 rows of 28 points from 0 to 1) of the digits 0 to 9 and their labels (int64), made up as
  // they are needed. Another seed means other pictures of the same digits: one to learn from, one to test with.
  static Dataset synthetic_digits(int64_t count = 10'000, uint64_t seed = 0);

  // ---- Files. In a path, * ? and [] stand for whatever is there when the dataset is opened, in order of the names. A
  // file that is missing is Error{kNotFound}; what is wrong in one is an Error with its name and the record or line.
  // An element is one record, as a string, until parse_examples or parse_csv says what is in it.
  static Dataset tfrecords(Files files, const FileOptions& options = {});
  static Dataset text_lines(Files files, const FileOptions& options = {});
  static Dataset fixed_records(Files files, int64_t record_bytes, const FixedRecordOptions& options = {});
  // Lines and what is in them. Columns are named as in the file.
  static Dataset csv(Files files, const CsvOptions& options = {}, Parallel parallel = {});
  // The rows of Parquet files, with columns named as in them. Needs a Muster that was built with Apache Arrow.
  static Dataset parquet(Files files, const ParquetOptions& options = {}, Parallel parallel = {});
  // The PNG and JPEG files of a folder, named "image", and which of its folders each is in, named "label": the first by
  // name is 0. decode_images makes pictures of them.
  static Dataset image_folder(const std::string& directory);
  // The slices of the arrays of a .npz file, by name, or of the one of a .npy file, read where it is opened.
  static Dataset numpy(const std::string& file);

  // ---- Several datasets
  // The tensors of an element of each, in a row; ends with the shortest. No two columns may have the same name.
  static Dataset zip(const std::vector<Dataset>& datasets);
  // All elements of the first, then all of the second, … Columns with names are matched by them.
  static Dataset concatenate(const std::vector<Dataset>& datasets);
  // Each element from one of them, drawn by weight (without: alike), until all have ended.
  static Dataset sample(const std::vector<Dataset>& datasets, std::vector<double> weights = {},
                        std::optional<uint64_t> seed = {});

  // ---- Columns with names
  // What is in a record, as examples or as lines of a CSV file. Before a batch, it is done to the batch at once.
  Dataset parse_examples(std::vector<ExampleFeature> features, Parallel parallel = {}) const;
  Dataset parse(std::vector<std::pair<std::string, ExampleFeature>> features, Parallel parallel = {}) const;
  Dataset parse_csv(CsvFormat format, Parallel parallel = {}) const;
  // What is in the files of a column of pictures.
  Dataset decode_images(const std::string& column, const ImageOptions& options = {}, Parallel parallel = {}) const;
  Dataset select(std::vector<std::string> columns) const;  // those, in this order
  Dataset named(std::vector<std::string> columns) const;   // all tensors of an element get these names, in their order
  // What the others are to predict becomes the last column, or columns: `auto [features, label] = it.next_labelled();`
  Dataset label(const std::string& column) const { return labels({column}); }
  Dataset labels(const std::vector<std::string>& columns) const;
  // Turns a column into another one of that name, as Keras' preprocessing layers do: hashing({.bins = 1000}).
  Dataset preprocess(const std::string& column, std::shared_ptr<const Preprocessing> how) const;
  // Shows a column of all elements to an adapter, which learns the tables of a layer from it.
  void adapt(Adapter& adapter, const std::string& column) const;
  std::vector<std::string> column_names() const;  // empty if they have none

  // Functions take the tensors of an element one by one. Those of `map` return the tensors of the new element, named
  // `columns` if that is given, those of `filter` one bool: whether to keep it. They are traced on the first element,
  // when the dataset is first opened or serialized, and become part of the description; again for other shapes (see
  // docs/data.md). They run on the CPU. Limit: their variables are found by name where the dataset is opened.
  template <class F>
  Dataset map(F function, Parallel parallel = {}, std::vector<std::string> columns = {},
              std::source_location where = std::source_location::current()) const {
    return map_with(element_function(std::move(function), where), parallel, std::move(columns));
  }
  // The same, and what the function returns becomes as many elements as it has rows, be it none.
  template <class F>
  Dataset flat_map(F function, Parallel parallel = {}, std::vector<std::string> columns = {},
                   std::source_location where = std::source_location::current()) const {
    return map(std::move(function), parallel, std::move(columns), where).unbatch();
  }
  template <class F>
  Dataset filter(F function, std::source_location where = std::source_location::current()) const {
    return filter_with(element_function(std::move(function), where));
  }

  // C++ that is called and not traced; strings, too. Cannot be serialized; what is registered (register_dataset_map)
  // can.
  Dataset map_native(ColumnFunction function, Parallel parallel = {}, std::vector<std::string> columns = {}) const;
  Dataset map_registered(const std::string& name, RegisteredOptions options = {}, Parallel parallel = {},
                         std::vector<std::string> columns = {}) const;

  // Stacks `size` elements into one. The last batch may be smaller unless `drop_remainder`.
  Dataset batch(int64_t size, bool drop_remainder = false) const;
  // The same for elements of different sizes: each is filled up with `padding` (strings with "") to the largest of its
  // batch.
  Dataset padded_batch(int64_t size, bool drop_remainder = false, double padding = 0) const;
  // Padded batches of elements that are about as long: those whose first size, in this column, lies between the same
  // two boundaries. `batches`: the size of a batch of each, one more than there are boundaries.
  Dataset bucket_by_length(int64_t column, std::vector<int64_t> boundaries, std::vector<int64_t> batches,
                           bool drop_remainder = false, double padding = 0) const;
  Dataset unbatch() const;  // each element becomes as many as its first dimension has
  Dataset rebatch(int64_t size, bool drop_remainder = false) const { return unbatch().batch(size, drop_remainder); }
  Dataset enumerate(int64_t first = 0) const;  // a number in front of each element
  // Batches of `size` elements, each begun `shift` elements after the one before (0: `size`).
  Dataset window(int64_t size, int64_t shift = 0, bool drop_remainder = true) const;
  // Draws from the next `buffer` elements at random. Without a seed every opened sequence has an order of its own; with
  // one they agree. `reshuffle_each_iteration`: a `repeat` after it gets another order in every round.
  Dataset shuffle(int64_t buffer, std::optional<uint64_t> seed = {}, bool reshuffle_each_iteration = true) const;
  Dataset repeat(std::optional<int64_t> count = {}) const;  // without a count: for ever
  Dataset take(int64_t count) const;
  Dataset skip(int64_t count) const;
  // Every num_shards-th element, beginning with number `index`: the shards are disjoint and cover the whole.
  Dataset shard(int64_t num_shards, int64_t index) const;
  Dataset shard(const InputContext& context) const;
  // The part of one of several input pipelines, by TensorFlow's rules. kFile: every n-th file, of all sources, which
  // must be files (else Error{kNotFound}); with fewer files than pipelines some have nothing. kData: every n-th
  // element, before prefetch; a pipeline that would have none is Error{kInvalidArgument}. kAuto: kFile if there are as
  // many files as pipelines, else kData. kHint: where shard_hint() stands. kDynamic, for the workers of a
  // ClusterCoordinator: it hands out file by file, or range by range, to whoever has read what it had. What a worker
  // that is lost had not used goes to others: every element is used once a round, or more if a task is lost.
  Dataset shard(const InputContext& context, ShardPolicy policy) const;
  Dataset shard_hint() const;
  bool handed_out() const;  // kDynamic
  // A thread makes up to `count` elements ahead. Limit: closing waits for the element that it is at.
  Dataset prefetch(int64_t count) const;
  // The same, and copies them to a device of the task that opens it, such as "GPU:0". No step may change them then.
  Dataset prefetch(int64_t count, const std::string& device) const;
  // Keeps the elements of the first whole round in memory, for the rounds of a `repeat` after it.
  Dataset cache() const;
  // The same in a file, for later programs, too. A file of another dataset, or a damaged one, is an Error.
  Dataset cache(const std::string& path) const;

  // The same from a position of a sequence of it on (Iterator::position, ClusterCoordinator::position): with the same
  // seeds, the elements that were not taken. What was taken before is read once more, without being parsed or mapped.
  // The last step. Limit: random functions draw other numbers. Throws Error{kInvalidArgument} for a text that is none;
  // opening it does so for a position of another dataset, or behind the end.
  Dataset from(const std::string& position) const;
  // Of the first element; takes it, here, the first time. Throws Error{kOutOfRange} if there is none.
  std::vector<TensorSpec> element_spec() const;

  // Begins the sequence here. `worker` runs the functions and outlives the result. Throws Error.
  std::unique_ptr<ElementSource> open(Worker& worker) const;
  // Begins the sequence here, as an argument of functions that are called in this process.
  Iterator iterator() const;
  Iterator pattern() const;  // the same without a sequence: what its elements look like

  // For parse_dataset, here or in another process. Throws Error{kInvalidArgument} if there is a C++ function in it.
  std::string serialize() const;

  // ---- For the parts of data/.
  explicit Dataset(std::shared_ptr<const DatasetNode> node) : node_(std::move(node)) {}
  const std::shared_ptr<const DatasetNode>& node() const { return node_; }

 private:
  Dataset map_with(ElementFunction function, Parallel parallel, std::vector<std::string> columns) const;
  Dataset filter_with(ElementFunction function) const;

  std::shared_ptr<const DatasetNode> node_;
};

// The same with seeds for the shuffles that have none: whoever gives the same seed gets the same order.
Dataset seeded(const Dataset& dataset, uint64_t seed);

inline constexpr int kDatasetVersion = 2;

// Takes nothing on trust. Throws Error{kDataLoss} for bytes that are no description, Error{kFailedPrecondition} for a
// version that is not ours and Error{kInvalidArgument} or Error{kResourceExhausted} for what they describe.
Dataset parse_dataset(const std::string& bytes);

}  // namespace muster

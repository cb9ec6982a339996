#include <algorithm>
#include <limits>
#include <span>

#include "muster/base/status.h"
#include "muster/data/dataset.pb.h"
#include "muster/data/dataset_node.h"
#include "muster/data/serialize_columns.h"
#include "muster/data/serialize_files.h"
#include "muster/graph/checker.h"
#include "muster/graph/serialize.h"
#include "muster/io/crc32c.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

constexpr int kMostTraces = 2 * ElementTraces::kMostShapes;
// Protobuf's, and some room for what is around the tensors.
constexpr uint64_t kMostBytes = static_cast<uint64_t>(std::numeric_limits<int>::max()) - (16 << 20);

enum class Purpose {
  kSend,
  kCompare,  // what does not change the elements is left out, and tensors are sums of their bytes
};

// Writes a description into a message, counting what it weighs.
class Writer {
 public:
  explicit Writer(Purpose purpose) : purpose_(purpose) {}

  void write(const DatasetNode& node, proto::Dataset& out) {
    const bool passed_over =
        std::holds_alternative<PrefetchOp>(node.op()) || std::holds_alternative<ShardHintOp>(node.op());
    if (purpose_ == Purpose::kCompare && passed_over) return write(node.input(), out);
    if (const auto* part = std::get_if<ShardOp>(&node.op())) {
      const auto* whole = std::get_if<SlicesOp>(&node.input().op());
      if (whole != nullptr && part->index < whole->tensors[0].size(0)) return write_step(slices_of(*whole, *part), out);
    }
    for (const auto& input : node.inputs()) write(*input, *out.add_inputs());
    if (std::holds_alternative<FunctionOp>(node.op())) return write_function(node, out);
    std::visit(
        [&]<class Op>(const Op& op) {
          if constexpr (requires { this->write_step(op, out); }) {
            write_step(op, out);
          } else {
            write_op(op, out);
          }
        },
        node.op());
    if (purpose_ == Purpose::kCompare) leave_out_order(out);
  }

 private:
  // Seeds are given anew to each iterator, and threads keep the order.
  static void leave_out_order(proto::Dataset& out) {
    if (out.has_shuffle()) out.mutable_shuffle()->clear_seed();
    if (out.has_sample()) out.mutable_sample()->clear_seed();
    if (out.has_parse()) out.mutable_parse()->clear_threads();
    if (out.has_decode_images()) out.mutable_decode_images()->clear_threads();
    if (out.has_registered_map()) out.mutable_registered_map()->clear_threads();
  }

  void add_bytes(const char* op, size_t bytes) {
    if (purpose_ == Purpose::kCompare) return;
    bytes_ += bytes;
    if (bytes_ > kMostBytes) {
      throw invalid_argument(op, ": a description with ", bytes_, " bytes, expected at most ", kMostBytes,
                             "; open the dataset where the tensors are, or describe how to make them");
    }
  }

  // Nobody is sent what others read.
  static SlicesOp slices_of(const SlicesOp& whole, const ShardOp& part) {
    PlainTensors plain;
    SlicesOp mine;
    for (const at::Tensor& tensor : whole.tensors) {
      mine.tensors.push_back(tensor.slice(0, part.index, std::nullopt, part.shards));
    }
    return mine;
  }

  void write_function(const DatasetNode& node, proto::Dataset& out) {
    const auto& op = std::get<FunctionOp>(node.op());
    proto::Dataset::Function& function = op.filters ? *out.mutable_filter() : *out.mutable_map();
    if (purpose_ == Purpose::kCompare) {
      if (auto traced = op.traces->first(node.input())) function.add_traces()->set_program(without_sizes(*traced));
      return;
    }
    for (const auto& traced : op.traces->to_send(node.input())) {
      proto::Dataset::Trace& trace = *function.add_traces();
      *trace.mutable_program() = muster::serialize(traced->program);
      add_bytes(op.name(), trace.program().size());
      for (const bool compact : traced->compact) trace.add_compact(compact);
      for (const auto& sizes : traced->least) trace.add_least()->mutable_sizes()->Add(sizes.begin(), sizes.end());
    }
    for (const std::string& name : op.names) function.add_columns(name);
    function.set_threads(op.parallel.threads);
    function.set_unordered(!op.parallel.deterministic);
  }

  void write_tensors(const char* op, const std::vector<at::Tensor>& tensors, proto::Dataset::Tensors& out) {
    PlainTensors plain;
    for (const at::Tensor& tensor : tensors) write_tensor(op, tensor, *out.add_tensors());
  }

  void write_tensor(const char* op, const at::Tensor& tensor, proto::Dataset::Tensor& out) {
    add_bytes(op, tensor.nbytes());
    muster::write_tensor(tensor, out);
    if (purpose_ == Purpose::kCompare) out.set_data(str_cat(crc32c(std::as_bytes(std::span(out.data())))));
  }

  void write_step(const PreprocessOp& op, proto::Dataset& out) {
    PlainTensors plain;
    const Preprocessing::State state = op.how->state();
    out.mutable_preprocess()->set_column(op.column);
    out.mutable_preprocess()->set_kind(state.kind);
    for (const auto& [name, column] : state.values) {
      proto::Dataset::Column& written = *out.mutable_preprocess()->add_values();
      written.set_name(name);
      add_bytes("preprocess", column.holds_strings() ? column.strings().bytes() : column.tensor().nbytes());
      write_column(column, written);
    }
  }

  void write_step(const RangeOp& op, proto::Dataset& out) {
    out.mutable_range()->set_begin(op.begin);
    out.mutable_range()->set_end(op.end);
    out.mutable_range()->set_step(op.step);
  }
  void write_step(const SlicesOp& op, proto::Dataset& out) {
    write_tensors("tensors", op.tensors, *out.mutable_slices());
  }
  void write_step(const WholeOp& op, proto::Dataset& out) {
    write_tensors("from_tensors", op.element, *out.mutable_whole());
  }
  void write_step(const GeneratorOp&, proto::Dataset&) const {
    if (purpose_ == Purpose::kCompare) return;  // nobody can tell one from another
    throw invalid_argument(
        "generator: a C++ function cannot be serialized; open the dataset in the process that made it (Dataset::open), "
        "describe its elements with tensors or range and map, or register it (register_dataset_source)");
  }
  void write_step(const NativeMapOp&, proto::Dataset&) const {
    if (purpose_ == Purpose::kCompare) return;
    throw invalid_argument(
        "map_native: a C++ function cannot be serialized; register it wherever the dataset is opened "
        "(register_dataset_map) and use map_registered");
  }
  void write_step(const DigitsOp& op, proto::Dataset& out) {
    out.mutable_digits()->set_count(op.count);
    out.mutable_digits()->set_seed(op.seed);
  }
  void write_step(const FunctionOp&, proto::Dataset&) {}  // by write_function
  void write_step(const BatchOp& op, proto::Dataset& out) {
    out.mutable_batch()->set_size(op.size);
    out.mutable_batch()->set_drop_remainder(op.drop_remainder);
  }
  void write_step(const PaddedBatchOp& op, proto::Dataset& out) {
    out.mutable_padded_batch()->set_size(op.size);
    out.mutable_padded_batch()->set_drop_remainder(op.drop_remainder);
    out.mutable_padded_batch()->set_padding(op.padding);
  }
  void write_step(const BucketOp& op, proto::Dataset& out) {
    proto::Dataset::Bucket& bucket = *out.mutable_bucket();
    bucket.set_column(op.column);
    bucket.mutable_boundaries()->Add(op.boundaries.begin(), op.boundaries.end());
    bucket.mutable_batches()->Add(op.batches.begin(), op.batches.end());
    bucket.set_drop_remainder(op.drop_remainder);
    bucket.set_padding(op.padding);
  }
  void write_step(const UnbatchOp&, proto::Dataset& out) { out.set_unbatch(true); }
  void write_step(const EnumerateOp& op, proto::Dataset& out) { out.set_enumerate(op.first); }
  void write_step(const WindowOp& op, proto::Dataset& out) {
    out.mutable_window()->set_size(op.size);
    out.mutable_window()->set_shift(op.shift);
    out.mutable_window()->set_drop_remainder(op.drop_remainder);
  }
  void write_step(const SampleOp& op, proto::Dataset& out) {
    out.mutable_sample()->mutable_weights()->Add(op.weights.begin(), op.weights.end());
    if (op.seed) out.mutable_sample()->set_seed(*op.seed);
  }
  void write_step(const ShuffleOp& op, proto::Dataset& out) {
    out.mutable_shuffle()->set_buffer(op.buffer);
    if (op.seed) out.mutable_shuffle()->set_seed(*op.seed);
    out.mutable_shuffle()->set_reshuffle(op.reshuffle);
  }
  void write_step(const RepeatOp& op, proto::Dataset& out) {
    out.mutable_repeat();
    if (op.count) out.mutable_repeat()->set_count(*op.count);
  }
  void write_step(const TakeOp& op, proto::Dataset& out) { out.set_take(op.count); }
  void write_step(const SkipOp& op, proto::Dataset& out) { out.set_skip(op.count); }
  void write_step(const ShardOp& op, proto::Dataset& out) {
    out.mutable_shard()->set_shards(op.shards);
    out.mutable_shard()->set_index(op.index);
    out.mutable_shard()->set_of_all(op.of_all);
  }
  void write_step(const ZipOp&, proto::Dataset& out) { out.set_zip(true); }
  void write_step(const PrefetchOp& op, proto::Dataset& out) {
    if (op.device.empty()) return out.set_prefetch(op.count);
    out.mutable_prefetch_to()->set_count(op.count);
    out.mutable_prefetch_to()->set_device(op.device);
  }
  void write_step(const CacheOp& op, proto::Dataset& out) {
    op.path.empty() ? out.set_cache(true) : out.set_cache_file(op.path);
  }
  void write_step(const FromOp& op, proto::Dataset& out) { out.set_from(op.position); }
  void write_step(const HandOutOp& op, proto::Dataset& out) { out.set_hand_out(op.rows); }
  void write_step(const ShardHintOp&, proto::Dataset& out) { out.set_shard_hint(true); }
  void write_step(const ConcatenateOp&, proto::Dataset& out) { out.set_concatenate(true); }

  const Purpose purpose_;
  uint64_t bytes_ = 0;
};

std::vector<at::Tensor> read_tensors(const proto::Dataset::Tensors& in) {
  if (in.tensors_size() > kMostColumns) {
    throw invalid_argument("dataset: elements of ", in.tensors_size(), " tensors, expected at most ", kMostColumns);
  }
  std::vector<at::Tensor> tensors;
  for (const auto& tensor : in.tensors()) tensors.push_back(read_tensor(tensor));
  return tensors;
}

// Of each argument or of none, and not more than the most.
void check_least(const char* op, const ElementProgram& traced) {
  if (traced.least.empty()) return;
  const auto& arguments = traced.program.arguments;
  bool fits = traced.least.size() == arguments.size();
  for (size_t i = 0; fits && i < arguments.size(); ++i) {
    const std::vector<int64_t>& most = arguments[i].spec.sizes;
    fits = std::ranges::equal(traced.least[i], most, [](int64_t a, int64_t b) { return a >= 0 && a <= b; });
  }
  if (!fits) throw invalid_argument("dataset: a ", op, " whose program has no sizes between the least and the most");
}

Dataset read_function(bool filters, const proto::Dataset::Function& in, const Dataset& input) {
  FunctionOp op{.filters = filters, .parallel = read_within_bounds(in)};
  if (in.traces_size() > kMostTraces) {
    throw invalid_argument("dataset: a ", op.name(), " with ", in.traces_size(), " traces, expected at most ",
                           kMostTraces);
  }
  if (in.columns_size() > (filters ? 0 : kMostColumns)) {
    throw invalid_argument("dataset: a ", op.name(), " with names for ", in.columns_size(), " columns");
  }
  op.names.assign(in.columns().begin(), in.columns().end());
  ElementPrograms traces;
  for (const auto& trace : in.traces()) {
    ElementProgram traced{.program = parse_program(trace.program())};
    check(traced.program);
    traced.compact.assign(trace.compact().begin(), trace.compact().end());
    const size_t outputs = traced.program.outputs.size();
    if (traced.compact.size() != traced.program.arguments.size() || outputs == 0 || (filters && outputs != 1)) {
      throw invalid_argument("dataset: a ", op.name(), " whose program takes ", traced.program.arguments.size(),
                             " tensors, of which it describes ", traced.compact.size(), ", and returns ", outputs);
    }
    for (const auto& least : trace.least()) traced.least.emplace_back(least.sizes().begin(), least.sizes().end());
    check_least(op.name(), traced);
    traces.push_back(std::make_shared<const ElementProgram>(std::move(traced)));
  }
  op.traces = std::make_shared<ElementTraces>(op.name(), std::move(traces));
  return dataset_of(std::move(op), {input.node()});
}

PreprocessOp read_preprocess(const proto::Dataset::Preprocess& in) {
  Preprocessing::State state{.kind = in.kind(), .values = {}};
  for (const auto& column : in.values()) state.values.emplace(column.name(), read_column(column));
  return {.column = in.column(), .how = preprocessing_from(state)};
}

// Makes datasets as users do, so that all arguments are checked as theirs are.
Dataset read(const proto::Dataset& in, int depth) {
  using Kind = proto::Dataset::OpCase;
  const Kind kind = in.op_case();
  if (depth > DatasetNode::kDeepest) {
    throw invalid_argument("dataset: more than ", DatasetNode::kDeepest, " steps after each other");
  }
  const bool makes_elements = kind == Kind::kRange || kind == Kind::kSlices || kind == Kind::kWhole ||
                              kind == Kind::kDigits || kind == Kind::kFiles || kind == Kind::kNumpy ||
                              kind == Kind::kImageFolder || kind == Kind::kRegisteredSource;
  const int inputs = in.inputs_size();
  if (kind != Kind::kZip && kind != Kind::kConcatenate && kind != Kind::kSample && inputs != (makes_elements ? 0 : 1)) {
    throw invalid_argument("dataset: step number ", static_cast<int>(kind), " has ", inputs, " inputs, expected ",
                           makes_elements ? 0 : 1);
  }
  std::vector<Dataset> read_inputs;
  for (const auto& input : in.inputs()) read_inputs.push_back(read(input, depth + 1));
  auto input = [&]() -> const Dataset& { return read_inputs.front(); };
  switch (kind) {
    case Kind::kRange: return Dataset::range(in.range().begin(), in.range().end(), in.range().step());
    case Kind::kSlices: return Dataset::tensors(read_tensors(in.slices()));
    case Kind::kWhole: return Dataset::from_tensors(read_tensors(in.whole()));
    case Kind::kDigits: return Dataset::synthetic_digits(in.digits().count(), in.digits().seed());
    case Kind::kMap: return read_function(false, in.map(), input());
    case Kind::kFilter: return read_function(true, in.filter(), input());
    case Kind::kBatch: return input().batch(in.batch().size(), in.batch().drop_remainder());
    case Kind::kShuffle: {
      std::optional<uint64_t> seed;
      if (in.shuffle().has_seed()) seed = in.shuffle().seed();
      return input().shuffle(in.shuffle().buffer(), seed, in.shuffle().reshuffle());
    }
    case Kind::kRepeat: {
      std::optional<int64_t> count;
      if (in.repeat().has_count()) count = in.repeat().count();
      return input().repeat(count);
    }
    case Kind::kTake: return input().take(in.take());
    case Kind::kSkip: return input().skip(in.skip());
    case Kind::kShard: {
      // Throws for numbers that are none of a shard.
      const Dataset plain = input().shard(in.shard().shards(), in.shard().index());
      if (!in.shard().of_all()) return plain;
      return dataset_of(ShardOp{in.shard().shards(), in.shard().index(), /*of_all=*/true}, nodes_of(read_inputs));
    }
    case Kind::kPaddedBatch:
      return input().padded_batch(in.padded_batch().size(), in.padded_batch().drop_remainder(),
                                  in.padded_batch().padding());
    case Kind::kBucket:
      return input().bucket_by_length(in.bucket().column(),
                                      {in.bucket().boundaries().begin(), in.bucket().boundaries().end()},
                                      {in.bucket().batches().begin(), in.bucket().batches().end()},
                                      in.bucket().drop_remainder(), in.bucket().padding());
    case Kind::kUnbatch: return input().unbatch();
    case Kind::kEnumerate: return input().enumerate(in.enumerate());
    case Kind::kWindow: return input().window(in.window().size(), in.window().shift(), in.window().drop_remainder());
    case Kind::kSample: {
      std::optional<uint64_t> seed;
      if (in.sample().has_seed()) seed = in.sample().seed();
      return Dataset::sample(read_inputs, {in.sample().weights().begin(), in.sample().weights().end()}, seed);
    }
    case Kind::kShardHint: return input().shard_hint();
    case Kind::kFrom: return input().from(in.from());
    case Kind::kHandOut:
      if (!input().node()->inputs().empty()) throw invalid_argument("dataset: only what makes elements is handed out");
      if (in.hand_out() < 1) {
        throw invalid_argument("dataset: handed out in multiples of ", in.hand_out(), " elements, expected 1 or more");
      }
      return dataset_of(HandOutOp{in.hand_out()}, nodes_of(read_inputs));
    case Kind::kZip: return Dataset::zip(read_inputs);
    case Kind::kPrefetch: return input().prefetch(in.prefetch());
    case Kind::kPrefetchTo: return input().prefetch(in.prefetch_to().count(), in.prefetch_to().device());
    case Kind::kRegisteredSource: return read_registered(in.registered_source(), {});
    case Kind::kRegisteredMap: return read_registered(in.registered_map(), read_inputs);
    case Kind::kCache: return input().cache();
    case Kind::kCacheFile: return input().cache(in.cache_file());
    case Kind::kFiles: return dataset_of(read_op(in.files()));
    case Kind::kNumpy: return dataset_of(read_op(in.numpy()));
    case Kind::kImageFolder: return dataset_of(read_op(in.image_folder()));
    case Kind::kDecodeImages: return dataset_of(read_op(in.decode_images()), nodes_of(read_inputs));
    case Kind::kParse: return dataset_of(read_op(in.parse()), nodes_of(read_inputs));
    case Kind::kPreprocess: return dataset_of(read_preprocess(in.preprocess()), nodes_of(read_inputs));
    case Kind::kSelect: return dataset_of(read_op(in.select()), nodes_of(read_inputs));
    case Kind::kConcatenate: return Dataset::concatenate(read_inputs);
    case Kind::OP_NOT_SET: break;
  }
  throw data_loss("dataset: a step has no kind; it was written by a newer Muster or is damaged");
}

}  // namespace

std::string Dataset::serialize() const {
  proto::Dataset message;
  Writer(Purpose::kSend).write(*node_, message);
  message.set_version(kDatasetVersion);
  return message.SerializeAsString();
}

std::string fingerprint(const DatasetNode& node) {
  proto::Dataset message;
  Writer(Purpose::kCompare).write(node, message);
  const std::string bytes = message.SerializeAsString();
  return str_cat(bytes.size(), " ", crc32c(std::as_bytes(std::span(bytes))));
}

Dataset parse_dataset(const std::string& bytes) {
  proto::Dataset message;
  if (!message.ParseFromString(bytes)) {
    throw data_loss("dataset: ", bytes.size(), " bytes that are not a dataset (damaged or cut short)");
  }
  if (message.version() != kDatasetVersion) {
    throw failed_precondition("dataset: format version ", message.version(), ", but this Muster reads version ",
                              kDatasetVersion);
  }
  return read(message, 1);
}

}  // namespace muster

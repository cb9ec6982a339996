#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "muster/base/status.h"
#include "muster/data/dataset.pb.h"
#include "muster/data/dataset_node.h"
#include "muster/data/serialize_files.h"
#include "muster/graph/checker.h"
#include "muster/graph/serialize.h"
#include "muster/runtime/tensors.h"

namespace muster {
namespace {

constexpr int kMostDimensions = 64;
constexpr int kMostTensors = 10'000;  // of one element
constexpr int kMostMappers = 1024;    // threads
// Protobuf's, and some room for what is around the tensors.
constexpr uint64_t kMostBytes = static_cast<uint64_t>(std::numeric_limits<int>::max()) - (16 << 20);

// Writes a description into a message, counting what it weighs.
class Writer {
 public:
  void write(const DatasetNode& node, proto::Dataset& out) {
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
  }

 private:
  void add_bytes(const char* op, size_t bytes) {
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
    const std::shared_ptr<const ElementProgram> traced = node.program();
    if (!traced) return;
    *function.mutable_program() = muster::serialize(traced->program);
    add_bytes(op.name(), function.program().size());
    for (const bool compact : traced->compact) function.add_compact(compact);
    function.set_threads(op.threads);
  }

  void write_tensors(const char* op, const std::vector<at::Tensor>& tensors, proto::Dataset::Tensors& out) {
    PlainTensors plain;
    for (const at::Tensor& tensor : tensors) write_tensor(op, tensor, *out.add_tensors());
  }

  void write_tensor(const char* op, const at::Tensor& tensor, proto::Dataset::Tensor& out) {
    add_bytes(op, tensor.nbytes());
    const at::Tensor whole = tensor.to(at::kCPU).contiguous().resolve_conj().resolve_neg();
    const TensorSpec spec = spec_of(whole);
    out.mutable_spec()->set_dtype(static_cast<int>(spec.dtype));
    out.mutable_spec()->mutable_sizes()->Add(spec.sizes.begin(), spec.sizes.end());
    if (whole.nbytes() > 0) out.set_data(whole.const_data_ptr(), whole.nbytes());
  }

  void write_step(const PreprocessOp& op, proto::Dataset& out) {
    PlainTensors plain;
    const Preprocessing::State state = op.how->state();
    out.mutable_preprocess()->set_column(op.column);
    out.mutable_preprocess()->set_kind(state.kind);
    for (const auto& [name, column] : state.values) {
      proto::Dataset::Column& written = *out.mutable_preprocess()->add_values();
      written.set_name(name);
      if (!column.holds_strings()) {
        write_tensor("preprocess", column.tensor(), *written.mutable_tensor());
        continue;
      }
      const Strings& strings = column.strings();
      add_bytes("preprocess", strings.bytes());
      written.mutable_strings()->mutable_sizes()->Add(strings.sizes().begin(), strings.sizes().end());
      for (size_t i = 0; i < strings.count(); ++i) written.mutable_strings()->add_values(std::string(strings[i]));
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
  [[noreturn]] void write_step(const GeneratorOp&, proto::Dataset&) {
    throw invalid_argument(
        "generator: a C++ function cannot be serialized; open the dataset in the process that made it (Dataset::open), "
        "or describe its elements with tensors or range and map");
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
  void write_step(const PrefetchOp& op, proto::Dataset& out) { out.set_prefetch(op.count); }
  void write_step(const CacheOp&, proto::Dataset& out) { out.set_cache(true); }
  void write_step(const ShardHintOp&, proto::Dataset& out) { out.set_shard_hint(true); }
  void write_step(const ConcatenateOp&, proto::Dataset& out) { out.set_concatenate(true); }

  uint64_t bytes_ = 0;
};

at::Tensor read_tensor(const proto::Dataset::Tensor& in) {
  const std::optional<DType> dtype = dtype_from_number(in.spec().dtype());
  if (!dtype || in.spec().sizes_size() > kMostDimensions) {
    throw invalid_argument("dataset: a tensor of the element type ", in.spec().dtype(), " with ",
                           in.spec().sizes_size(), " dimensions, expected a known type and at most ", kMostDimensions);
  }
  TensorSpec spec{*dtype, {in.spec().sizes().begin(), in.spec().sizes().end()}};
  // As if no dimension were 0: libtorch multiplies them all for the strides.
  int64_t most = bytes_per_element(*dtype);
  for (const int64_t size : spec.sizes) {
    if (size < 0 || (size > 0 && most > std::numeric_limits<int64_t>::max() / size)) {
      throw invalid_argument("dataset: a tensor that has ", size, " elements in one dimension");
    }
    most *= std::max<int64_t>(size, 1);
  }
  if (spec.bytes() != static_cast<int64_t>(in.data().size())) {
    throw invalid_argument("dataset: ", in.data().size(), " bytes for ", spec.to_string(), ", expected ", spec.bytes());
  }
  PlainTensors plain;
  at::Tensor tensor = at::empty(spec.sizes, at::TensorOptions(scalar_type_of(spec.dtype)));
  if (tensor.nbytes() > 0) std::memcpy(tensor.mutable_data_ptr(), in.data().data(), in.data().size());
  return tensor;
}

std::vector<at::Tensor> read_tensors(const proto::Dataset::Tensors& in) {
  if (in.tensors_size() > kMostTensors) {
    throw invalid_argument("dataset: elements of ", in.tensors_size(), " tensors, expected at most ", kMostTensors);
  }
  std::vector<at::Tensor> tensors;
  for (const auto& tensor : in.tensors()) tensors.push_back(read_tensor(tensor));
  return tensors;
}

Dataset read_function(bool filters, const proto::Dataset::Function& in, const Dataset& input) {
  FunctionOp op{.filters = filters, .threads = std::clamp(in.threads(), 1, kMostMappers)};
  if (!in.program().empty()) {
    ElementProgram traced{.program = parse_program(in.program())};
    check(traced.program);
    traced.compact.assign(in.compact().begin(), in.compact().end());
    const size_t outputs = traced.program.outputs.size();
    if (traced.compact.size() != traced.program.arguments.size() || outputs == 0 || (filters && outputs != 1)) {
      throw invalid_argument("dataset: a ", op.name(), " whose program takes ", traced.program.arguments.size(),
                             " tensors, of which it describes ", traced.compact.size(), ", and returns ", outputs);
    }
    op.got = std::make_shared<const ElementProgram>(std::move(traced));
  }
  return Dataset(std::make_shared<const DatasetNode>(std::move(op), DatasetNode::Inputs{input.node()}));
}

Column read_column(const proto::Dataset::Column& in) {
  if (!in.has_strings()) return read_tensor(in.tensor());
  Strings strings;
  for (const std::string& value : in.strings().values()) strings.append(value);
  for (const int64_t size : in.strings().sizes()) {
    if (size < 0) throw invalid_argument("dataset: strings of a size of ", size);
  }
  strings.shape({in.strings().sizes().begin(), in.strings().sizes().end()});
  return strings;
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
                              kind == Kind::kImageFolder;
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
    case Kind::kZip: return Dataset::zip(read_inputs);
    case Kind::kPrefetch: return input().prefetch(in.prefetch());
    case Kind::kCache: return input().cache();
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
  Writer().write(*node_, message);
  message.set_version(kDatasetVersion);
  return message.SerializeAsString();
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

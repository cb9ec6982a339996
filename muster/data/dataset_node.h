// What a Dataset is made of.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <variant>

#include "muster/data/dataset.h"

namespace muster {

// A traced function and what it needs besides its program.
struct ElementProgram {
  Program program{};
  std::vector<bool> compact{};         // as TracedProgram::compact
  std::shared_ptr<const void> kept{};  // the variables that it uses
};

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
struct DigitsOp {
  int64_t count;
  uint64_t seed;
};
struct FunctionOp {
  bool filters;                                 // else maps
  ElementFunction function{};                   // made here;
  std::shared_ptr<const ElementProgram> got{};  // or parsed: null if its maker had no element to trace it on
  const char* name() const { return filters ? "filter" : "map"; }
};
struct BatchOp {
  int64_t size;
  bool drop_remainder;
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
};
struct ZipOp {};
struct PrefetchOp {
  int64_t count;
};
struct CacheOp {};

using DatasetOp = std::variant<RangeOp, SlicesOp, WholeOp, GeneratorOp, DigitsOp, FunctionOp, BatchOp, ShuffleOp,
                               RepeatOp, TakeOp, SkipOp, ShardOp, ZipOp, PrefetchOp, CacheOp>;

// One step of a description and the steps before it. Immutable but for what it remembers; thread-safe.
class DatasetNode {
 public:
  using Inputs = std::vector<std::shared_ptr<const DatasetNode>>;

  // How large a description may be: whoever walks it calls itself, and a dataset that is zipped with itself doubles.
  static constexpr int kDeepest = 64;
  static constexpr int64_t kMostNodes = 10'000;

  // Throws Error{kInvalidArgument} over a limit.
  DatasetNode(DatasetOp op, Inputs inputs);

  const DatasetOp& op() const { return op_; }
  const Inputs& inputs() const { return inputs_; }
  const DatasetNode& input() const { return *inputs_.front(); }

  // The first element, as the local worker makes it. Shuffles and filters are left out: what they give looks like what
  // they take, and a filter may wait for ever for one that it lets through.
  std::optional<Element> example() const;
  std::vector<TensorSpec> element_spec() const ABSL_LOCKS_EXCLUDED(mu_);
  // REQUIRES: the op is a FunctionOp. Null if there is no element to trace it on.
  std::shared_ptr<const ElementProgram> program() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const DatasetOp op_;
  const Inputs inputs_;
  int depth_ = 1;
  int64_t nodes_ = 1;

  mutable absl::Mutex mu_;
  mutable std::optional<std::vector<TensorSpec>> spec_ ABSL_GUARDED_BY(mu_);
  mutable std::shared_ptr<const ElementProgram> program_ ABSL_GUARDED_BY(mu_);
};

// "float32[784], int64[]"
std::string describe(const std::vector<TensorSpec>& specs);
std::vector<TensorSpec> specs_of(const Element& element);

}  // namespace muster

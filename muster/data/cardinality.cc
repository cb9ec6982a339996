#include "muster/data/cardinality.h"

#include <algorithm>
#include <limits>

#include "muster/data/dataset_node.h"

namespace muster {
namespace {

constexpr Cardinality kUnknown, kInfinite{.infinite = true};

// Unknown if it is more than an int64 holds.
Cardinality counted(uint64_t count) {
  if (count > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return kUnknown;
  return {.count = static_cast<int64_t>(count)};
}

int64_t rounded_up(int64_t dividend, int64_t divisor) { return dividend / divisor + (dividend % divisor > 0 ? 1 : 0); }

Cardinality sum_of_counts(const Cardinality& a, const Cardinality& b) {
  if (a.infinite || b.infinite) return kInfinite;
  int64_t sum = 0;
  if (!a.count || !b.count || __builtin_add_overflow(*a.count, *b.count, &sum)) return kUnknown;
  return {.count = sum};
}

// The shorter of both. What nobody knows may be the shorter one, but not shorter than nothing.
Cardinality least_of(const Cardinality& a, const Cardinality& b) {
  if (a.infinite) return b;
  if (b.infinite) return a;
  if (a.count && b.count) return {.count = std::min(*a.count, *b.count)};
  return a.count == 0 || b.count == 0 ? Cardinality{.count = 0} : kUnknown;
}

Cardinality repeated(const Cardinality& round, std::optional<int64_t> rounds) {
  if (rounds == 0 || round.count == 0) return {.count = 0};
  if (!rounds || round.infinite) return kInfinite;
  int64_t all = 0;
  if (!round.count || __builtin_mul_overflow(*round.count, *rounds, &all)) return kUnknown;
  return {.count = all};
}

Cardinality cardinality_of_node(const DatasetNode& node);

Cardinality of_all(const DatasetNode& node, Cardinality first,
                   Cardinality (*together)(const Cardinality&, const Cardinality&)) {
  for (const auto& input : node.inputs()) first = together(first, cardinality_of_node(*input));
  return first;
}

// What a step makes of so many elements.
struct CountAfter {
  const DatasetNode& node;

  Cardinality input() const { return cardinality_of_node(node.input()); }
  // Of a count that is known; else it stays as it is.
  template <class Change>
  Cardinality changed(const Change& change) const {
    const Cardinality before = input();
    return before.count ? Cardinality{.count = change(*before.count)} : before;
  }
  Cardinality batches(int64_t size, bool drop_remainder) const {
    return changed([&](int64_t count) { return drop_remainder ? count / size : rounded_up(count, size); });
  }
  // Nobody knows how many: none, perhaps, but for those that never end.
  Cardinality unforeseen() const { return input().infinite ? kInfinite : kUnknown; }

  Cardinality operator()(const RangeOp& op) const { return counted(op.count()); }
  Cardinality operator()(const SlicesOp& op) const { return {.count = op.tensors[0].size(0)}; }
  Cardinality operator()(const WholeOp&) const { return {.count = 1}; }
  Cardinality operator()(const DigitsOp& op) const { return {.count = op.count}; }
  Cardinality operator()(const GeneratorOp&) const { return kUnknown; }
  Cardinality operator()(const FilesOp&) const { return kUnknown; }
  Cardinality operator()(const NumpyOp&) const { return kUnknown; }  // it is read where it is opened
  Cardinality operator()(const ImageFolderOp&) const { return kUnknown; }
  Cardinality operator()(const RegisteredOp&) const { return node.inputs().empty() ? kUnknown : input(); }
  Cardinality operator()(const NativeMapOp&) const { return input(); }
  Cardinality operator()(const DecodeImagesOp&) const { return input(); }
  Cardinality operator()(const ParseOp& op) const { return op.ignore_errors ? unforeseen() : input(); }
  Cardinality operator()(const PreprocessOp&) const { return input(); }
  Cardinality operator()(const SelectOp&) const { return input(); }
  Cardinality operator()(const ConcatenateOp&) const { return of_all(node, {.count = 0}, sum_of_counts); }
  Cardinality operator()(const SampleOp& op) const {
    Cardinality all{.count = 0};
    for (size_t i = 0; i < node.inputs().size(); ++i) {
      if (op.weights[i] > 0) all = sum_of_counts(all, cardinality_of_node(*node.inputs()[i]));
    }
    return all;
  }
  Cardinality operator()(const FunctionOp& op) const { return op.filters ? unforeseen() : input(); }
  Cardinality operator()(const BatchOp& op) const { return batches(op.size, op.drop_remainder); }
  Cardinality operator()(const PaddedBatchOp& op) const { return batches(op.size, op.drop_remainder); }
  Cardinality operator()(const BucketOp&) const { return unforeseen(); }
  Cardinality operator()(const UnbatchOp&) const { return unforeseen(); }
  Cardinality operator()(const EnumerateOp&) const { return input(); }
  Cardinality operator()(const WindowOp& op) const {
    return changed([&](int64_t count) {
      if (!op.drop_remainder) return rounded_up(count, op.shift);
      return count < op.size ? 0 : (count - op.size) / op.shift + 1;
    });
  }
  Cardinality operator()(const ShuffleOp&) const { return input(); }
  Cardinality operator()(const RepeatOp& op) const { return repeated(input(), op.count); }
  Cardinality operator()(const TakeOp& op) const { return least_of(input(), {.count = op.count}); }
  Cardinality operator()(const SkipOp& op) const {
    return changed([&](int64_t count) { return std::max<int64_t>(0, count - op.count); });
  }
  Cardinality operator()(const ShardOp& op) const {
    return changed([&](int64_t count) { return rounded_up(std::max<int64_t>(0, count - op.index), op.shards); });
  }
  Cardinality operator()(const ShardHintOp&) const { return input(); }
  Cardinality operator()(const HandOutOp&) const { return input(); }
  Cardinality operator()(const FromOp&) const { return unforeseen(); }
  Cardinality operator()(const ZipOp&) const { return of_all(node, kInfinite, least_of); }
  Cardinality operator()(const PrefetchOp&) const { return input(); }
  Cardinality operator()(const CacheOp&) const { return input(); }
};

Cardinality cardinality_of_node(const DatasetNode& node) { return std::visit(CountAfter{node}, node.op()); }

}  // namespace

Cardinality cardinality_of(const Dataset& dataset) { return cardinality_of_node(*dataset.node()); }

}  // namespace muster

// Reads batches of TensorFlow's records, tf.train.Example and SequenceExample, without protobuf and without TensorFlow.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "muster/data/column.h"

namespace muster {

// What an example is expected to have under one name, and the columns that it becomes:
// {.name = "c", .kind = ExampleFeature::Kind::kFixed, .type = ExampleFeature::Type::kInt64, .shape = {26}}
struct ExampleFeature {
  enum class Kind {
    // Exactly as many values as `shape` has elements. Column: name [batch, shape...].
    kFixed,
    // Any number of rows of `shape`, those of an example that does not have it: none.
    // Columns: name [batch, longest, shape...], filled up with `padding`; name + "/length", the rows, int64 [batch].
    kPadded,
    // Any number of values, as torch::nn::EmbeddingBag takes them. Columns: name, the values of all examples after each
    // other [total]; name + "/offsets", where each example begins, int64 [batch]; with `weights` also
    // name + "/weights", float32 [total].
    kSparse,
  };
  enum class Type { kFloat, kInt64, kString };  // of a FloatList, an Int64List, a BytesList

  std::string name;
  Kind kind;
  Type type;
  std::vector<int64_t> shape{};  // each at least 1; empty: one value
  // kFixed: the values where an example does not have it, as many as the shape has or one for all. Without: an error.
  std::optional<std::variant<std::vector<float>, std::vector<int64_t>, std::vector<std::string>>> otherwise{};
  // kPadded: of the feature's type. Without: 0 or "".
  std::optional<std::variant<float, int64_t, std::string>> padding{};
  std::optional<int64_t> most{};         // kPadded: rows after so many are left out
  std::optional<std::string> weights{};  // kSparse: the name of the FloatList that has a weight for each value
  // Among the feature lists of a SequenceExample in place of its context; then kPadded. A row is one step, a Feature.
  bool sequence = false;
};

// For Dataset::parse: as many values in each example, `int64s(26)`, or one, `floats()`.
template <class... Sizes>
ExampleFeature fixed_feature(ExampleFeature::Type type, Sizes... sizes) {
  return {.name = "", .kind = ExampleFeature::Kind::kFixed, .type = type, .shape = {static_cast<int64_t>(sizes)...}};
}
template <std::integral... Sizes>
ExampleFeature floats(Sizes... sizes) {
  return fixed_feature(ExampleFeature::Type::kFloat, sizes...);
}
template <std::integral... Sizes>
ExampleFeature int64s(Sizes... sizes) {
  return fixed_feature(ExampleFeature::Type::kInt64, sizes...);
}
template <std::integral... Sizes>
ExampleFeature strings(Sizes... sizes) {
  return fixed_feature(ExampleFeature::Type::kString, sizes...);
}

// Parses serialized examples. Whether they are Examples or SequenceExamples need not be said: their features stand at
// the same place, and an Example has no feature lists.
// What protobuf does with odd bytes holds here too: unknown fields are skipped, of a name that comes twice the last
// wins, lists may be packed or not, and a list of a Feature that comes in pieces is put together. Two differences: a
// map entry with two values has the last one, and groups are an error. A Feature without any list is as if absent.
// Immutable, hence thread-safe.
class ExampleParser {
 public:
  // A padded column larger than this is an error: one long record makes a batch of long rows. See ExampleFeature::most.
  static constexpr int64_t kMaxPaddedBytes = int64_t{1} << 32;

  // Throws Error{kInvalidArgument}: no features, no name, a column twice, a shape, default or padding that does not
  // fit, or a setting that the feature's kind does not have.
  explicit ExampleParser(std::vector<ExampleFeature> features);

  // Of the columns that parse() answers with, in that order.
  std::vector<std::string> names() const;

  // `where` names a record of the batch in errors: "file \"a\": record 17"; without, its number in the batch does.
  // Throws Error{kDataLoss} for bytes that are no example, {kInvalidArgument} for an example that does not have what
  // is expected, {kResourceExhausted} for a column that is too large.
  Columns parse(std::span<const std::string_view> records, const std::function<std::string(size_t)>& where = {}) const;

 private:
  class Batch;

  // A place for what a record has under a name, for each name that is looked for.
  struct NameHash : std::hash<std::string_view> {
    using is_transparent = void;  // a view is looked up without a copy
  };
  using Slots = std::unordered_map<std::string, size_t, NameHash, std::equal_to<>>;
  struct Wanted {
    ExampleFeature feature;
    size_t elements;  // of the shape
    size_t slot;
    std::optional<size_t> weights_slot;
  };

  size_t slot_of(const std::string& name, bool sequence);

  std::vector<Wanted> wanted_;
  Slots context_, sequence_;
};

}  // namespace muster

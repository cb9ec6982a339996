#include "muster/data/files/example_parser.h"

#include <ATen/ops/empty.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <type_traits>
#include <utility>

#include "muster/base/status.h"
#include "muster/data/files/example_bytes.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace example_internal {  // with a name: a member of Batch has such a type

static_assert(std::endian::native == std::endian::little, "packed floats are little-endian, and are not converted");

constexpr uint32_t kBytesList = 1, kFloatList = 2, kInt64List = 3;  // in a Feature
constexpr uint64_t kVarintHighBits = 0x8080808080808080;

// How many numbers there are. None is looked at, so each may still turn out too long.
size_t count_varints(ExampleBytes packed) {
  if (!packed.empty() && packed.end[-1] >= 0x80) throw MalformedExample{"it ends within a number"};
  size_t count = 0;
  for (; packed.size() >= 8; packed.at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, packed.at, sizeof(word));
    count += static_cast<size_t>(std::popcount(~word & kVarintHighBits));
  }
  for (; !packed.empty(); ++packed.at) count += *packed.at < 0x80;
  return count;
}

// Eight bytes at a time: the first one without its high bit ends the number, and the 7 bits of each byte are pushed
// together in three steps. No branch depends on the length of a number, which the processor cannot foresee.
int64_t* take_varints(ExampleBytes& packed, int64_t* out, const int64_t* stop) {
  while (out != stop && packed.size() >= 8) {
    uint64_t word = 0;
    std::memcpy(&word, packed.at, sizeof(word));
    const uint64_t ends = ~word & kVarintHighBits;
    if (ends == 0) {
      *out++ = static_cast<int64_t>(packed.long_varint());
      continue;
    }
    word &= (ends ^ (ends - 1)) & ~kVarintHighBits;
    word = (word & 0x007f007f007f007f) | (word & 0x7f007f007f007f00) >> 1;
    word = (word & 0x00003fff00003fff) | (word & 0x3fff00003fff0000) >> 2;
    word = (word & 0x000000000fffffff) | (word & 0x0fffffff00000000) >> 4;
    *out++ = static_cast<int64_t>(word);
    packed.at += std::countr_zero(ends) / 8 + 1;
  }
  while (out != stop && !packed.empty()) *out++ = static_cast<int64_t>(packed.varint());
  return out;
}

// The values of a Feature, which is a oneof: of several lists those of the last kind that came count.
struct FeatureLists {
  uint32_t number = 0;  // kBytesList, …; 0: it has none
  bool whole = true;    // `bytes` is the list; else a part of the Feature, whose fields of this number are pieces of it
  ExampleBytes bytes{};
};

FeatureLists lists_of(ExampleBytes feature) {
  FeatureLists lists;
  const uint8_t* first = nullptr;
  while (!feature.empty()) {
    const uint8_t* const begin = feature.at;
    const uint32_t tag = feature.tag(), number = tag >> 3;
    if ((tag & 7) != ExampleBytes::kPiece || number > kInt64List) {
      feature.skip(tag);
    } else if (const ExampleBytes list = feature.piece(); number != lists.number) {
      lists = {number, true, list};
      first = begin;
    } else {
      lists.whole = false;
    }
  }
  if (!lists.whole) lists.bytes = {first, feature.end};
  return lists;
}

template <class Field>
void each_value_field(const FeatureLists& lists, const Field& field) {
  if (lists.whole) return each_example_field(lists.bytes, field);
  each_example_field(lists.bytes, [&](ExampleBytes& feature, uint32_t tag) {
    if (tag != ExampleBytes::tag_of(lists.number, ExampleBytes::kPiece)) return false;
    each_example_field(feature.piece(), field);
    return true;
  });
}

// The columns, which are filled from the first value to the last. take() writes the values of a list, at most `room`
// of them, and answers how many the list has.
template <class T>
class ExampleNumbers {
 public:
  using Value = T;
  static constexpr bool kFloats = std::is_same_v<T, float>;
  static constexpr uint32_t kList = kFloats ? kFloatList : kInt64List;
  static constexpr size_t kValueBytes = sizeof(T);

  ExampleNumbers(const std::vector<int64_t>& sizes, size_t /*values*/, size_t /*bytes*/)
      : tensor_(at::empty(sizes, kFloats ? at::kFloat : at::kLong)), at_(tensor_.mutable_data_ptr<T>()) {}

  static size_t count(const FeatureLists& lists) {
    T* nowhere = nullptr;
    return read(lists, nowhere, 0);
  }
  size_t take(const FeatureLists& lists, size_t room) { return read(lists, at_, room); }
  void fill(const T& value, size_t times) { at_ = std::fill_n(at_, times, value); }
  Column finish() { return tensor_; }

 private:
  static size_t read(const FeatureLists& lists, T*& out, size_t room) {
    constexpr uint32_t kOne = ExampleBytes::tag_of(1, kFloats ? ExampleBytes::kFixed32 : ExampleBytes::kVarint);
    size_t count = 0;
    const T* const stop = out + room;
    each_value_field(lists, [&](ExampleBytes& list, uint32_t tag) {
      if (tag != kValuePiece && tag != kOne) return false;
      if constexpr (kFloats) {
        const ExampleBytes packed = tag == kValuePiece ? list.piece() : list.take(sizeof(T));
        if (packed.size() % sizeof(T) != 0) throw MalformedExample{"packed floats end within one"};
        const size_t copied = std::min(packed.size() / sizeof(T), static_cast<size_t>(stop - out));
        if (copied > 0) std::memcpy(out, packed.at, copied * sizeof(T));
        out += copied;
        count += packed.size() / sizeof(T);
      } else if (tag == kValuePiece) {
        ExampleBytes packed = list.piece();
        T* const begin = std::exchange(out, take_varints(packed, out, stop));
        count += static_cast<size_t>(out - begin) + count_varints(packed);
      } else {
        const uint64_t value = list.varint();
        if (out != stop) *out++ = static_cast<T>(value);
        ++count;
      }
      return true;
    });
    return count;
  }

  at::Tensor tensor_;
  T* at_;
};

class ExampleStrings {
 public:
  using Value = std::string;
  static constexpr uint32_t kList = kBytesList;
  static constexpr size_t kValueBytes = sizeof(size_t);

  ExampleStrings(std::vector<int64_t> sizes, size_t values, size_t bytes) : sizes_(std::move(sizes)) {
    strings_.reserve(values, bytes);
  }

  static size_t count(const FeatureLists& lists) { return read(lists, nullptr, 0); }
  size_t take(const FeatureLists& lists, size_t room) { return read(lists, &strings_, room); }
  void fill(const std::string& value, size_t times) {
    for (size_t i = 0; i < times; ++i) strings_.append(value);
  }
  Column finish() {
    strings_.shape(std::move(sizes_));
    return std::move(strings_);
  }

 private:
  static size_t read(const FeatureLists& lists, Strings* out, size_t room) {
    size_t count = 0;
    each_value_field(lists, [&](ExampleBytes& list, uint32_t tag) {
      if (tag != kValuePiece) return false;
      const ExampleBytes value = list.piece();
      if (count++ < room) out->append(value.text());
      return true;
    });
    return count;
  }

  std::vector<int64_t> sizes_;
  Strings strings_;
};

const char* example_list_name(uint32_t number) {
  constexpr const char* kNames[] = {"nothing", "strings", "floats", "int64s"};
  return kNames[number];
}

// [batch, shape...] or [batch, rows, shape...]
std::vector<int64_t> example_sizes(size_t batch, std::optional<size_t> rows, const std::vector<int64_t>& shape) {
  std::vector<int64_t> sizes{static_cast<int64_t>(batch)};
  if (rows) sizes.push_back(static_cast<int64_t>(*rows));
  sizes.insert(sizes.end(), shape.begin(), shape.end());
  return sizes;
}

// Throws unless the settings fit each other; answers with the elements of the shape.
size_t checked_example_elements(const ExampleFeature& feature) {
  using Kind = ExampleFeature::Kind;
  const auto refuse = [&](const auto&... why) {
    return invalid_argument("example feature \"", feature.name, "\": ", why...);
  };
  if (feature.name.empty() || feature.weights == "") throw refuse("it or its weights have no name");
  int64_t elements = 1;
  for (const int64_t size : feature.shape) {
    if (size < 1 || __builtin_mul_overflow(elements, size, &elements) ||
        elements > std::numeric_limits<int64_t>::max() / 8) {
      throw refuse("shape [", absl::StrJoin(feature.shape, ", "), "], expected positive sizes that memory could hold");
    }
  }
  if (feature.kind == Kind::kSparse && !feature.shape.empty()) throw refuse("a sparse feature has no shape");
  if (feature.sequence && feature.kind != Kind::kPadded) throw refuse("a feature of a sequence has to be padded");

  const auto type = static_cast<size_t>(feature.type);  // which is also its place among the variants
  if (feature.otherwise) {
    if (feature.kind != Kind::kFixed) throw refuse("only a fixed feature has values for examples without it");
    if (feature.otherwise->index() != type) throw refuse("the values for examples without it are not of its type");
    const size_t values = std::visit([](const auto& values) { return values.size(); }, *feature.otherwise);
    if (values != 1 && values != static_cast<size_t>(elements)) {
      throw refuse(values, " values for examples without it, expected 1 or the ", elements, " of its shape");
    }
  }
  if ((feature.padding || feature.most) && feature.kind != Kind::kPadded) {
    throw refuse("only a padded feature has a padding or a limit of rows");
  }
  if (feature.padding && feature.padding->index() != type) throw refuse("the padding is not of its type");
  if (feature.most && *feature.most < 1) throw refuse("at most ", *feature.most, " rows, expected at least 1");
  if (feature.weights && feature.kind != Kind::kSparse) throw refuse("only a sparse feature has weights");
  return static_cast<size_t>(elements);
}

}  // namespace example_internal

using namespace example_internal;

// One call of parse(). First finds in each record where the values under each name are, then fills column by column.
class ExampleParser::Batch {
 public:
  Batch(const ExampleParser& parser, std::span<const std::string_view> records,
        const std::function<std::string(size_t)>& where)
      : parser_(parser),
        records_(records),
        where_(where),
        found_((parser.context_.size() + parser.sequence_.size()) * records.size()) {}

  Columns parse() {
    Columns columns;
    try {
      for (record_ = 0; record_ < records_.size(); ++record_) find_values();
      for (const Wanted& wanted : parser_.wanted_) {
        feature_ = &wanted.feature;
        switch (wanted.feature.type) {
          using Type = ExampleFeature::Type;
          case Type::kFloat: add<ExampleNumbers<float>>(wanted, columns); break;
          case Type::kInt64: add<ExampleNumbers<int64_t>>(wanted, columns); break;
          case Type::kString: add<ExampleStrings>(wanted, columns); break;
        }
      }
    } catch (const MalformedExample& error) {
      throw data_loss(place(), ": not the bytes of an example: ", error.what);
    }
    return columns;
  }

 private:
  using Kind = ExampleFeature::Kind;
  static constexpr size_t kUnwanted = std::numeric_limits<size_t>::max();

  // The records of a file mostly have their features in one order: what stood at a place in the record before is
  // looked at first, before the name is hashed.
  struct Seen {
    std::string_view name;
    size_t slot;
  };

  void find_values() {
    const std::string_view record = records_[record_];
    const auto* const begin = reinterpret_cast<const uint8_t*>(record.data());
    size_t context_place = 0, sequence_place = 0;
    each_example_field({begin, begin + record.size()}, [&](ExampleBytes& example, uint32_t tag) {
      if (tag == kValuePiece) {
        find_entries(example.piece(), parser_.context_, context_seen_, context_place);
      } else if (tag == kSecondPiece && !parser_.sequence_.empty()) {
        find_entries(example.piece(), parser_.sequence_, sequence_seen_, sequence_place);
      } else {
        return false;
      }
      return true;
    });
  }

  void find_entries(ExampleBytes map, const Slots& slots, std::vector<Seen>& seen, size_t& place) {
    each_example_field(map, [&](ExampleBytes& entries, uint32_t tag) {
      if (tag != kValuePiece) return false;
      const ExampleBytes entry = entries.piece();
      ExampleBytes name, value{entry.end, entry.end};
      each_example_field(entry, [&](ExampleBytes& bytes, uint32_t part) {
        if (part != kValuePiece && part != kSecondPiece) return false;
        (part == kValuePiece ? name : value) = bytes.piece();
        return true;
      });
      const size_t slot = slot_at(place++, name.text(), slots, seen);
      if (slot != kUnwanted) found_[slot * records_.size() + record_] = value;
      return true;
    });
  }

  static size_t slot_at(size_t place, std::string_view name, const Slots& slots, std::vector<Seen>& seen) {
    if (place == seen.size()) seen.push_back({{}, kUnwanted});
    if (seen[place].name != name) {
      const auto it = slots.find(name);
      seen[place] = {name, it == slots.end() ? kUnwanted : it->second};
    }
    return seen[place].slot;
  }

  template <class Out>
  void add(const Wanted& wanted, Columns& columns) {
    switch (wanted.feature.kind) {
      case Kind::kFixed: return add_fixed<Out>(wanted, columns);
      case Kind::kPadded: return add_padded<Out>(wanted, columns);
      case Kind::kSparse: return add_sparse<Out>(wanted, columns);
    }
  }

  template <class Out>
  void add_fixed(const Wanted& wanted, Columns& columns) {
    size_t total = 0;
    if (__builtin_mul_overflow(wanted.elements, records_.size(), &total) ||
        total > std::numeric_limits<int64_t>::max() / Out::kValueBytes) {
      throw resource_exhausted("example feature \"", feature_->name, "\": ", records_.size(), " records of ",
                               wanted.elements, " values are more than memory could hold");
    }
    Out out(example_sizes(records_.size(), {}, feature_->shape), total, bytes_of<Out>(wanted.slot));
    for (record_ = 0; record_ < records_.size(); ++record_) {
      const FeatureLists lists = lists_at<Out>(wanted.slot, feature_->name);
      if (lists.number != 0) {
        if (const size_t count = out.take(lists, wanted.elements); count != wanted.elements) {
          throw invalid_argument(place(), ": ", count, " values, expected ", wanted.elements);
        }
      } else if (!feature_->otherwise) {
        throw invalid_argument(place(), ": the example does not have it, expected ", wanted.elements, " ",
                               example_list_name(Out::kList), "; it has ", names_there());
      } else {
        const auto& values = std::get<std::vector<typename Out::Value>>(*feature_->otherwise);
        for (const auto& value : values) out.fill(value, values.size() == 1 ? wanted.elements : 1);
      }
    }
    columns.push_back(out.finish());
  }

  template <class Out>
  void add_padded(const Wanted& wanted, Columns& columns) {
    const size_t batch = records_.size();
    const size_t most = feature_->most ? static_cast<size_t>(*feature_->most) : std::numeric_limits<size_t>::max();
    const at::Tensor lengths = at::empty({static_cast<int64_t>(batch)}, at::kLong);
    auto* const length = lengths.mutable_data_ptr<int64_t>();
    size_t longest = 0, of_record = 0;
    for (record_ = 0; record_ < batch; ++record_) {
      const size_t rows = std::min(most, feature_->sequence ? steps_of<Out>(wanted) : rows_of<Out>(wanted));
      length[record_] = static_cast<int64_t>(rows);
      if (rows > longest) longest = rows, of_record = record_;
    }

    size_t total = 0, bytes = 0;
    if (__builtin_mul_overflow(longest, batch, &total) || __builtin_mul_overflow(total, wanted.elements, &total) ||
        __builtin_mul_overflow(total, Out::kValueBytes, &bytes) || bytes > size_t{kMaxPaddedBytes}) {
      record_ = of_record;
      throw resource_exhausted(place(), ": padded to the ", longest, " rows of this example, ", batch,
                               " records would take more than ", kMaxPaddedBytes, " bytes; limit the rows with `most`");
    }
    Out out(example_sizes(batch, longest, feature_->shape), total, bytes_of<Out>(wanted.slot));
    typename Out::Value padding{};
    if (feature_->padding) padding = std::get<typename Out::Value>(*feature_->padding);
    for (record_ = 0; record_ < batch; ++record_) {
      const auto rows = static_cast<size_t>(length[record_]);
      if (feature_->sequence) {
        size_t left = rows;
        each_piece(found(wanted.slot), [&](ExampleBytes step) {
          if (left > 0) out.take(lists_of(step), wanted.elements), --left;
        });
      } else {
        out.take(lists_of(found(wanted.slot)), rows * wanted.elements);
      }
      out.fill(padding, (longest - rows) * wanted.elements);
    }
    columns.push_back(out.finish());
    columns.push_back(lengths);
  }

  template <class Out>
  void add_sparse(const Wanted& wanted, Columns& columns) {
    const at::Tensor offsets = at::empty({static_cast<int64_t>(records_.size())}, at::kLong);
    auto* const offset = offsets.mutable_data_ptr<int64_t>();
    size_t total = 0;
    for (record_ = 0; record_ < records_.size(); ++record_) {
      offset[record_] = static_cast<int64_t>(total);
      const size_t values = Out::count(lists_at<Out>(wanted.slot, feature_->name));
      total += values;
      if (!wanted.weights_slot) continue;
      const size_t weights =
          ExampleNumbers<float>::count(lists_at<ExampleNumbers<float>>(*wanted.weights_slot, *feature_->weights));
      if (weights != values) {
        throw invalid_argument(place(), ": ", values, " values, but its weights \"", *feature_->weights, "\" are ",
                               weights);
      }
    }
    columns.push_back(all_values<Out>(wanted.slot, total));
    columns.push_back(offsets);
    if (wanted.weights_slot) columns.push_back(all_values<ExampleNumbers<float>>(*wanted.weights_slot, total));
  }

  template <class Out>
  Column all_values(size_t slot, size_t total) {
    Out out({static_cast<int64_t>(total)}, total, bytes_of<Out>(slot));
    size_t left = total;
    for (record_ = 0; record_ < records_.size(); ++record_) left -= out.take(lists_of(found(slot)), left);
    return out.finish();
  }

  template <class Out>
  size_t rows_of(const Wanted& wanted) {
    const size_t values = Out::count(lists_at<Out>(wanted.slot, feature_->name));
    if (values % wanted.elements != 0) {
      throw invalid_argument(place(), ": ", values, " values, expected rows of ", wanted.elements);
    }
    return values / wanted.elements;
  }

  template <class Out>
  size_t steps_of(const Wanted& wanted) {
    size_t steps = 0;
    each_piece(found(wanted.slot), [&](ExampleBytes step) {
      const FeatureLists lists = lists_of(step);
      if (lists.number != 0 && lists.number != Out::kList) {
        throw invalid_argument(place(), ": step ", steps, " has ", example_list_name(lists.number), ", expected ",
                               example_list_name(Out::kList));
      }
      if (const size_t values = Out::count(lists); values != wanted.elements) {
        throw invalid_argument(place(), ": step ", steps, " has ", values, " values, expected ", wanted.elements);
      }
      ++steps;
    });
    return steps;
  }

  template <class Each>
  static void each_piece(ExampleBytes list, const Each& use) {
    each_example_field(list, [&](ExampleBytes& pieces, uint32_t tag) {
      if (tag != kValuePiece) return false;
      use(pieces.piece());
      return true;
    });
  }

  // Of the features of this record, for a message.
  std::string names_there() const {
    constexpr size_t kMost = 20;
    std::vector<std::string> names;
    const std::string_view record = records_[record_];
    const auto* const begin = reinterpret_cast<const uint8_t*>(record.data());
    each_piece({begin, begin + record.size()}, [&](ExampleBytes map) {
      each_piece(map, [&](ExampleBytes entry) {
        each_piece(entry, [&](ExampleBytes name) { names.push_back(str_cat("\"", name.text(), "\"")); });
      });
    });
    if (names.empty()) return "none";
    std::sort(names.begin(), names.end());
    const size_t more = names.size() - std::min(names.size(), kMost);
    names.resize(names.size() - more);
    return str_cat(absl::StrJoin(names, ", "), more == 0 ? "" : str_cat(" and ", more, " more"));
  }

  ExampleBytes found(size_t slot) const { return found_[slot * records_.size() + record_]; }

  template <class Out>
  FeatureLists lists_at(size_t slot, const std::string& name) const {
    const FeatureLists lists = lists_of(found(slot));
    if (lists.number != 0 && lists.number != Out::kList) {
      throw invalid_argument(place(), name == feature_->name ? "" : str_cat(": its weights \"", name, "\""), ": ",
                             example_list_name(lists.number), ", expected ", example_list_name(Out::kList));
    }
    return lists;
  }

  // At least as many bytes as the strings of all records have.
  template <class Out>
  size_t bytes_of(size_t slot) const {
    if constexpr (!std::is_same_v<Out, ExampleStrings>) return 0;
    size_t bytes = 0;
    for (size_t i = 0; i < records_.size(); ++i) bytes += found_[slot * records_.size() + i].size();
    return bytes;
  }

  std::string place() const {
    std::string place = where_ ? where_(record_) : str_cat("record ", record_);
    if (feature_ != nullptr) str_append(place, ": feature \"", feature_->name, "\"");
    return place;
  }

  const ExampleParser& parser_;
  const std::span<const std::string_view> records_;
  const std::function<std::string(size_t)>& where_;
  std::vector<ExampleBytes> found_;  // the Feature or FeatureList of each slot and record, slot by slot
  std::vector<Seen> context_seen_, sequence_seen_;
  // What is being read, for errors.
  size_t record_ = 0;
  const ExampleFeature* feature_ = nullptr;
};

ExampleParser::ExampleParser(std::vector<ExampleFeature> features) {
  if (features.empty()) throw invalid_argument("an example parser without features");
  for (ExampleFeature& feature : features) {
    const size_t elements = checked_example_elements(feature);
    const size_t slot = slot_of(feature.name, feature.sequence);
    const auto weights_slot = feature.weights ? std::optional(slot_of(*feature.weights, false)) : std::nullopt;
    wanted_.push_back({std::move(feature), elements, slot, weights_slot});
  }
  std::set<std::string> seen;
  for (const std::string& name : names()) {
    if (!seen.insert(name).second) throw invalid_argument("example features: two columns have the name \"", name, "\"");
  }
}

std::vector<std::string> ExampleParser::names() const {
  std::vector<std::string> names;
  for (const Wanted& wanted : wanted_) {
    const std::string& name = wanted.feature.name;
    names.push_back(name);
    if (wanted.feature.kind == ExampleFeature::Kind::kPadded) names.push_back(name + "/length");
    if (wanted.feature.kind == ExampleFeature::Kind::kSparse) names.push_back(name + "/offsets");
    if (wanted.feature.weights) names.push_back(name + "/weights");
  }
  return names;
}

Columns ExampleParser::parse(std::span<const std::string_view> records,
                             const std::function<std::string(size_t)>& where) const {
  PlainTensors plain;
  return Batch(*this, records, where).parse();
}

size_t ExampleParser::slot_of(const std::string& name, bool sequence) {
  const size_t next = context_.size() + sequence_.size();
  return (sequence ? sequence_ : context_).try_emplace(name, next).first->second;
}

}  // namespace muster

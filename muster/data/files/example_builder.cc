#include "muster/data/files/example_builder.h"

#include <bit>
#include <limits>

#include "muster/base/status.h"

namespace muster {
namespace {

static_assert(std::endian::native == std::endian::little, "packed floats are little-endian, and are not converted");

constexpr uint32_t kBytesListField = 1, kFloatListField = 2, kInt64ListField = 3;  // of a Feature

using NamedMessages = std::map<std::string, std::string, std::less<>>;

void append_varint(std::string& to, uint64_t value) {
  for (; value >= 0x80; value >>= 7) to.push_back(static_cast<char>(value | 0x80));
  to.push_back(static_cast<char>(value));
}

void append_piece(std::string& to, uint32_t number, std::string_view bytes) {
  append_varint(to, number << 3 | 2);
  append_varint(to, bytes.size());
  to.append(bytes);
}

std::string piece_of(uint32_t number, std::string_view bytes) {
  std::string piece;
  append_piece(piece, number, bytes);
  return piece;
}

std::string feature_of(std::span<const float> values) {
  const std::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  return piece_of(kFloatListField, values.empty() ? "" : piece_of(1, bytes));
}

std::string feature_of(std::span<const int64_t> values) {
  std::string packed;
  for (const int64_t value : values) append_varint(packed, static_cast<uint64_t>(value));
  return piece_of(kInt64ListField, values.empty() ? "" : piece_of(1, packed));
}

template <class Texts>
std::string feature_of_strings(const Texts& values) {
  std::string list;
  for (const std::string_view value : values) append_piece(list, 1, value);
  return piece_of(kBytesListField, list);
}

// A map field, as protobuf writes it: one entry of key and value for each. Nothing for none.
void append_messages(std::string& to, uint32_t number, const NamedMessages& messages) {
  if (messages.empty()) return;
  std::string map;
  for (const auto& [name, message] : messages) append_piece(map, 1, piece_of(1, name) + piece_of(2, message));
  append_piece(to, number, map);
}

std::string checked_example(std::string bytes) {
  if (bytes.size() > size_t{std::numeric_limits<int32_t>::max()}) {
    throw invalid_argument("an example of ", bytes.size(), " bytes, protobuf allows ",
                           std::numeric_limits<int32_t>::max());
  }
  return bytes;
}

void put_message(NamedMessages& messages, std::string_view name, std::string message) {
  messages.insert_or_assign(std::string(name), std::move(message));
}

std::string& message_named(NamedMessages& messages, std::string_view name) {
  const auto it = messages.find(name);
  return it != messages.end() ? it->second : messages[std::string(name)];
}

}  // namespace

ExampleBuilder& ExampleBuilder::floats(std::string_view name, std::span<const float> values) {
  put_message(features_, name, feature_of(values));
  return *this;
}

ExampleBuilder& ExampleBuilder::floats(std::string_view name, std::initializer_list<float> values) {
  return floats(name, std::span(values.begin(), values.size()));
}

ExampleBuilder& ExampleBuilder::int64s(std::string_view name, std::span<const int64_t> values) {
  put_message(features_, name, feature_of(values));
  return *this;
}

ExampleBuilder& ExampleBuilder::int64s(std::string_view name, std::initializer_list<int64_t> values) {
  return int64s(name, std::span(values.begin(), values.size()));
}

ExampleBuilder& ExampleBuilder::strings(std::string_view name, std::span<const std::string> values) {
  put_message(features_, name, feature_of_strings(values));
  return *this;
}

ExampleBuilder& ExampleBuilder::strings(std::string_view name, std::initializer_list<std::string_view> values) {
  put_message(features_, name, feature_of_strings(values));
  return *this;
}

ExampleBuilder& ExampleBuilder::bytes(std::string_view name, std::string_view value) { return strings(name, {value}); }

std::string ExampleBuilder::serialize() const {
  std::string bytes;
  append_messages(bytes, 1, features_);
  return checked_example(std::move(bytes));
}

SequenceExampleBuilder& SequenceExampleBuilder::floats(std::string_view name, std::span<const float> step) {
  append_piece(message_named(lists_, name), 1, feature_of(step));
  return *this;
}

SequenceExampleBuilder& SequenceExampleBuilder::floats(std::string_view name, std::initializer_list<float> step) {
  return floats(name, std::span(step.begin(), step.size()));
}

SequenceExampleBuilder& SequenceExampleBuilder::int64s(std::string_view name, std::span<const int64_t> step) {
  append_piece(message_named(lists_, name), 1, feature_of(step));
  return *this;
}

SequenceExampleBuilder& SequenceExampleBuilder::int64s(std::string_view name, std::initializer_list<int64_t> step) {
  return int64s(name, std::span(step.begin(), step.size()));
}

SequenceExampleBuilder& SequenceExampleBuilder::strings(std::string_view name, std::span<const std::string> step) {
  append_piece(message_named(lists_, name), 1, feature_of_strings(step));
  return *this;
}

SequenceExampleBuilder& SequenceExampleBuilder::strings(std::string_view name,
                                                        std::initializer_list<std::string_view> step) {
  append_piece(message_named(lists_, name), 1, feature_of_strings(step));
  return *this;
}

SequenceExampleBuilder& SequenceExampleBuilder::bytes(std::string_view name, std::string_view step) {
  return strings(name, {step});
}

SequenceExampleBuilder& SequenceExampleBuilder::list(std::string_view name) {
  message_named(lists_, name);
  return *this;
}

std::string SequenceExampleBuilder::serialize() const {
  std::string bytes;
  append_messages(bytes, 1, context_.features_);
  append_messages(bytes, 2, lists_);
  return checked_example(std::move(bytes));
}

}  // namespace muster

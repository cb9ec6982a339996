// The wire format of protobuf, as far as examples use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

namespace muster::example_internal {

// Thrown by what reads the wire format, which does not know of which record; caught where that is known.
struct MalformedExample {
  const char* what;
};

// Fields of protobuf's wire format, read from the front.
struct ExampleBytes {
  enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kPiece = 2, kGroup = 3, kGroupEnd = 4, kFixed32 = 5 };
  // With the wire type: a field of a known number but of another type is an unknown field, as in protobuf.
  static constexpr uint32_t tag_of(uint32_t number, WireType type) { return number << 3 | type; }

  const uint8_t* at = nullptr;
  const uint8_t* end = nullptr;

  bool empty() const { return at == end; }
  size_t size() const { return static_cast<size_t>(end - at); }
  std::string_view text() const { return {reinterpret_cast<const char*>(at), size()}; }

  uint64_t varint() { return !empty() && *at < 0x80 ? *at++ : long_varint(); }
  [[gnu::noinline]] uint64_t long_varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (empty()) throw MalformedExample{"it ends within a number"};
      const uint8_t byte = *at++;
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;  // bits above the 64th are lost, as protobuf does it
      if (byte < 0x80) return value;
    }
    throw MalformedExample{"a number has more than 10 bytes"};
  }

  uint32_t tag() {
    const uint64_t tag = varint();
    if (tag < 8 || tag > std::numeric_limits<uint32_t>::max()) throw MalformedExample{"a field has no valid number"};
    return static_cast<uint32_t>(tag);
  }

  ExampleBytes take(uint64_t count) {
    if (count > size()) throw MalformedExample{"a field is longer than what holds it"};
    const ExampleBytes piece{at, at + count};
    at = piece.end;
    return piece;
  }
  ExampleBytes piece() { return take(varint()); }

  void skip(uint32_t tag) {
    switch (tag & 7) {
      case kVarint: varint(); return;
      case kFixed64: take(8); return;
      case kPiece: piece(); return;
      case kFixed32: take(4); return;
      case kGroup:
      case kGroupEnd: throw MalformedExample{"it has a group, which examples never have"};
      default: throw MalformedExample{"a field has an unknown wire type"};
    }
  }
};

constexpr uint32_t kValuePiece = ExampleBytes::tag_of(1, ExampleBytes::kPiece);  // most fields have number 1
constexpr uint32_t kSecondPiece = ExampleBytes::tag_of(2, ExampleBytes::kPiece);

// Calls `field(bytes, tag)` for each field; it takes the field or answers false.
template <class Field>
void each_example_field(ExampleBytes bytes, const Field& field) {
  while (!bytes.empty()) {
    const uint32_t tag = bytes.tag();
    if (!field(bytes, tag)) bytes.skip(tag);
  }
}

}  // namespace muster::example_internal

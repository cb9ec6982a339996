// How the tensors of a variable look on their way between machines.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace muster {

enum class WireType : uint8_t {
  kAsIs,
  kBFloat16,  // the range of float32, 8 bits of its 24
  kFloat16,   // 11 bits of its 24, up to 65,504
};

// Made smaller by whoever sends and made what it was by whoever receives: a variable keeps its float32, what is pulled
// and what is pushed is rounded. Tensors of less than a kibibyte travel as they are, so rates and counts are exact.
struct WireForm {
  WireType type = WireType::kAsIs;  // what float32 becomes
  bool deflate = false;             // also compresses bytes, without loss, where that makes them fewer
  bool same_machine = false;        // also between processes that copy out of each other's memory

  bool plain() const { return type == WireType::kAsIs && !deflate; }
  std::string to_string() const;  // "bfloat16, deflated"
  bool operator==(const WireForm&) const = default;

  // On the wire and on disk; nothing: no form has that number.
  uint32_t number() const;
  static std::optional<WireForm> from_number(uint32_t number);
};

}  // namespace muster

// What a trace depends on: one program per signature.
#pragma once

#include <ATen/core/Tensor.h>

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "muster/graph/elements.h"
#include "muster/trace/tracer/leaves.h"
#include "muster/trace/tracer/shared_memory.h"

namespace muster {

// The number, shapes, types, devices (and strides, if unusual) of the tensor arguments, the plain arguments' values,
// and what is set around the call that decides which ops are recorded: the DeviceScope, autocast, the default type of
// new tensors, deterministic algorithms. (Gradients are always on in a trace, InferenceMode never is.)
class Signature {
 public:
  // `key` tells call forms apart that have equal leaves.
  explicit Signature(size_t key);

  void add(const at::Tensor& tensor);
  void add(const SharedMemory& shared);
  void add(std::string_view text);
  void add(const ElementSpecs& elements);
  template <class T>
    requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void add(T value) {
    words_.push_back(kNumber);
    if constexpr (std::is_floating_point_v<T>) {
      words_.push_back(std::bit_cast<int64_t>(static_cast<double>(value)));
    } else {
      words_.push_back(static_cast<int64_t>(value));
    }
  }

  bool operator==(const Signature&) const = default;
  template <class H>
  friend H AbslHashValue(H h, const Signature& signature) {
    return H::combine(std::move(h), signature.words_);
  }

 private:
  static constexpr int64_t kNumber = -1, kText = -2, kTensor = -3, kElement = -4, kShared = -5;
  std::vector<int64_t> words_;
};

// For people: "device scope \"/device:CPU:1\", autocast of cpu to bfloat16"; "" if nothing is set.
std::string describe_surroundings();

// For people: "float32[64, 784]", "3", "\"relu\"".
std::string describe(const at::Tensor& tensor);
std::string describe_text(std::string_view text);
template <class T>
std::string describe_leaf(const T& value) {
  if constexpr (std::same_as<T, at::Tensor>) {
    return describe(value);
  } else if constexpr (std::is_enum_v<T>) {
    return std::to_string(static_cast<int64_t>(value));
  } else if constexpr (std::is_arithmetic_v<T>) {
    return std::to_string(value);
  } else {
    return describe_text(value);
  }
}

// Describes each part of an argument that is called `name`: 'argument 0[2]: float32[3]'. What says itself what it is
// (`described()`) is one part: nobody knows what an Iterator is made of.
template <class T>
void describe_parts(const std::string& name, const T& value, std::vector<std::string>& descriptions) {
  using namespace leaves_internal;
  if constexpr (requires { value.described(); }) {
    descriptions.push_back(name + ": " + value.described());
  } else if constexpr (std::same_as<T, at::Tensor> || PlainValue<T>) {
    descriptions.push_back(name + ": " + describe_leaf(value));
  } else if constexpr (std::same_as<T, KeptAlive>) {
    // nothing to see
  } else if constexpr (is_map<T>) {
    for (const auto& [key, element] : value)
      describe_parts(name + "[" + describe_leaf(key) + "]", element, descriptions);
  } else if constexpr (is_optional<T>) {
    if (value) describe_parts(name, *value, descriptions);
  } else {
    size_t place = 0;
    auto describe_next = [&](const auto& part) {
      describe_parts(name + "[" + std::to_string(place++) + "]", part, descriptions);
    };
    if constexpr (is_tuple<T>) {
      std::apply([&](const auto&... parts) { (describe_next(parts), ...); }, value);
    } else if constexpr (std::same_as<T, std::vector<bool>>) {
      for (const bool element : value) describe_next(element);
    } else if constexpr (is_sequence<T>) {
      for (const auto& element : value) describe_next(element);
    } else {
      for_each_field(value, describe_next);
    }
  }
}

}  // namespace muster

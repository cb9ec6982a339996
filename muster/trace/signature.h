// What a trace depends on: one program per signature.
#pragma once

#include <ATen/core/Tensor.h>

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "muster/graph/elements.h"
#include "muster/trace/leaves.h"
#include "muster/trace/shared_memory.h"

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

}  // namespace muster

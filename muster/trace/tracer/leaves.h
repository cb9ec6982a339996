// Walks arguments and results of functions: tensors and plain values in tuples, vectors, maps and small structs.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <concepts>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace muster {

// A value that is fixed in the traced program: another value means another trace.
template <class T>
concept PlainValue = std::is_arithmetic_v<T> || std::is_enum_v<T> || std::same_as<T, std::string> ||
                     std::same_as<T, const char*> || std::same_as<T, std::nullopt_t>;

// Part of an argument that no program sees: it only keeps something alive.
struct KeptAlive {
  std::shared_ptr<const void> what{};
};

namespace leaves_internal {

struct Anything {
  template <class T>
  operator T() const;  // NOLINT: stands for any field when fields are counted
};

template <class T, class... Fields>
consteval size_t count_fields() {
  if constexpr (sizeof...(Fields) > 8) {
    return 9;
  } else if constexpr (requires { T{Fields{}..., Anything{}}; }) {
    return count_fields<T, Fields..., Anything>();
  } else {
    return sizeof...(Fields);
  }
}

template <class T, class Visit>
void for_each_field(T& value, const Visit& visit) {
  constexpr size_t count = count_fields<std::remove_const_t<T>>();
  static_assert(count <= 8, "a struct passed to or returned from a traced function has at most eight fields");
  if constexpr (count == 1) {
    auto& [a] = value;
    visit(a);
  } else if constexpr (count == 2) {
    auto& [a, b] = value;
    visit(a), visit(b);
  } else if constexpr (count == 3) {
    auto& [a, b, c] = value;
    visit(a), visit(b), visit(c);
  } else if constexpr (count == 4) {
    auto& [a, b, c, d] = value;
    visit(a), visit(b), visit(c), visit(d);
  } else if constexpr (count == 5) {
    auto& [a, b, c, d, e] = value;
    visit(a), visit(b), visit(c), visit(d), visit(e);
  } else if constexpr (count == 6) {
    auto& [a, b, c, d, e, f] = value;
    visit(a), visit(b), visit(c), visit(d), visit(e), visit(f);
  } else if constexpr (count == 7) {
    auto& [a, b, c, d, e, f, g] = value;
    visit(a), visit(b), visit(c), visit(d), visit(e), visit(f), visit(g);
  } else if constexpr (count == 8) {
    auto& [a, b, c, d, e, f, g, h] = value;
    visit(a), visit(b), visit(c), visit(d), visit(e), visit(f), visit(g), visit(h);
  }
}

template <class T>
inline constexpr bool is_tuple = false;
template <class... T>
inline constexpr bool is_tuple<std::tuple<T...>> = true;
template <class A, class B>
inline constexpr bool is_tuple<std::pair<A, B>> = true;

template <class T>
inline constexpr bool is_sequence = false;
template <class T>
inline constexpr bool is_sequence<std::vector<T>> = true;
template <class T, size_t N>
inline constexpr bool is_sequence<std::array<T, N>> = true;

template <class T>
inline constexpr bool is_map = false;
template <class K, class V>
inline constexpr bool is_map<std::map<K, V>> = true;

template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;

}  // namespace leaves_internal

// Calls `visit` with every tensor (at::Tensor&) and every plain value of `value`, in a fixed order. The sizes of
// vectors, the keys of maps and the absence of optionals are visited as plain values: they are part of the shape of the
// whole.
template <class T, class Visit>
void for_each_leaf(T& value, const Visit& visit) {
  using Plain = std::remove_const_t<T>;
  using namespace leaves_internal;
  auto inside = [&](auto& part) { for_each_leaf(part, visit); };
  if constexpr (std::same_as<Plain, at::Tensor> || PlainValue<Plain>) {
    visit(value);
  } else if constexpr (std::same_as<Plain, KeptAlive>) {
    // nothing to see
  } else if constexpr (is_tuple<Plain>) {
    std::apply([&](auto&... parts) { (inside(parts), ...); }, value);
  } else if constexpr (is_sequence<Plain>) {
    const size_t size = value.size();
    visit(size);
    if constexpr (std::same_as<Plain, std::vector<bool>>) {
      for (const bool element : value) visit(element);
    } else {
      for (auto& element : value) inside(element);
    }
  } else if constexpr (is_map<Plain>) {
    const size_t size = value.size();
    visit(size);
    for (auto& [key, element] : value) {
      visit(key);
      inside(element);
    }
  } else if constexpr (is_optional<Plain>) {
    const bool present = value.has_value();
    visit(present);
    if (present) inside(*value);
  } else {
    static_assert(std::is_aggregate_v<Plain>,
                  "a traced function takes and returns tensors, numbers, strings, and tuples, vectors, std::maps, "
                  "optionals and small plain structs of them");
    for_each_field(value, inside);
  }
}

}  // namespace muster

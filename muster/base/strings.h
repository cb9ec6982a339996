#pragma once

#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>

#include <string>
#include <string_view>
#include <type_traits>

namespace muster {
namespace strings_internal {

// Some systems build abseil with a string_view of its own, which does not take the standard one.
inline absl::string_view part(std::string_view text) { return absl::string_view(text.data(), text.size()); }

template <class Part>
concept Text = std::is_convertible_v<const Part&, std::string_view>;

template <class Part>
decltype(auto) part(const Part& value) {
  if constexpr (Text<Part>) {
    return part(std::string_view(value));
  } else {
    return (value);
  }
}

}  // namespace strings_internal

// absl::StrCat that also takes std::string_view: strings, numbers and absl::Hex(…) in a row.
template <class... Parts>
[[nodiscard]] std::string str_cat(const Parts&... parts) {
  return absl::StrCat(strings_internal::part(parts)...);
}

template <class... Parts>
void str_append(std::string& text, const Parts&... parts) {
  absl::StrAppend(&text, strings_internal::part(parts)...);
}

}  // namespace muster

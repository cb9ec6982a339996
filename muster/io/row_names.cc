#include "muster/io/row_names.h"

#include <absl/strings/numbers.h>

#include <array>
#include <string_view>

#include "muster/base/strings.h"

namespace muster {
namespace {

constexpr std::array<std::string_view, 3> kWhat = {"rule", "rows", "ids"};  // by RowName::What

}  // namespace

std::string RowName::text() const {
  const std::string whole = str_cat(table, "#", kWhat.at(static_cast<size_t>(what)), "@", first_row);
  return difference == 0 ? whole : str_cat(whole, "+", difference);
}

std::optional<RowName> RowName::parse(const std::string& name) {
  const size_t at = name.rfind('@'), hash = name.rfind('#', at);
  if (at == std::string::npos || hash == std::string::npos) return std::nullopt;
  const std::string_view said = std::string_view(name).substr(hash + 1, at - hash - 1);
  std::string first = name.substr(at + 1);
  RowName parsed{name.substr(0, hash), kRule, 0};
  if (const size_t plus = first.find('+'); plus != std::string::npos) {
    if (!absl::SimpleAtoi(first.substr(plus + 1), &parsed.difference) || parsed.difference < 1) return std::nullopt;
    first.resize(plus);
  }
  if (!absl::SimpleAtoi(first, &parsed.first_row) || parsed.first_row < 0) return std::nullopt;
  for (size_t i = 0; i < kWhat.size(); ++i) {
    parsed.what = static_cast<What>(i);
    if (said == kWhat[i]) return parsed.text() == name ? std::optional(parsed) : std::nullopt;  // not "@007"
  }
  return std::nullopt;
}

}  // namespace muster

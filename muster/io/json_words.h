#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "muster/base/strings.h"

namespace muster {

// What is wrong with a text that was to be JSON, in our words: the library's name its types, and repeat what it has
// read, which may be megabytes.
inline std::string json_words(const nlohmann::json::exception& error) {
  constexpr int kNumberOverflow = 406;
  if (const auto* syntax = dynamic_cast<const nlohmann::json::parse_error*>(&error)) {
    return str_cat("not JSON: byte ", syntax->byte, " is not expected there");
  }
  if (error.id == kNumberOverflow) return "not JSON: a number is too large";
  return "an entry is missing, or of another kind than expected";
}

}  // namespace muster

#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include "muster/base/strings.h"

namespace muster {

// What is wrong with a text of so many bytes that was to be JSON, in our words: the library's name its types, and
// repeat what it has read, which may be megabytes.
inline std::string json_words(const nlohmann::json::exception& error, size_t bytes) {
  constexpr int kNoSuchKey = 403, kNumberOverflow = 406;
  if (const auto* syntax = dynamic_cast<const nlohmann::json::parse_error*>(&error)) {
    if (syntax->byte > bytes) return "not JSON: it ends too early";
    return str_cat("not JSON: byte ", syntax->byte, " is not expected there");
  }
  if (error.id == kNumberOverflow) return "not JSON: a number is too large";
  if (error.id == kNoSuchKey) {  // "[json.exception.out_of_range.403] key 'files' not found": one of ours
    const std::string words = error.what();
    return str_cat("an entry is missing: ", words.substr(words.find(' ') + 1));
  }
  return "an entry is missing, or of another kind than expected";
}

}  // namespace muster

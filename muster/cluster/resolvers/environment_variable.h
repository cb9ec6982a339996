#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace muster {

// Nothing when it is not set, or set to nothing.
inline std::optional<std::string> environment_variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

}  // namespace muster

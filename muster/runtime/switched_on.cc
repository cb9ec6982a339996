#include "muster/runtime/switched_on.h"

#include <cstdlib>
#include <string_view>

#include "muster/base/log.h"

namespace muster {

bool switched_on(const char* variable) {
  const char* const value = std::getenv(variable);
  const std::string_view wish = value == nullptr ? "" : value;
  if (wish == "off") return false;
  if (wish != "on" && !wish.empty()) {
    MUSTER_LOG(warning) << variable << " is \"" << wish << "\", expected on or off; taken as on";
  }
  return true;
}

}  // namespace muster

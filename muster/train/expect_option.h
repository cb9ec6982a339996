#pragma once

#include <string_view>

#include "muster/base/status.h"

namespace muster {

// Throws Error{kInvalidArgument} unless it `holds`, such as "EarlyStopping: patience is -1, expected 0 or more".
template <class T>
void expect_option(bool holds, std::string_view whose, std::string_view option, const T& value,
                   std::string_view expected) {
  if (!holds) throw invalid_argument(whose, ": ", option, " is ", value, ", expected ", expected);
}

}  // namespace muster

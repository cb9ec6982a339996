#pragma once

#include "muster/base/status.h"

namespace muster {

// Throws Error{kInvalidArgument} unless it `holds`, such as "EarlyStopping: patience is -1, expected 0 or more".
template <class T>
void expect_option(bool holds, const char* whose, const char* option, const T& value, const char* expected) {
  if (!holds) throw invalid_argument(whose, ": ", option, " is ", value, ", expected ", expected);
}

}  // namespace muster

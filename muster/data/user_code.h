// Calls of functions that users gave to a dataset.
#pragma once

#include <string>

#include "muster/base/status.h"
#include "muster/runtime/ops/op_failure.h"

namespace muster {

// What such a function returns. What it throws, be it libtorch's, becomes an Error that says who has thrown it.
template <class Call>
auto call_user_code(const std::string& who, const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (...) {
    const Status why = status_of_op_failure();
    if (why.code() == StatusCode::kCancelled) throw Error(why);  // it is not its fault
    throw Error(Status(why.code(), str_cat(who, ": ", why.message()), why.task(), why.detail()));
  }
}

}  // namespace muster

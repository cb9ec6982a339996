// What a call throws, for tests. Not part of the library.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "muster/base/status.h"

namespace muster::testing_support {

// What the Error says that `call` throws; ok if it throws none.
template <class Call>
Status caught(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

// The whole text of it.
template <class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

// The words of the Error that `call` throws, which must have this code.
template <class Call>
std::string error_of(StatusCode code, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.status().message();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}
template <class Call>
std::string error_of(const Call& call) {
  return error_of(StatusCode::kInvalidArgument, call);
}

}  // namespace muster::testing_support

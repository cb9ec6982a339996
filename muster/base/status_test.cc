#include "muster/base/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <sstream>
#include <stdexcept>

namespace muster {
namespace {

TEST(Status, IsOkByDefault) {
  const Status status;

  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.to_string(), "OK");
}

TEST(Status, PrintsCodeTaskAndMessage) {
  std::ostringstream out;

  out << Status(StatusCode::kUnavailable, "connection refused", "/job:ps/task:1");

  EXPECT_EQ(out.str(), "UNAVAILABLE at /job:ps/task:1: connection refused");
}

TEST(Status, PrintsATaskOnceThatItsMessageNames) {
  const Status named(StatusCode::kUnknown, "op on /job:ps/task:1/device:CPU:0", "/job:ps/task:1");
  const Status other(StatusCode::kUnknown, "from /job:ps/task:12", "/job:ps/task:1");

  EXPECT_EQ(named.to_string(), "UNKNOWN: op on /job:ps/task:1/device:CPU:0");
  EXPECT_EQ(other.to_string(), "UNKNOWN at /job:ps/task:1: from /job:ps/task:12");
}

TEST(Status, PrintsNoTaskAndNoColonWhenThereIsNothingToSay) {
  EXPECT_EQ(Status(StatusCode::kNotFound, "variable \"w\"").to_string(), "NOT_FOUND: variable \"w\"");
  EXPECT_EQ(Status(StatusCode::kAborted, "").to_string(), "ABORTED");
}

TEST(Status, KeepsTheFirstTaskThatNamedItself) {
  const Status begun = Status(StatusCode::kInternal, "x").from("/job:ps/task:1");

  EXPECT_EQ(begun.from("/job:worker/task:0").task(), "/job:ps/task:1");
}

TEST(Status, KeepsADetailThatIsNotAmongItsWords) {
  const Status status(StatusCode::kInternal, "x", "", "detail");

  EXPECT_EQ(status.from("t").detail(), "detail");
  EXPECT_EQ(status.to_string(), "INTERNAL: x");
  EXPECT_NE(status, Status(StatusCode::kInternal, "x"));
}

TEST(Status, IsEqualWhenCodeMessageAndTaskAre) {
  EXPECT_EQ(Status(StatusCode::kInternal, "x", "t"), Status(StatusCode::kInternal, "x", "t"));
  EXPECT_NE(Status(StatusCode::kInternal, "x", "t"), Status(StatusCode::kInternal, "x", "u"));
}

TEST(StatusCode, HasGrpcsNumbersAndNames) {
  EXPECT_EQ(static_cast<int>(StatusCode::kUnauthenticated), 16);
  EXPECT_EQ(name_of(StatusCode::kUnauthenticated), "UNAUTHENTICATED");
  EXPECT_EQ(name_of(StatusCode::kUnavailable), "UNAVAILABLE");
  EXPECT_EQ(name_of(static_cast<StatusCode>(99)), "UNKNOWN");
}

TEST(Error, IsMadeFromParts) {
  const Error error = invalid_argument("device \"", "/job:ps/task:9", "\": job \"ps\" has ", 2, " tasks");

  EXPECT_EQ(error.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(error.status().message(), "device \"/job:ps/task:9\": job \"ps\" has 2 tasks");
  EXPECT_STREQ(error.what(), "INVALID_ARGUMENT: device \"/job:ps/task:9\": job \"ps\" has 2 tasks");
}

TEST(Error, HasAMakerForEachCodeThatWeThrow) {
  EXPECT_EQ(cancelled("").code(), StatusCode::kCancelled);
  EXPECT_EQ(deadline_exceeded("").code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(not_found("").code(), StatusCode::kNotFound);
  EXPECT_EQ(already_exists("").code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(resource_exhausted("").code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(failed_precondition("").code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(aborted("").code(), StatusCode::kAborted);
  EXPECT_EQ(out_of_range("").code(), StatusCode::kOutOfRange);
  EXPECT_EQ(internal("").code(), StatusCode::kInternal);
  EXPECT_EQ(unavailable("").code(), StatusCode::kUnavailable);
  EXPECT_EQ(data_loss("").code(), StatusCode::kDataLoss);
}

TEST(StatusOf, TurnsAnyExceptionIntoAStatus) {
  EXPECT_TRUE(status_of(nullptr).ok());
  EXPECT_EQ(status_of(std::make_exception_ptr(not_found("w"))), Status(StatusCode::kNotFound, "w"));
  EXPECT_EQ(status_of(std::make_exception_ptr(std::bad_alloc())).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status_of(std::make_exception_ptr(std::runtime_error("x"))), Status(StatusCode::kUnknown, "x"));
  EXPECT_EQ(status_of(std::make_exception_ptr(7)).code(), StatusCode::kUnknown);
}

}  // namespace
}  // namespace muster

#pragma once

#include <exception>
#include <iosfwd>
#include <string>
#include <string_view>

#include "muster/base/strings.h"

namespace muster {

// The numbers are gRPC's, so that a code crosses the wire as it is.
enum class StatusCode {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

// The name as gRPC writes it: "INVALID_ARGUMENT".
std::string_view name_of(StatusCode code);
std::ostream& operator<<(std::ostream& out, StatusCode code);

// How something ended: a code, words for a person, and the task where it began (empty: this process, or nobody said).
// A failure that the caller can do something about has a detail, whose maker and reader are one file.
// A value. This is what is stored, sent and given to callbacks; code that can answer at once throws an Error instead.
class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message, std::string task = {}, std::string detail = {});

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::string& task() const { return task_; }
  const std::string& detail() const { return detail_; }  // for a program; not among the words

  // "OK", "NOT_FOUND: variable \"w\"" or "UNAVAILABLE at /job:ps/task:1: connection refused".
  std::string to_string() const;

  // The same, begun at `task` unless it already says where it began: the first task to name itself is the origin.
  Status from(const std::string& task) const;

  bool operator==(const Status&) const = default;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
  std::string task_;
  std::string detail_;
};

std::ostream& operator<<(std::ostream& out, const Status& status);

// A Status that is thrown. Never ok.
class Error : public std::exception {
 public:
  explicit Error(Status status);

  const Status& status() const noexcept { return status_; }
  StatusCode code() const noexcept { return status_.code(); }
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  Status status_;
  std::string what_;
};

// What a caught exception says as a Status: an Error's own, kResourceExhausted for std::bad_alloc, else kUnknown and
// what().
Status status_of(const std::exception_ptr& exception);

// Makers: `throw invalid_argument("device \"", name, "\": job \"", job, "\" has ", count, " tasks");`
#define MUSTER_ERROR_MAKER(function, code)                     \
  template <class... Parts>                                    \
  [[nodiscard]] Error function(const Parts&... parts) {        \
    return Error(Status(StatusCode::code, str_cat(parts...))); \
  }
MUSTER_ERROR_MAKER(cancelled, kCancelled)
MUSTER_ERROR_MAKER(invalid_argument, kInvalidArgument)
MUSTER_ERROR_MAKER(deadline_exceeded, kDeadlineExceeded)
MUSTER_ERROR_MAKER(not_found, kNotFound)
MUSTER_ERROR_MAKER(already_exists, kAlreadyExists)
MUSTER_ERROR_MAKER(resource_exhausted, kResourceExhausted)
MUSTER_ERROR_MAKER(failed_precondition, kFailedPrecondition)
MUSTER_ERROR_MAKER(aborted, kAborted)
MUSTER_ERROR_MAKER(out_of_range, kOutOfRange)
MUSTER_ERROR_MAKER(internal, kInternal)
MUSTER_ERROR_MAKER(unavailable, kUnavailable)
MUSTER_ERROR_MAKER(data_loss, kDataLoss)
#undef MUSTER_ERROR_MAKER

}  // namespace muster

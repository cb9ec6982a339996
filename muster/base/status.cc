#include "muster/base/status.h"

#include <array>
#include <new>
#include <ostream>
#include <utility>

#include "muster/base/check.h"

namespace muster {

std::string_view name_of(StatusCode code) {
  static constexpr std::array<std::string_view, 17> kNames = {
      "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS", "UNAUTHENTICATED"};
  const auto index = static_cast<size_t>(code);
  return index < kNames.size() ? kNames[index]
                               : "UNKNOWN";  // A newer peer may send a code that this one does not know.
}

namespace {

bool names_task(std::string_view message, std::string_view task) {
  for (size_t at = message.find(task); at != std::string_view::npos; at = message.find(task, at + 1)) {
    const size_t end = at + task.size();  // of task 1, not of task 12
    if (end == message.size() || message[end] < '0' || message[end] > '9') return true;
  }
  return false;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, StatusCode code) { return out << name_of(code); }

Status::Status(StatusCode code, std::string message, std::string task, std::string detail)
    : code_(code), message_(std::move(message)), task_(std::move(task)), detail_(std::move(detail)) {}

std::string Status::to_string() const {
  if (ok()) return "OK";
  const bool says_where = task_.empty() || names_task(message_, task_);
  return str_cat(name_of(code_), says_where ? "" : str_cat(" at ", task_), message_.empty() ? "" : ": ", message_);
}

Status Status::from(const std::string& task) const {
  return Status(code_, message_, task_.empty() ? task : task_, detail_);
}

std::ostream& operator<<(std::ostream& out, const Status& status) { return out << status.to_string(); }

Error::Error(Status status) : status_(std::move(status)), what_(status_.to_string()) { MUSTER_CHECK(!status_.ok()); }

Status status_of(const std::exception_ptr& exception) {
  if (!exception) return {};
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    return error.status();
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kResourceExhausted, "out of memory");
  } catch (const std::exception& error) {
    return Status(StatusCode::kUnknown, error.what());
  } catch (...) {
    return Status(StatusCode::kUnknown, "an exception that is not a std::exception");
  }
}

}  // namespace muster

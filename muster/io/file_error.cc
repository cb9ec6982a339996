#include "muster/io/file_error.h"

#include <cerrno>
#include <system_error>

#include "muster/io/disk.h"

namespace muster {
namespace {

StatusCode code_of(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR: return StatusCode::kNotFound;
    case EEXIST:
    case ENOTEMPTY: return StatusCode::kAlreadyExists;
    case EACCES:
    case EPERM:
    case EROFS: return StatusCode::kPermissionDenied;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case ENOMEM: return StatusCode::kResourceExhausted;
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG: return StatusCode::kInvalidArgument;
    // Nothing here says that what is on the disk is damaged.
    default: return disk::may_pass(error) ? StatusCode::kUnavailable : StatusCode::kUnknown;
  }
}

}  // namespace

Error file_error(std::string_view path, std::string_view action, int error) {
  // Not std::strerror, which is not safe among threads.
  return Error(
      Status(code_of(error), str_cat("file \"", path, "\": ", action, ": ", std::generic_category().message(error))));
}

}  // namespace muster

#include "muster/cluster/read_file.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "muster/base/status.h"

namespace muster {
namespace {

constexpr size_t kMaxBytes = 64 << 20;

}  // namespace

std::string read_file(const std::string& path) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    const bool forbidden = errno == EACCES || errno == EPERM;
    throw Error(Status(forbidden ? StatusCode::kPermissionDenied : StatusCode::kNotFound,
                       str_cat("file \"", path, "\": ", std::strerror(errno))));
  }
  std::string text;
  std::array<char, 1 << 16> part;
  while (in.read(part.data(), part.size()) || in.gcount() > 0) {
    text.append(part.data(), static_cast<size_t>(in.gcount()));
    if (text.size() > kMaxBytes) throw invalid_argument("file \"", path, "\": more than ", kMaxBytes, " bytes");
  }
  if (in.bad()) throw invalid_argument("file \"", path, "\": ", std::strerror(errno));
  return text;
}

}  // namespace muster

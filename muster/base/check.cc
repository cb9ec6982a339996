#include "muster/base/check.h"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace muster::check_internal {

Failure::Failure(const char* file, int line, const char* condition) {
  stream_ << file << ":" << line << ": MUSTER_CHECK(" << condition << ") failed. This is a bug in Muster. ";
}

Failure::~Failure() {
  const std::string text = std::move(stream_).str() + "\n";
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::abort();
}

}  // namespace muster::check_internal

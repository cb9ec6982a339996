#pragma once

#include <ostream>
#include <sstream>

namespace muster::check_internal {

// Prints the failed condition with file and line, and what was streamed into it, and aborts when it is destroyed.
class Failure {
 public:
  Failure(const char* file, int line, const char* condition);
  [[noreturn]] ~Failure();
  Failure(const Failure&) = delete;

  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

// Gives both arms of MUSTER_CHECK's `?:` the type void; & binds weaker than <<.
struct Voidify {
  void operator&(std::ostream&) const {}
};

}  // namespace muster::check_internal

// `MUSTER_CHECK(inflight_ > 0) << "in step " << id;` is for our own bugs only, never for input, the network or another
// task. It is also there in optimized builds.
#define MUSTER_CHECK(condition)                                              \
  __builtin_expect(!!(condition), 1) ? (void)0                               \
                                     : ::muster::check_internal::Voidify() & \
                                           ::muster::check_internal::Failure(__FILE__, __LINE__, #condition).stream()

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>

namespace muster {
namespace {

std::terminate_handler handler_before = nullptr;

// A program that writes to a file or a pipe and does not catch an Error would end without the lines that say how far it
// came. Another thread that writes at this moment may never get done: then they are lost, as they would be.
[[noreturn]] void write_out_and_terminate() {
  std::signal(SIGPIPE, SIG_IGN);  // nobody may read any more, and then the error's words are wanted all the same
  if (::ftrylockfile(stdout) == 0) {
    std::fflush(stdout);
    ::funlockfile(stdout);
  }
  if (handler_before != nullptr) handler_before();  // that of the standard library prints what() of the error
  std::abort();
}

[[maybe_unused]] const bool writes_out = [] {
  handler_before = std::set_terminate(write_out_and_terminate);
  return true;
}();

}  // namespace
}  // namespace muster

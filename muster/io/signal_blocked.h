// Signals that a write raises where the process is not ours to end.
#pragma once

#include <pthread.h>

#include <cerrno>
#include <csignal>
#include <ctime>

namespace muster {

// While it is there, what this thread writes fails with an error of the call and does not end the process by this
// signal: SIGPIPE, for sockets of libraries that do not say MSG_NOSIGNAL, as OpenSSL does not; SIGXFSZ, for files that
// become larger than the process may make one. Leaves errno as it is.
class [[nodiscard]] SignalBlocked {
 public:
  explicit SignalBlocked(int signal) {
    sigemptyset(&signal_);
    sigaddset(&signal_, signal);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, signal) == 1;
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~SignalBlocked() {
    const int error = errno;
    const timespec now{};
    while (!was_pending_ && sigtimedwait(&signal_, nullptr, &now) > 0) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }
  SignalBlocked(const SignalBlocked&) = delete;
  SignalBlocked& operator=(const SignalBlocked&) = delete;

 private:
  sigset_t signal_, before_;
  bool was_pending_;
};

}  // namespace muster

// Writes to sockets by libraries that do not say MSG_NOSIGNAL.
#pragma once

#include <pthread.h>

#include <csignal>
#include <ctime>

namespace muster {

// While it is there, SIGPIPE does not end the process for what this thread writes.
// OpenSSL writes to sockets in a way that raises SIGPIPE when the server has hung up; the process is not ours to end.
class [[nodiscard]] SigpipeBlocked {
 public:
  SigpipeBlocked() {
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  ~SigpipeBlocked() {
    const timespec now{};
    while (!was_pending_ && sigtimedwait(&sigpipe_, nullptr, &now) == SIGPIPE) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeBlocked(const SigpipeBlocked&) = delete;

 private:
  sigset_t sigpipe_, before_;
  bool was_pending_;
};

}  // namespace muster

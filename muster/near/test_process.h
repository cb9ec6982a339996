// Processes beside that of a test. Not part of the library.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <utility>

#include "muster/base/check.h"
#include "muster/base/test_wait.h"
#include "muster/near/near_memory.h"

namespace muster::testing_support {

inline uint64_t address_of(const void* memory) { return reinterpret_cast<uint64_t>(memory); }

// False where a process may not even read its own memory as that of another one.
inline bool memory_can_be_read() {
  uint64_t word = 7, copy = 0;
  return near_memory_wanted() && read_memory(::getpid(), {{&copy, address_of(&word), sizeof word}});
}

// Runs `work` in a copy of this process, which then does nothing until it is ended. The two tell each other words.
class OtherProcess {
 public:
  explicit OtherProcess(const std::function<void(OtherProcess&)>& work = {}) {
    MUSTER_CHECK(::pipe(to_child_) == 0 && ::pipe(to_parent_) == 0);
    pid_ = ::fork();
    if (pid_ != 0) return;
    if (work) work(*this);
    while (true) ::pause();
  }
  ~OtherProcess() {
    end();
    for (int end : {to_child_[0], to_child_[1], to_parent_[0], to_parent_[1]}) ::close(end);
  }
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;

  void end() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, 0), nullptr, 0);
  }
  pid_t pid() const { return pid_; }

  void tell(uint64_t word) {
    const int end = pid_ == 0 ? to_parent_[1] : to_child_[1];
    MUSTER_CHECK(::write(end, &word, sizeof word) == sizeof word);
  }
  // The next word of the other; 0 if none comes.
  uint64_t hear() {
    pollfd end{.fd = pid_ == 0 ? to_child_[0] : to_parent_[0], .events = POLLIN, .revents = 0};
    uint64_t word = 0;
    if (::poll(&end, 1, std::chrono::milliseconds(kPatience).count()) != 1) return 0;
    return ::read(end.fd, &word, sizeof word) == sizeof word ? word : 0;
  }

 private:
  int to_child_[2], to_parent_[2];
  pid_t pid_ = 0;
};

}  // namespace muster::testing_support

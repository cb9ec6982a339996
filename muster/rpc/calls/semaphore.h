#pragma once

#include <semaphore.h>

#include <cerrno>

namespace muster {

// std::counting_semaphore<>, which in libstdc++ 12 can leave a thread asleep while there is something for it to take.
// To add one when nobody waits, or to take one that is there, costs an atomic operation. Thread-safe.
class Semaphore {
 public:
  Semaphore() { ::sem_init(&count_, /*pshared=*/0, 0); }
  ~Semaphore() { ::sem_destroy(&count_); }
  Semaphore(const Semaphore&) = delete;
  Semaphore& operator=(const Semaphore&) = delete;

  void release() { ::sem_post(&count_); }
  // Waits for one.
  void acquire() {
    while (::sem_wait(&count_) != 0 && errno == EINTR) continue;
  }

 private:
  sem_t count_;
};

}  // namespace muster

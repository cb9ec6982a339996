// The system's abseil is not compiled with ThreadSanitizer, which therefore does not see that absl::Mutex and its
// friends order the accesses they guard. The definitions here stand before the library's, call those, and tell the
// sanitizer.
#include <absl/synchronization/blocking_counter.h>
#include <absl/synchronization/mutex.h>
#include <absl/synchronization/notification.h>
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <cstdio>
#include <cstdlib>

namespace {

void acquire(const void* object) { __tsan_acquire(const_cast<void*>(object)); }
void release(const void* object) { __tsan_release(const_cast<void*>(object)); }

// The mutex that this thread works on: abseil evaluates conditions inside it, also those of other threads when it
// unlocks.
thread_local const void* current = nullptr;

class Current {
 public:
  explicit Current(const void* mutex) : outer_(current) { current = mutex; }
  ~Current() { current = outer_; }

 private:
  const void* const outer_;
};

// The definition that the function at `ours` hides: the next one of the same (mangled) name.
void* hidden_by(void* ours) {
  Dl_info info;
  void* found = dladdr(ours, &info) && info.dli_sname ? dlsym(RTLD_NEXT, info.dli_sname) : nullptr;
  if (!found) {
    std::fputs("tsan_absl.cc: abseil has no such function; is it linked statically?\n", stderr);
    std::abort();
  }
  return found;
}

}  // namespace

// Defines `call`, the library's own definition of `method`; its first argument is `this`.
#pragma GCC diagnostic ignored "-Wpmf-conversions"
#define REAL(result, method, ...)                                       \
  static void* const real = hidden_by(reinterpret_cast<void*>(method)); \
  result (*const call)(__VA_ARGS__) = reinterpret_cast<result (*)(__VA_ARGS__)>(real)

namespace absl {
ABSL_NAMESPACE_BEGIN

bool Condition::Eval() const {
  REAL(bool, &Condition::Eval, const Condition*);
  if (current) acquire(current);
  const bool met = call(this);
  if (current) release(current);
  return met;
}

void Mutex::Lock() {
  REAL(void, &Mutex::Lock, Mutex*);
  call(this);
  acquire(this);
}

void Mutex::Unlock() {
  REAL(void, &Mutex::Unlock, Mutex*);
  const Current scope(this);
  release(this);
  call(this);
}

bool Mutex::TryLock() {
  REAL(bool, &Mutex::TryLock, Mutex*);
  const bool locked = call(this);
  if (locked) acquire(this);
  return locked;
}

void Mutex::ReaderLock() {
  REAL(void, &Mutex::ReaderLock, Mutex*);
  call(this);
  acquire(this);
}

void Mutex::ReaderUnlock() {
  REAL(void, &Mutex::ReaderUnlock, Mutex*);
  const Current scope(this);
  release(this);
  call(this);
}

void Mutex::LockWhen(const Condition& condition) {
  REAL(void, &Mutex::LockWhen, Mutex*, const Condition&);
  const Current scope(this);
  release(this);
  call(this, condition);
  acquire(this);
}

void Mutex::Await(const Condition& condition) {
  REAL(void, &Mutex::Await, Mutex*, const Condition&);
  const Current scope(this);
  release(this);
  call(this, condition);
  acquire(this);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  REAL(bool, &Mutex::AwaitWithTimeout, Mutex*, const Condition&, Duration);
  const Current scope(this);
  release(this);
  const bool met = call(this, condition, timeout);
  acquire(this);
  return met;
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  REAL(bool, &Mutex::AwaitWithDeadline, Mutex*, const Condition&, Time);
  const Current scope(this);
  release(this);
  const bool met = call(this, condition, deadline);
  acquire(this);
  return met;
}

void CondVar::Wait(Mutex* mutex) {
  REAL(void, &CondVar::Wait, CondVar*, Mutex*);
  const Current scope(mutex);
  release(mutex);
  call(this, mutex);
  acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  REAL(bool, &CondVar::WaitWithTimeout, CondVar*, Mutex*, Duration);
  const Current scope(mutex);
  release(mutex);
  const bool timed_out = call(this, mutex, timeout);
  acquire(mutex);
  return timed_out;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  REAL(bool, &CondVar::WaitWithDeadline, CondVar*, Mutex*, Time);
  const Current scope(mutex);
  release(mutex);
  const bool timed_out = call(this, mutex, deadline);
  acquire(mutex);
  return timed_out;
}

void Notification::Notify() {
  REAL(void, &Notification::Notify, Notification*);
  release(&notified_yet_);
  call(this);
}

void Notification::WaitForNotification() const {
  REAL(void, &Notification::WaitForNotification, const Notification*);
  call(this);
  acquire(&notified_yet_);
}

bool BlockingCounter::DecrementCount() {
  REAL(bool, &BlockingCounter::DecrementCount, BlockingCounter*);
  release(this);
  return call(this);
}

void BlockingCounter::Wait() {
  REAL(void, &BlockingCounter::Wait, BlockingCounter*);
  call(this);
  acquire(this);
}

ABSL_NAMESPACE_END
}  // namespace absl

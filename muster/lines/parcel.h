// Large tensors beside the messages that they belong to.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <sys/uio.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "muster/base/cancellation.h"
#include "muster/near/near_connection.h"
#include "muster/near/near_process.h"

namespace muster {

// A line is a TCP connection that carries tensors one way, a parcel at a time:
//
//   sender                                         receiver
//     | --- its number, its length, its bytes ------> |  straight into the memory of the tensors
//     | <-- its number ------------------------------ |  all of it was read: the line is free
//
// A message that is sent another way says which parcel of which line has its tensors. Whatever goes wrong breaks the
// line, at both ends; then the message is to be sent with its bytes.
struct ParcelName {
  uint64_t line = 0;  // its key
  uint64_t number = 0;
};

// For whoever waits at a line: nothing has moved for so long.
inline constexpr std::chrono::seconds kStalled{10};

class Line {
 public:
  Line(Descriptor socket, uint64_t key) : socket_(std::move(socket)), key_(key) {
    count().fetch_add(1, std::memory_order_relaxed);
  }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  uint64_t key() const { return key_; }
  // From any thread, at any time: whoever waits for it returns.
  void break_off();
  bool broken() const { return broken_.load(std::memory_order_acquire); }
  // The same, after a look whether the other end is still there.
  bool gone();

  // Of all lines of this process, which needs descriptors for other things, too.
  static bool may_have_another();

 protected:
  ~Line() { count().fetch_sub(1, std::memory_order_relaxed); }

  const Descriptor socket_;

 private:
  static std::atomic<size_t>& count();

  const uint64_t key_;
  std::atomic<bool> broken_ = false;
};

class Parcel;

// The end that sends. Thread-safe.
class LineOut : public Line, public std::enable_shared_from_this<LineOut> {
 public:
  using Line::Line;

  // Null: the parcel before has not been confirmed, or the line is broken.
  std::shared_ptr<Parcel> take() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class Parcel;

  // Breaks the line off if it is still that parcel's.
  void break_parcel(uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  uint64_t taken_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t confirmed_ ABSL_GUARDED_BY(mu_) = 0;
  std::atomic<std::chrono::steady_clock::time_point> moved_{};  // when something was last sent
};

// Has a line to itself until it was confirmed. One thread sends it; any may break it off.
class Parcel {
 public:
  Parcel(std::shared_ptr<LineOut> line, uint64_t number) : line_(std::move(line)), number_(number) {}
  ~Parcel();  // breaks the line if something is left

  ParcelName name() const { return {line_->key(), number_}; }
  // What it sends; held until that is done. REQUIRES: contiguous, on the CPU.
  void fill(std::vector<at::Tensor> tensors);

  // Held as long as the tensors.
  void keep(std::shared_ptr<const void> more) { kept_ = std::move(more); }

  // Sends what there is room for. True: nothing more is to be done, be it that the line is broken.
  bool send_some();
  // The same, and waits for room until then.
  bool send_until(std::chrono::steady_clock::time_point until);
  void break_off() { line_->break_parcel(number_); }

 private:
  const std::shared_ptr<LineOut> line_;
  const uint64_t number_;
  uint64_t header_[3] = {};
  std::vector<at::Tensor> tensors_;
  std::shared_ptr<const void> kept_;
  std::vector<iovec> left_;
  size_t first_ = 0;  // of those that are left
};

// Sends what there is room for, and the rest in the background.
void send_in_background(std::shared_ptr<Parcel> parcel);

// The end that receives. Thread-safe.
class LineIn : public Line {
 public:
  using Line::Line;

  // False: the line is broken, now at the latest: it was so before, the sender has sent something else, nothing, or not
  // all of it until then, or the call was cancelled.
  bool receive(uint64_t number, std::span<const NearConnection::Place> places,
               std::chrono::steady_clock::time_point until, const Cancellation* cancellation = nullptr);

 private:
  bool read(void* into, size_t bytes, std::chrono::steady_clock::time_point until);

  std::atomic<bool> in_use_ = false;
};

// The lines over which this process sends to another one. Thread-safe.
class LinesOut {
 public:
  // Null: none is free.
  std::shared_ptr<Parcel> take() ABSL_LOCKS_EXCLUDED(mu_);
  void add(std::shared_ptr<LineOut> line) ABSL_LOCKS_EXCLUDED(mu_);
  // How many there are that are not broken; `look`: that the other end has not left.
  size_t size() ABSL_LOCKS_EXCLUDED(mu_);
  size_t look() ABSL_LOCKS_EXCLUDED(mu_);
  void break_all() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void drop_broken() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Mutex mu_;
  std::vector<std::shared_ptr<LineOut>> lines_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster

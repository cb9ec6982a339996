// Who is at the other end of a Unix socket, as the kernel attests it.
#pragma once

#include <sys/types.h>

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "muster/near/near_memory.h"

struct msghdr;

namespace muster {

// Closes what it holds.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }

  int number() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }

 private:
  int number_;
};

// Another process of this user on this machine. Holds on to the process, not only to its number: when the process is
// gone and its number is another one's, nothing is read. Thread-safe.
class NearProcess {
 public:
  // The process that has made or accepted the connection. Nothing for one of another user or another name space of
  // processes, and where the kernel cannot tell. Limit: a process that was gone before it was looked at may have left
  // its number to another one, so nothing may be read before a `NearMessage` from it was received after this.
  static std::optional<NearProcess> behind(const Descriptor& socket);

  pid_t id() const { return id_; }
  bool alive() const;
  // Copies the pieces out of its memory. False: it cannot be read, has no such memory, or is gone.
  bool read(const std::vector<NearPiece>& pieces) const { return read_memory(id_, pieces) && alive(); }

 private:
  NearProcess(pid_t id, Descriptor held) : id_(id), held_(std::move(held)) {}

  pid_t id_;
  Descriptor held_;  // a pidfd
};

// What came with a message that was received on a Unix socket: its sender, if the kernel tells, and the last of the
// descriptors. The others are closed.
struct Enclosed {
  pid_t sender = 0;
  Descriptor descriptor{};
};
Enclosed enclosed_in(msghdr& received);

// A message on a Unix socket, and whose it is in the eyes of the kernel.
struct NearMessage {
  size_t bytes = 0;
  pid_t sender = 0;
};

// Without waiting. False: the other end has gone, or does not read.
bool send_message(const Descriptor& socket, std::span<const char> message);

enum class Received { kMessage, kNothing, kEnd };
// Without waiting. A message longer than `into` is the end: nobody honest sends one. The sender is told where
// `tell_senders` was called before the message was sent.
Received receive_message(const Descriptor& socket, std::span<char> into, NearMessage& message);
bool tell_senders(const Descriptor& socket);

}  // namespace muster

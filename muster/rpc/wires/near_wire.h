// Small calls to a task that is a process of this machine: a message on a Unix socket each way costs a tenth of what a
// call by gRPC does.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_map.h>
#include <absl/synchronization/mutex.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "muster/near/near_process.h"
#include "muster/rpc/calls/network_readers.h"

namespace muster {

// How the two talk, with all numbers as this machine writes them. Of each wire one call at a time:
//
//   caller                               server
//     | --- kHello: the secret ----------> |  which it has told the caller by gRPC, so that it knows the caller
//     | --- kCall: method, message ------> |  as often as it likes
//     | <-- kAnswer: message ------------- |  or kRefused: a status of gRPC
//                                             or kElsewhere: the answer is too large, so ask for it by gRPC
//
// A caller that gives a call up closes the wire.
enum class NearWireWord : uint32_t { kHello = 0x6d7702, kCall, kAnswer, kRefused, kElsewhere };
struct NearWireHead {
  NearWireWord word{};
  uint32_t number = 0;  // of kCall: bytes of the method's name, which follows; of kRefused: the code
};
struct NearWireSecret {
  uint64_t high = 0, low = 0;
  bool operator==(const NearWireSecret&) const = default;
};
inline constexpr size_t kMostOnNearWire = size_t{64} << 10;  // bytes of a message

// Without waiting. False: it was not sent.
bool send_on_near_wire(const Descriptor& socket, const NearWireHead& head, std::string_view words,
                       const grpc::ByteBuffer* message = nullptr);
// What was received, until this thread receives something else. Without waiting; a message that nobody honest sends is
// the end.
struct NearWireMessage {
  NearWireHead head{};
  std::span<const char> rest{};
};
Received receive_on_near_wire(const Descriptor& socket, NearWireMessage& message);
grpc::ByteBuffer message_of(std::span<const char> bytes);

// Whether to look out for an answer before going to sleep for it, by how those before came: where one of two comes late
// it costs a core, and saves little.
class LookOutHabit {
 public:
  bool looks_out() const { return trust_ > 0; }
  void learn(bool came_soon) {
    if (came_soon) {
      trust_ = std::min(trust_ + 1, kMost);
    } else {
      trust_ = std::max(trust_ - (looks_out() ? kInVain : 1), -kInVain);
    }
  }

 private:
  static constexpr int kMost = 2, kInVain = 8;  // a look-out in vain costs what so many save

  int trust_ = 1;
};

// The caller's end of one. Used by one call at a time; `break_off` may be called by any thread meanwhile.
class NearWire {
 public:
  NearWire(Descriptor socket, uint64_t number) : socket_(std::move(socket)), number_(number) {}

  struct Answer {
    grpc::Status status{};
    grpc::ByteBuffer message{};
    bool elsewhere = false;  // it is to be asked for by gRPC
  };
  // Whether the task is still there, as far as gRPC knows: one that is stopped closes nothing.
  using Alive = std::function<bool()>;

  bool send(const std::string& method, const grpc::ByteBuffer& message) {
    return send_on_near_wire(socket_, {NearWireWord::kCall, static_cast<uint32_t>(method.size())}, method, &message);
  }
  // Of the call that was sent, read by this thread.
  Answer wait(const Alive& alive);
  // The same without waiting; nothing: it is not there yet.
  std::optional<Answer> receive();
  // Ends it, and with it the call, whose answer is then that it was lost.
  void break_off();

  bool broken() const { return broken_; }
  const Descriptor& socket() const { return socket_; }
  uint64_t number() const { return number_; }

 private:
  Answer wait_asleep(const Alive& alive);

  const Descriptor socket_;
  const uint64_t number_;
  bool broken_ = false;   // no other call can use it
  bool watched_ = false;  // by NearWireAnswers, once there was a call for it
  LookOutHabit habit_;    // of those that were waited for

  friend class NearWireAnswers;
};

// Receives the answers of calls that nobody waits for, for all wires of the process. Never destroyed, as AnswerThreads.
// Thread-safe.
class NearWireAnswers {
 public:
  static NearWireAnswers& instance();

  // Runs on a thread that is not the caller's, which it must not block.
  using Received = std::function<void(NearWire::Answer)>;
  // Sends the call. False: it was not sent, and nothing will be received.
  bool start(const std::shared_ptr<NearWire>& wire, const std::string& method, const grpc::ByteBuffer& message,
             NearWire::Alive alive, Received received);

 private:
  NearWireAnswers();
  bool next(void** tag, bool* ok, std::chrono::nanoseconds* waited);
  // What has been received; null: not all of it is there.
  NetworkEvent* answered(uint64_t number);
  bool watch(NearWire& wire) const;
  void break_those_of_the_dead();

  struct Call {
    std::shared_ptr<NearWire> wire;
    NearWire::Alive alive;
    Received received;
  };
  // Of some wires: the answers of different ones do not wait for each other.
  struct Calls {
    absl::Mutex mu;
    absl::flat_hash_map<uint64_t, Call> by_wire ABSL_GUARDED_BY(mu);
  };
  static constexpr size_t kShares = 16;
  Calls& calls_of(uint64_t number) { return calls_[number % kShares]; }

  const Descriptor watched_;  // an epoll
  std::array<Calls, kShares> calls_;
  std::atomic<std::chrono::steady_clock::rep> looked_;  // at those of the dead
  NetworkReaders readers_;                              // last: they use all of the above
};

// The wires of a channel. Thread-safe; nothing waits.
class NearWires {
 public:
  // Whether the task is to be asked for its door: once for each connection (of this key) that it has with this process.
  bool unasked(uint64_t key) {
    return asked_.load(std::memory_order_relaxed) != key && asked_.exchange(key, std::memory_order_relaxed) != key;
  }
  // Where wires can be had. `process` must be behind the door, which is empty where there is none.
  void open(std::string door, const NearWireSecret& secret, pid_t process) ABSL_LOCKS_EXCLUDED(mu_);
  // For one call. Null: there is none for it.
  std::shared_ptr<NearWire> take() ABSL_LOCKS_EXCLUDED(mu_);
  // After its call, with what came of it: none if it was not sent, or was given up.
  void give_back(std::shared_ptr<NearWire> wire, const NearWire::Answer* answer) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  std::atomic<uint64_t> asked_ = 0;

  absl::Mutex mu_;
  std::string door_ ABSL_GUARDED_BY(mu_);  // empty: there is none
  NearWireSecret secret_ ABSL_GUARDED_BY(mu_);
  pid_t process_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::shared_ptr<NearWire>> idle_ ABSL_GUARDED_BY(mu_);
  int in_use_ ABSL_GUARDED_BY(mu_) = 0;
  int failures_ ABSL_GUARDED_BY(mu_) = 0;     // since a call was last answered
  int passed_over_ ABSL_GUARDED_BY(mu_) = 0;  // calls that still go by gRPC
};

}  // namespace muster

// Which request it is: known to the server by who asks and by a number, however often it is made.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "muster/rpc/rpc.pb.h"

namespace muster {

// A channel, from its making to its end: nobody else has its number.
struct ClientId {
  uint64_t high = 0, low = 0;

  bool operator==(const ClientId&) const = default;
  template <class State>
  friend State AbslHashValue(State state, const ClientId& id) {
    return State::combine(std::move(state), id.high, id.low);
  }
};

struct RequestId {
  ClientId client{};
  uint64_t number = 0;  // 0: of a request that may be applied again
};
RequestId request_id_of(const proto::Envelope& envelope);
void set_request_id(proto::Envelope& envelope, const RequestId& id);

// Numbers the requests of a client that must be applied once, and knows for which of them the client still wants the
// answer: each request tells the server, which keeps the answers to these and to no others. Thread-safe.
class RequestNumbers {
 public:
  RequestNumbers();

  // Until it is given back, its request may be made again.
  class [[nodiscard]] Taken {
   public:
    Taken() = default;
    Taken(RequestNumbers& numbers, uint64_t number) : numbers_(&numbers), number_(number) {}
    ~Taken() { give_back(); }
    Taken(Taken&& other) noexcept : numbers_(std::exchange(other.numbers_, nullptr)), number_(other.number_) {}
    Taken& operator=(Taken&& other) noexcept {
      std::swap(numbers_, other.numbers_);
      std::swap(number_, other.number_);
      return *this;
    }

    uint64_t number() const { return number_; }  // 0: none was taken
    // The answer is there, or nobody wants it any more.
    void give_back() {
      if (RequestNumbers* numbers = std::exchange(numbers_, nullptr)) numbers->give_back(number_);
    }

   private:
    RequestNumbers* numbers_ = nullptr;
    uint64_t number_ = 0;
  };

  // The next number, written into the request with all that goes with it.
  Taken take(proto::Envelope& request) ABSL_LOCKS_EXCLUDED(mu_);
  bool any() const ABSL_LOCKS_EXCLUDED(mu_) {  // was taken
    absl::MutexLock lock(&mu_);
    return last_ > 0;
  }
  const ClientId& client() const { return client_; }

 private:
  void give_back(uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);

  const ClientId client_;

  mutable absl::Mutex mu_;
  uint64_t last_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<uint64_t> wanted_ ABSL_GUARDED_BY(mu_);  // numbers that are taken, ascending
};

}  // namespace muster

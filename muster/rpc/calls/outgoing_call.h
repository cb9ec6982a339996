#pragma once

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "muster/rpc/calls/request_numbers.h"
#include "muster/rpc/frame.h"

namespace muster {

// Goes on while the machine sleeps, as the clock of a task that was called does.
inline std::chrono::milliseconds time_since_boot() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::milliseconds(int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000);
}

// A request as it is sent, and what it lends, until its call has ended.
struct OutgoingCall {
  OutgoingCall(Frame request, RequestNumbers::Taken taken, std::shared_ptr<NearConnection> server, LinesOut* lines)
      : near(std::move(server)),
        number(std::move(taken)),
        answer_bytes(request.envelope.answer_bytes()),
        lent(encode_for({near.get(), lines}, std::move(request))) {}
  explicit OutgoingCall(grpc::ByteBuffer packed) : lent{.message = std::move(packed)} {}
  ~OutgoingCall() { end_loan(); }
  OutgoingCall(const OutgoingCall&) = delete;
  OutgoingCall& operator=(const OutgoingCall&) = delete;

  // Bytes are sent instead of lent, both ways.
  void repack() {
    end_loan();
    Frame frame = lent.frame ? *std::move(lent.frame) : decode(lent.message);
    frame.envelope.clear_near_key();
    frame.envelope.clear_caller();
    lent = {.message = encode(std::move(frame))};
  }

  void end_loan() {
    if (near) near->ledger().end(lent.loan);
    if (lent.parcel) lent.parcel->break_off();
  }

  // What it has sent apart was taken, or refused; its line is another one's.
  void answered() { lent.parcel = nullptr; }

  std::shared_ptr<NearConnection> near{};  // null: the task is not a process of this machine
  RequestNumbers::Taken number{};
  const std::chrono::milliseconds made = number.number() == 0 ? std::chrono::milliseconds(0) : time_since_boot();
  const uint64_t answer_bytes = 0;  // as it is expected to be
  LentFrame lent{};

  // That its task takes if nothing of it is sent apart: what was packed is larger there.
  int64_t bytes() const {
    return std::max(static_cast<int64_t>(lent.message.Length() + answer_bytes), weight_of(lent.message));
  }
};

}  // namespace muster

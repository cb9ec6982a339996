// How a channel makes its calls.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "muster/lines/line_visit.h"
#include "muster/near/near_visit.h"
#include "muster/rpc/calls/answer_threads.h"
#include "muster/rpc/calls/outgoing_call.h"
#include "muster/rpc/calls/request_numbers.h"
#include "muster/rpc/rpc_channel.h"
#include "muster/rpc/task_wire.h"
#include "muster/rpc/wires/near_wire.h"

namespace muster {

inline const grpc::Status kLost(grpc::StatusCode::UNAVAILABLE, "lost by a fault that a test has asked for");
// To wait for a task that has refused connections, from when gRPC is asked to try again: for a way there and back, or
// with TLS three, and a process that has just begun. gRPC's own attempts are too rare to have found it already.
inline constexpr auto kRefused = std::chrono::milliseconds(50);
// gRPC tells a call before its channel that it was cut off
inline constexpr auto kLossIsKnown = std::chrono::milliseconds(50);

inline gpr_timespec grpc_time(std::chrono::steady_clock::time_point time) {
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(time - std::chrono::steady_clock::now());
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(left.count(), GPR_TIMESPAN));
}

// What the calls of a channel hold: it lives until the last of them has ended. rpc_channel.cc has what all calls need
// and those that somebody waits for, rpc_channel_start.cc those that nobody does. Thread-safe.
class RpcChannel::Core : public std::enable_shared_from_this<Core> {
 public:
  // Clocks of the wall jump. A deadline is handed to gRPC as what is left of it.
  using Clock = std::chrono::steady_clock;

  Core(std::string address, std::string task, const ChannelOptions& options);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  const std::string& address() const { return address_; }
  const std::string& task() const { return task_; }
  bool apart() const { return !options_.near_memory || near_->apart(); }

  Frame call(const std::string& method, Frame request, const CallOptions& options);
  void start(const std::string& method, Frame request, const CallOptions& options, Done done);

 private:
  using Outgoing = OutgoingCall;
  struct Pending;

  // Of a call that is made for the first time, or again.
  Clock::time_point deadline_of(const CallOptions& options) const;
  std::unique_ptr<grpc::ClientContext> make_context(Clock::time_point deadline, const Outgoing& request,
                                                    bool again) const;
  // kNo: it is too late. Or the task refuses connections and that is to be the end, as it is unless it is waited for:
  // kGone where that is known to be because nobody listens there.
  enum class Reached { kYes, kNo, kGone };
  Reached wait_until_connected(Clock::time_point deadline, std::optional<Clock::time_point> waits_since,
                               const Cancellation* cancellation);
  // For the next call, after one that has not tried for itself: gRPC's own pauses are long.
  void connect_again_soon() const;
  void begin(const std::shared_ptr<Pending>& pending);
  void ended(const std::shared_ptr<Pending>& pending, const grpc::Status& result);
  void take_answer(const std::shared_ptr<Pending>& pending);
  void begin_again(const std::shared_ptr<Pending>& pending, const Status& why);
  void begin_after_loss(const std::shared_ptr<Pending>& pending, const Status& why);
  void begin_when_connected(const std::shared_ptr<Pending>& pending, const Status& why);
  // Of a call that could not be made: it is made again if there are new certificates to show.
  void end_unreached(const std::shared_ptr<Pending>& pending, const Status& why);
  Status explain(StatusCode code, const std::string& message) const;
  Status explain(const grpc::Status& status, const Cancellation* cancellation) const;
  // That there is no connection for good, for the credentials of one of the two; else `why`, with the note that nobody
  // listens there, if that is so. Waits for a moment.
  Status refusal_or(const Status& why);
  bool connected() const { return wire_.channel().GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY; }
  // Of a call that is nobody's: what becomes of it is not heard.
  void send_unattended(const std::string& method, const grpc::ByteBuffer& message, Clock::time_point deadline) const;
  // Tells the task that a call was cancelled: that its stream has ended says no more than that it was cut off.
  void tell_cancelled(uint64_t number) const;
  // The answer of a request that was numbered is there. The next request says so, but that may come late.
  void give_back(RequestNumbers::Taken& number, const Frame& answer, size_t kept_tensors);
  void meet_task(const Outgoing& answered);
  void want_line(LineWay way);
  void ask(const proto::MeetRequest& request, std::function<void(const Status&, const proto::MeetAnswer&)> answered);
  // A wire for a call that is made for the first time; null: it goes by gRPC.
  std::shared_ptr<NearWire> wire_for(const Outgoing& request, bool patient);
  bool begin_on_wire(const std::shared_ptr<Pending>& pending);
  // What was heard of a call on one; nothing: it was not sent.
  std::optional<NearWire::Answer> call_on_wire(const std::string& method, const Outgoing& outgoing,
                                               const CallOptions& options);
  struct Attempt {
    Clock::time_point deadline;
    bool again;
  };
  struct Heard {
    grpc::Status status{};
    grpc::ByteBuffer answer{};
    bool lost_by_test = false;
  };
  Heard call_by_grpc(const std::string& method, Outgoing& outgoing, const CallOptions& options, const Attempt& attempt);
  // Numbers it and packs it.
  Outgoing pack(Frame request, const CallOptions& options);
  Frame open(const grpc::ByteBuffer& answer, Outgoing& request, Clock::time_point until,
             const Cancellation* cancellation);
  // Says what becomes of a call, and makes it a first time if it is to be made twice.
  RpcFaults::Fate fate_of(const std::string& method, const grpc::ByteBuffer& message, Clock::time_point deadline);

  const std::string address_;
  const std::string task_;
  const ChannelOptions options_;
  TaskWire wire_;
  const std::shared_ptr<NearVisit> near_;
  const std::shared_ptr<LineVisit> lines_;  // null: all is encrypted, or none is wanted
  NearWires wires_;
  RequestNumbers numbers_;
};

// A call whose answer is received by the answer threads. It holds the channel's core, whoever else still does.
struct RpcChannel::Core::Pending {
  const std::shared_ptr<Core> core{};  // outlives the number
  std::string method{};
  std::shared_ptr<Outgoing> request{};
  Clock::time_point deadline{};
  const Cancellation* cancellation = nullptr;
  Done done{};
  int attempt = 1, attempts = 1;
  bool patient = false;
  size_t kept_tensors = SIZE_MAX;
  Clock::time_point patience{};  // until when the task is waited for
  bool refused = false;          // by the task, before it was waited for
  bool renewed = false;          // the certificates, since it was first made
  RpcFaults::Fate fate{};
  std::unique_ptr<grpc::ClientContext> context{};
  grpc::ByteBuffer answer{};
  grpc::Status status{};
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader{};  // ends before its context
  Cancellation::Registration registration{};

  void send(grpc::GenericStub& stub, std::function<void()> received) {
    AnswerThreads& threads = AnswerThreads::instance();
    std::shared_ptr<Parcel> parcel = request->lent.parcel;  // once it is sent, the call is another thread's
    reader = stub.PrepareUnaryCall(context.get(), method, request->lent.message, &threads.queue());
    reader->StartCall();
    reader->Finish(&answer, &status, threads.when_done(std::move(received)));
    if (parcel) send_in_background(std::move(parcel));
  }

  void end(const Status& result, Frame frame) {
    request->number.give_back();
    done(result, std::move(frame));
  }
};

}  // namespace muster

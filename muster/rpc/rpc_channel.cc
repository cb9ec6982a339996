#include "muster/rpc/rpc_channel.h"

#include <grpcpp/alarm.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <time.h>

#include <thread>

#include "muster/base/blocking.h"
#include "muster/base/log.h"
#include "muster/lines/line_visit.h"
#include "muster/near/near_visit.h"
#include "muster/rpc/answer_threads.h"
#include "muster/rpc/request_numbers.h"
#include "muster/rpc/service_names.h"
#include "muster/rpc/task_wire.h"

namespace muster {
namespace {

// Clocks of the wall jump. A deadline is handed to gRPC as what is left of it.
using Clock = std::chrono::steady_clock;

const grpc::Status kLost(grpc::StatusCode::UNAVAILABLE, "lost by a fault that a test has asked for");
constexpr auto kRefused = std::chrono::milliseconds(10);  // to wait for a task that has refused a connection
constexpr auto kLossIsKnown =
    std::chrono::milliseconds(50);  // gRPC tells a call before its channel that it was cut off
constexpr auto kMeetTimeout = std::chrono::seconds(10);
constexpr auto kTellTimeout = std::chrono::seconds(10);
// Of a call that takes as long as it takes: whether the task is alive is found out by pings.
constexpr std::chrono::hours kPatient(24 * 365);
constexpr auto kMoment = std::chrono::microseconds(200);  // less than it takes to wake two threads
constexpr auto kSilence = std::chrono::seconds(2);        // before somebody who waits is told for whom
constexpr auto kLook = std::chrono::milliseconds(100);    // at whether the caller has given up
constexpr int64_t kLargeAnswer = 64 << 10;                // bytes, which the task need not keep until the next request

gpr_timespec grpc_time(Clock::time_point time) {
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(time - Clock::now());
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(left.count(), GPR_TIMESPAN));
}

// Goes on while the machine sleeps, as the clock of a task that was called does.
std::chrono::milliseconds time_since_boot() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::milliseconds(int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000);
}

int64_t bytes_of_tensors(const Frame& frame) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : frame.tensors) {
    if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

}  // namespace

class RpcChannel::Core : public std::enable_shared_from_this<Core> {
 public:
  Core(std::string address, std::string task, const ChannelOptions& options);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  const std::string& address() const { return address_; }
  const std::string& task() const { return task_; }

  Frame call(const std::string& method, Frame request, const CallOptions& options);
  void start(const std::string& method, Frame request, const CallOptions& options, Done done);

 private:
  struct Outgoing;
  struct Pending;

  // Of a call that is made for the first time, or again.
  Clock::time_point deadline_of(const CallOptions& options) const;
  std::unique_ptr<grpc::ClientContext> make_context(Clock::time_point deadline, const Outgoing* again) const;
  // False: it is too late, or the task refuses connections (its process is gone) and that is to be the end.
  bool wait_until_connected(Clock::time_point deadline, bool again_when_refused,
                            const Cancellation* cancellation) const;
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
  // That there is no connection for good, for the credentials of one of the two; else `why`. Waits for a moment.
  Status refusal_or(const Status& why);
  bool connected() const { return wire_.channel().GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY; }
  // Of a call that is nobody's: what becomes of it is not heard.
  void send_unattended(const std::string& method, const grpc::ByteBuffer& message, Clock::time_point deadline) const;
  // Tells the task that a call was cancelled: that its stream has ended says no more than that it was cut off.
  void tell_cancelled(uint64_t number) const;
  // The answer of a request that was numbered is there. The next request says so, but that may come late.
  void give_back(RequestNumbers::Taken& number, const Frame& answer);
  void meet_task();
  void want_line(LineWay way);
  void ask(const proto::MeetRequest& request, std::function<void(const Status&, const proto::MeetAnswer&)> answered);
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
  RequestNumbers numbers_;
};

// A request as it is sent, and what it lends, until its call has ended.
struct RpcChannel::Core::Outgoing {
  Outgoing(Frame request, RequestNumbers::Taken taken, std::shared_ptr<NearConnection> server, LinesOut* lines)
      : near(std::move(server)), number(std::move(taken)), lent(encode_for({near.get(), lines}, std::move(request))) {}
  explicit Outgoing(grpc::ByteBuffer packed) : lent{.message = std::move(packed)} {}
  ~Outgoing() { end_loan(); }
  Outgoing(const Outgoing&) = delete;
  Outgoing& operator=(const Outgoing&) = delete;

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
  LentFrame lent{};
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

RpcChannel::RpcChannel(std::string address, std::string task, const ChannelOptions& options)
    : core_(std::make_shared<Core>(std::move(address), std::move(task), options)) {}
RpcChannel::~RpcChannel() = default;
const std::string& RpcChannel::address() const { return core_->address(); }
const std::string& RpcChannel::task() const { return core_->task(); }
Frame RpcChannel::call(const std::string& method, Frame request, const CallOptions& options) {
  return core_->call(method, std::move(request), options);
}
void RpcChannel::start(const std::string& method, Frame request, const CallOptions& options, Done done) {
  core_->start(method, std::move(request), options, std::move(done));
}

RpcChannel::Core::Core(std::string address, std::string task, const ChannelOptions& options)
    : address_(std::move(address)),
      task_(std::move(task)),
      options_(options),
      wire_(address_, task_, options_.credentials),
      near_(std::make_shared<NearVisit>(task_)),
      lines_(options_.lines && !options_.credentials.tls ? std::make_shared<LineVisit>(address_) : nullptr) {}

// The task need not keep the last answers for an hour.
RpcChannel::Core::~Core() {
  if (!numbers_.any() || !connected()) return;
  Frame frame;
  set_request_id(frame.envelope, {numbers_.client(), 0});
  frame.envelope.set_task(task_);
  send_unattended(call_rpc::kLeave, encode(std::move(frame)), Clock::now() + kTellTimeout);
}

Status RpcChannel::Core::explain(StatusCode code, const std::string& message) const {
  return {code, str_cat(task_.empty() ? "task" : task_, " at ", address_, ": ", message), task_};
}

Status RpcChannel::Core::explain(const grpc::Status& status, const Cancellation* cancellation) const {
  const auto code = static_cast<StatusCode>(status.error_code());
  // What a caller has not given up, gRPC has: it does so at a server that stops, and says no more.
  const bool given_up = cancellation != nullptr && cancellation->cancelled();
  if (code == StatusCode::kCancelled && !given_up) return explain(StatusCode::kUnavailable, "the server stops");
  return explain(code, status.error_message());
}

Status RpcChannel::Core::refusal_or(const Status& why) {
  const Waiting waiting;
  const std::optional<std::string> refusal = wire_.refusal();
  return refusal ? explain(StatusCode::kUnauthenticated, *refusal) : why;
}

std::unique_ptr<grpc::ClientContext> RpcChannel::Core::make_context(Clock::time_point deadline,
                                                                    const Outgoing* again) const {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(grpc_time(deadline));
  const std::string& token = options_.credentials.token;
  if (!token.empty()) context->AddMetadata("authorization", "Bearer " + token);
  if (again != nullptr && again->number.number() != 0) {
    // At least a moment, since 0 says that it was not made before.
    const auto age = std::max(time_since_boot() - again->made, std::chrono::milliseconds(1));
    context->AddMetadata(kAgeOfRequest, std::to_string(age.count()));
  }
  return context;
}

// Throws LoanLost if the call is to be made again with `repack`ed bytes.
Frame RpcChannel::Core::open(const grpc::ByteBuffer& answer, Outgoing& request, Clock::time_point until,
                             const Cancellation* cancellation) {
  request.answered();
  const uint64_t key = request.near ? request.near->key() : 0;
  Frame frame;
  try {
    frame = decode(answer, {.lender = [&](uint64_t of) { return of == key ? request.near : nullptr; },
                            .line = [this](uint64_t of) { return lines_ ? lines_->in(of) : nullptr; },
                            .until = until,
                            .cancellation = cancellation});
  } catch (const LoanLost&) {
    near_->distrust(key);
    throw;
  }
  if (frame.envelope.near_key() != key) near_->forget(key);
  if (frame.envelope.loan_refused()) {
    near_->distrust(key);
    throw LoanLost(Status(StatusCode::kUnavailable, "the task cannot read this process's memory"));
  }
  if (request.lent.wants_line) want_line(LineWay::kToDoor);
  if (frame.envelope.wants_line()) want_line(LineWay::kFromDoor);
  if (frame.envelope.has_loan() && request.near) {
    request.near->give_back({frame.envelope.loan().slip(), frame.envelope.loan().number()});
  }
  if (frame.envelope.has_error()) throw Error(from_proto(frame.envelope.error()));
  return frame;
}

// The calls hold all they need: nobody waits for them.
void RpcChannel::Core::meet_task() {
  if (!options_.near_memory || !near_->unmet()) return;
  near_->meet([self = shared_from_this()](bool knocked, NearVisit::Answered answered) {
    proto::MeetRequest request;
    request.set_knocked(knocked);
    self->ask(request, [answered = std::move(answered)](const Status& status, const proto::MeetAnswer& answer) {
      answered(status, answer.door());
    });
  });
}

void RpcChannel::Core::want_line(LineWay way) {
  // Where memory is read, nothing large is sent.
  if (!lines_ || (options_.near_memory && !near_->apart())) return;
  lines_->want(
      way,
      {.ask =
           [self = shared_from_this()](uint64_t key, LineVisit::Means::Answered answered) {
             proto::MeetRequest request;
             request.set_lines(true);
             request.set_line(key);
             self->ask(request, [answered = std::move(answered)](const Status& status, const proto::MeetAnswer& at) {
               answered(status, {.port = at.line_port(), .ip4_only = at.line_ip4_only()}, at.line_let_in());
             });
           },
       .run_in_background = [](std::function<void()> work) { AnswerThreads::instance().run_slow(std::move(work)); }});
}

void RpcChannel::Core::ask(const proto::MeetRequest& request,
                           std::function<void(const Status&, const proto::MeetAnswer&)> answered) {
  Frame frame = with_header(request);
  frame.envelope.set_task(task_);
  auto call = std::make_shared<Pending>();
  call->method = call_rpc::kMeet;
  call->request = std::make_shared<Outgoing>(encode(std::move(frame)));
  call->context = make_context(Clock::now() + kMeetTimeout, nullptr);
  call->send(wire_.stub(), [self = shared_from_this(), call, answered = std::move(answered)] {
    Status status;
    proto::MeetAnswer answer;
    try {
      if (!call->status.ok()) throw unavailable(call->status.error_message());
      answer = header_of<proto::MeetAnswer>(decode(call->answer).envelope);
    } catch (...) {
      status = status_of(std::current_exception());
    }
    answered(status, answer);
  });
}

Clock::time_point RpcChannel::Core::deadline_of(const CallOptions& options) const {
  const std::chrono::milliseconds usual = options.patient ? kPatient : options_.call_timeout;
  return Clock::now() + std::min<std::chrono::milliseconds>(options.timeout.value_or(usual), kPatient);
}

RpcChannel::Core::Outgoing RpcChannel::Core::pack(Frame request, const CallOptions& options) {
  request.envelope.set_task(task_);
  if (lines_) request.envelope.set_caller(lines_->caller());
  RequestNumbers::Taken taken;
  if (options.once) taken = numbers_.take(request.envelope);
  // A fault may make a call twice, but nothing is sent apart a second time.
  LinesOut* const lines = lines_ && !options_.faults ? &lines_->out() : nullptr;
  return Outgoing(std::move(request), std::move(taken), near_->connection(), lines);
}

Frame RpcChannel::Core::call(const std::string& method, Frame request, const CallOptions& options) {
  const auto began = Clock::now();
  const auto deadline = deadline_of(options);
  const auto give_up = std::min(deadline, Clock::now() + options_.connect_timeout);
  Outgoing outgoing = pack(std::move(request), options);
  bool again = false, told = false;
  for (int attempt = 1;; ++attempt, again = true) {
    if (options.cancellation != nullptr) options.cancellation->throw_if_cancelled();
    if (outgoing.lent.parcel && again) outgoing.repack();
    auto context = make_context(deadline, again ? &outgoing : nullptr);
    Cancellation::Registration registration;
    if (options.cancellation != nullptr) {
      registration = options.cancellation->on_cancel([&](const Status&) {
        context->TryCancel();
        tell_cancelled(outgoing.number.number());
      });
    }
    // The queue is of this thread alone, so that the answer is read by the thread that waits for it.
    thread_local grpc::CompletionQueue queue;
    grpc::ByteBuffer answer;
    grpc::Status status;
    const RpcFaults::Fate fate = fate_of(method, outgoing.lent.message, deadline);
    if (fate.request_lost) {
      status = kLost;
    } else {
      auto reader = wire_.stub().PrepareUnaryCall(context.get(), method, outgoing.lent.message, &queue);
      reader->StartCall();
      reader->Finish(&answer, &status, nullptr);
      void* tag = nullptr;
      bool ok = false, ended = false;
      // Whoever was to receive it may have answered something else.
      Parcel* const parcel = outgoing.lent.parcel.get();
      while (parcel != nullptr && !ended && !parcel->send_until(Clock::now() + kLook)) {
        ended = queue.AsyncNext(&tag, &ok, grpc_time(Clock::now())) != grpc::CompletionQueue::TIMEOUT;
      }
      // While it waits in gRPC, a thread that reads a server's network goes on doing so; only what arrives is not
      // handled.
      if (!ended && queue.AsyncNext(&tag, &ok, grpc_time(Clock::now() + kMoment)) == grpc::CompletionQueue::TIMEOUT) {
        const Waiting waiting;
        queue.Next(&tag, &ok);
      }
      if (fate.response_lost && status.ok()) status = kLost;
    }
    registration.reset();
    if (status.ok()) {
      wire_.answered();
      meet_task();
      try {
        Frame frame = open(answer, outgoing, deadline, options.cancellation);
        give_back(outgoing.number, frame);
        return frame;
      } catch (const LoanLost&) {
        outgoing.repack();
        continue;
      }
    }
    if (options.cancellation != nullptr) options.cancellation->throw_if_cancelled();
    const Status why = explain(status, options.cancellation);
    if (why.code() != StatusCode::kUnavailable) throw Error(why);
    bool answered = connected();
    if (answered && !fate.request_lost && !fate.response_lost) {
      const Waiting waiting;
      answered = !wire_.channel().WaitForStateChange(GRPC_CHANNEL_READY, grpc_time(Clock::now() + kLossIsKnown));
    }
    const bool waits = options.wait_until_up && Clock::now() < give_up;
    const auto patience = waits ? std::min(give_up, Clock::now() + TaskWire::kAskAgain)
                                : std::min(deadline, Clock::now() + options_.reconnect);
    if (waits && !told && Clock::now() - began > kSilence) {
      MUSTER_LOG(info) << "waiting for " << (task_.empty() ? "a task" : task_) << " at " << address_ << ", for "
                       << std::chrono::duration_cast<std::chrono::seconds>(give_up - began).count()
                       << " s at most: " << status.error_message();
      told = true;
    }
    const int attempts = options.attempts.value_or(options_.attempts);
    // Whoever waits would wait for nothing if the task does not want this caller.
    if (waits && !answered && !wire_.renew()) {
      if (const Status said = refusal_or(why); said.code() != why.code()) throw Error(said);
    }
    const bool back = (waits || attempt < attempts) && wait_until_connected(patience, waits, options.cancellation);
    if (!back && !waits) {
      if (answered || attempt > attempts) throw Error(why);
      if (!wire_.renew()) throw Error(refusal_or(why));
    }
    // Somebody answers, but it is another task, or the old one which stops.
    if (options.wait_until_up && answered) {
      const Waiting waiting;
      std::this_thread::sleep_for(kLook);
    }
  }
}

// gRPC connects, with growing pauses, only while somebody waits for it.
bool RpcChannel::Core::wait_until_connected(Clock::time_point deadline, bool again_when_refused,
                                            const Cancellation* cancellation) const {
  const Waiting waiting;
  if (!again_when_refused && wire_.channel().GetState(/*try_to_connect=*/true) == GRPC_CHANNEL_TRANSIENT_FAILURE) {
    // That may be old: gRPC pauses before it tries again, and says nothing of another refusal.
    grpc::experimental::ChannelResetConnectionBackoff(&wire_.channel());
    return wire_.channel().WaitForConnected(grpc_time(std::min(deadline, Clock::now() + kRefused)));
  }
  while (Clock::now() < deadline) {
    if (cancellation != nullptr) cancellation->throw_if_cancelled();
    const grpc_connectivity_state state = wire_.channel().GetState(/*try_to_connect=*/true);
    if (state == GRPC_CHANNEL_READY) return true;
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE && !again_when_refused) return false;
    wire_.channel().WaitForStateChange(state, grpc_time(std::min(deadline, Clock::now() + kLook)));
  }
  return false;
}

void RpcChannel::Core::start(const std::string& method, Frame request, const CallOptions& options, Done done) {
  auto outgoing = std::shared_ptr<Outgoing>(new Outgoing(pack(std::move(request), options)));
  begin(std::make_shared<Pending>(Pending{.core = shared_from_this(),
                                          .method = method,
                                          .request = std::move(outgoing),
                                          .deadline = deadline_of(options),
                                          .cancellation = options.cancellation,
                                          .done = std::move(done),
                                          .attempts = options.attempts.value_or(options_.attempts)}));
}

RpcFaults::Fate RpcChannel::Core::fate_of(const std::string& method, const grpc::ByteBuffer& message,
                                          Clock::time_point deadline) {
  if (!options_.faults) return {};
  const RpcFaults::Fate fate = options_.faults->draw(method);
  if (fate.in_flight) send_unattended(method, message, deadline);
  return fate;
}

void RpcChannel::Core::send_unattended(const std::string& method, const grpc::ByteBuffer& message,
                                       Clock::time_point deadline) const {
  auto call = std::make_shared<Pending>();
  call->method = method;
  call->request = std::make_shared<Outgoing>(message);
  call->context = make_context(deadline, nullptr);  // holds gRPC's channel, also when this is gone
  call->send(wire_.stub(), [call] {});
}

void RpcChannel::Core::tell_cancelled(uint64_t number) const {
  if (number == 0) return;
  Frame frame;
  set_request_id(frame.envelope, {numbers_.client(), number});
  frame.envelope.set_task(task_);
  send_unattended(call_rpc::kCancel, encode(std::move(frame)), Clock::now() + kTellTimeout);
}

void RpcChannel::Core::give_back(RequestNumbers::Taken& number, const Frame& answer) {
  const bool large = number.number() != 0 && bytes_of_tensors(answer) > kLargeAnswer;
  number.give_back();
  if (!large) return;
  Frame frame;
  numbers_.take(frame.envelope).give_back();
  frame.envelope.set_task(task_);
  send_unattended(call_rpc::kAcknowledge, encode(std::move(frame)), Clock::now() + kTellTimeout);
}

void RpcChannel::Core::begin(const std::shared_ptr<Pending>& pending) {
  Pending& call = *pending;
  call.reader.reset();
  call.answer.Clear();
  if (call.request->lent.parcel && call.attempt > 1) call.request->repack();
  call.context = make_context(call.deadline, call.attempt > 1 ? call.request.get() : nullptr);
  if (call.cancellation != nullptr) {
    call.registration = call.cancellation->on_cancel(
        [core = call.core, number = call.request->number.number(), context = call.context.get()](const Status&) {
          context->TryCancel();
          core->tell_cancelled(number);
        });
  }
  call.fate = fate_of(call.method, call.request->lent.message, call.deadline);
  if (!call.fate.request_lost)
    return call.send(wire_.stub(), [pending] { pending->core->ended(pending, pending->status); });
  auto alarm = std::make_shared<grpc::Alarm>();
  AnswerThreads& threads = AnswerThreads::instance();
  alarm->Set(&threads.queue(), gpr_now(GPR_CLOCK_MONOTONIC),
             threads.when_done([alarm, pending] { pending->core->ended(pending, kLost); }));
}

void RpcChannel::Core::ended(const std::shared_ptr<Pending>& pending, const grpc::Status& result) {
  Pending& call = *pending;
  call.registration.reset();
  const grpc::Status& status = call.fate.response_lost && result.ok() ? kLost : result;
  if (!status.ok()) {
    if (call.request->lent.parcel) call.request->lent.parcel->break_off();
    const Status why = explain(status, call.cancellation);
    const bool cancelled = call.cancellation != nullptr && call.cancellation->cancelled();
    if (why.code() != StatusCode::kUnavailable || cancelled) return call.end(why, {});
    if (call.attempt >= call.attempts) return end_unreached(pending, why);
    ++call.attempt;
    return begin_again(pending, why);
  }
  wire_.answered();
  meet_task();
  if (!comes_with_parcel(call.answer)) return take_answer(pending);
  AnswerThreads::instance().run_slow([this, pending] { take_answer(pending); });
}

void RpcChannel::Core::take_answer(const std::shared_ptr<Pending>& pending) {
  Pending& call = *pending;
  Status outcome;
  Frame frame;
  try {
    frame = open(call.answer, *call.request, call.deadline, call.cancellation);
    give_back(call.request->number, frame);
  } catch (const LoanLost&) {
    call.request->repack();
    return begin(pending);
  } catch (...) {
    outcome = status_of(std::current_exception());
  }
  call.end(outcome, std::move(frame));
}

// As wait_until_connected, without a thread.
void RpcChannel::Core::begin_again(const std::shared_ptr<Pending>& pending, const Status& why) {
  const bool lost_by_test = pending->fate.request_lost || pending->fate.response_lost;
  if (!connected() || lost_by_test) return begin_after_loss(pending, why);
  AnswerThreads& threads = AnswerThreads::instance();
  wire_.channel().NotifyOnStateChange(
      GRPC_CHANNEL_READY, grpc_time(Clock::now() + kLossIsKnown), &threads.queue(),
      threads.when_done([pending, why] { pending->core->begin_after_loss(pending, why); }));
}

void RpcChannel::Core::begin_after_loss(const std::shared_ptr<Pending>& pending, const Status& why) {
  pending->patience = Clock::now() + options_.reconnect;
  pending->refused = wire_.channel().GetState(/*try_to_connect=*/true) == GRPC_CHANNEL_TRANSIENT_FAILURE;
  if (pending->refused) {
    grpc::experimental::ChannelResetConnectionBackoff(&wire_.channel());
    pending->patience = std::min(pending->patience, Clock::now() + kRefused);
  }
  begin_when_connected(pending, why);
}

void RpcChannel::Core::begin_when_connected(const std::shared_ptr<Pending>& pending, const Status& why) {
  const grpc_connectivity_state state = wire_.channel().GetState(/*try_to_connect=*/true);
  if (state == GRPC_CHANNEL_READY) return begin(pending);
  if (Clock::now() >= pending->patience || (state == GRPC_CHANNEL_TRANSIENT_FAILURE && !pending->refused))
    return end_unreached(pending, why);
  AnswerThreads& threads = AnswerThreads::instance();
  wire_.channel().NotifyOnStateChange(
      state, grpc_time(pending->patience), &threads.queue(),
      threads.when_done([pending, why] { pending->core->begin_when_connected(pending, why); }));
}

void RpcChannel::Core::end_unreached(const std::shared_ptr<Pending>& pending, const Status& why) {
  if (connected()) return pending->end(why, {});
  if (!pending->renewed && wire_.renew()) {
    pending->renewed = true;
    return begin(pending);
  }
  // Who was let in with what is shown now is not refused for it, and a lost task is to cost no more than that.
  if (wire_.accepted() || wire_.just_asked()) return pending->end(why, {});
  AnswerThreads::instance().run_slow([pending, why] { pending->end(pending->core->refusal_or(why), {}); });
}

}  // namespace muster

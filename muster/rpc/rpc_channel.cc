#include "muster/rpc/rpc_channel.h"

#include <algorithm>
#include <optional>
#include <thread>

#include "muster/base/blocking.h"
#include "muster/base/log.h"
#include "muster/rpc/calls/nobody_listens.h"
#include "muster/rpc/rpc_channel_core.h"
#include "muster/rpc/service_names.h"

namespace muster {
namespace {

constexpr auto kMeetTimeout = std::chrono::seconds(10);
constexpr auto kTellTimeout = std::chrono::seconds(10);
// Of a call that takes as long as it takes: whether the task is alive is found out by pings.
constexpr std::chrono::hours kPatient(24 * 365);
constexpr auto kMoment = std::chrono::microseconds(200);  // less than it takes to wake two threads
constexpr auto kSilence = std::chrono::seconds(2);        // before somebody who waits is told for whom
constexpr auto kLook = std::chrono::milliseconds(100);    // at whether the caller has given up
constexpr auto kSoon = std::chrono::milliseconds(20);     // before a task that has just been waited for is tried again
constexpr size_t kLargeMessage = 1 << 20;                 // bytes
constexpr int64_t kLargeAnswer = 64 << 10;                // bytes, which the task need not keep until the next request

int64_t bytes_of_first(const std::vector<at::Tensor>& tensors, size_t count) {
  int64_t bytes = 0;
  for (size_t i = 0; i < std::min(count, tensors.size()); ++i) {
    if (tensors[i].defined()) bytes += static_cast<int64_t>(tensors[i].nbytes());
  }
  return bytes;
}

// Null: it is gone. Statics of the program outlive what the main thread has of its own, and may call at their end.
grpc::CompletionQueue* queue_of_thread() {
  thread_local bool gone = false;
  struct Owner {
    ~Owner() { gone = true; }
    grpc::CompletionQueue queue;
  };
  if (gone) return nullptr;
  thread_local Owner owner;
  return &owner.queue;
}

}  // namespace

RpcChannel::RpcChannel(std::string address, std::string task, const ChannelOptions& options)
    : core_(std::make_shared<Core>(std::move(address), std::move(task), options)) {}
RpcChannel::~RpcChannel() = default;
const std::string& RpcChannel::address() const { return core_->address(); }
const std::string& RpcChannel::task() const { return core_->task(); }
bool RpcChannel::apart() const { return core_->apart(); }
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
  if (wire_.is_gone()) return nobody_there(why);
  const std::optional<std::string> refusal = wire_.refusal();
  return refusal ? explain(StatusCode::kUnauthenticated, *refusal) : why;
}

std::unique_ptr<grpc::ClientContext> RpcChannel::Core::make_context(Clock::time_point deadline, const Outgoing& request,
                                                                    bool again) const {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(grpc_time(deadline));
  const std::string& token = options_.credentials.token;
  if (!token.empty()) context->AddMetadata("authorization", "Bearer " + token);
  // What is not sent apart is not to be read before there is room for it.
  if (request.lent.message.Length() > kLargeMessage) {
    context->AddMetadata(kBytesOfRequest, std::to_string(request.bytes()));
  }
  if (again && request.number.number() != 0) {
    // At least a moment, since 0 says that it was not made before.
    const auto age = std::max(time_since_boot() - request.made, std::chrono::milliseconds(1));
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
void RpcChannel::Core::meet_task(const Outgoing& answered) {
  if (!options_.near_memory) return;
  if (answered.near && wires_.unasked(answered.near->key())) {
    proto::MeetRequest request;
    request.set_wires(true);
    ask(request, [self = shared_from_this(), process = answered.near->process().id()](const Status& status,
                                                                                      const proto::MeetAnswer& at) {
      if (status.ok()) self->wires_.open(at.wire_door(), {at.wire_secret_high(), at.wire_secret_low()}, process);
    });
  }
  if (!near_->unmet()) return;
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
  if (!lines_ || !apart()) return;
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
  call->context = make_context(Clock::now() + kMeetTimeout, *call->request, /*again=*/false);
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

RpcChannel::Core::Clock::time_point RpcChannel::Core::deadline_of(const CallOptions& options) const {
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
    auto near = again ? std::nullopt : call_on_wire(method, outgoing, options);
    if (near && near->elsewhere) continue;
    Heard heard = near ? Heard{std::move(near->status), std::move(near->message)}
                       : call_by_grpc(method, outgoing, options, {deadline, again});
    const grpc::Status& status = heard.status;
    if (status.ok()) {
      wire_.answered();
      meet_task(outgoing);
      try {
        Frame frame = open(heard.answer, outgoing, deadline, options.cancellation);
        give_back(outgoing.number, frame, options.kept_tensors);
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
    if (answered && !heard.lost_by_test) {
      const Waiting waiting;
      answered = !wire_.channel().WaitForStateChange(GRPC_CHANNEL_READY, grpc_time(Clock::now() + kLossIsKnown));
    }
    const bool waits = options.wait_until_up && Clock::now() < give_up;
    const auto patience = waits ? std::min(give_up, Clock::now() + TaskWire::kAskAgain)
                                : std::min(deadline, Clock::now() + options_.reconnect);
    const int attempts = options.attempts.value_or(options_.attempts);
    Status found = why;
    // Whoever waits would wait for nothing if the task does not want this caller.
    if (waits && !answered && !wire_.renew()) {
      found = refusal_or(why);
      if (found.code() != why.code()) throw Error(found);
    }
    if (waits && !told && Clock::now() - began > kSilence) {
      MUSTER_LOG(info) << "waiting for " << (task_.empty() ? "a task" : task_) << " at " << address_ << ", for "
                       << std::chrono::duration_cast<std::chrono::seconds>(give_up - began).count() << " s at most"
                       << (is_nobody_there(found) ? "" : ": " + status.error_message());
      told = true;
    }
    const auto waits_since = waits ? std::optional(began) : std::nullopt;
    Reached reached = Reached::kNo;
    if (waits || attempt < attempts) reached = wait_until_connected(patience, waits_since, options.cancellation);
    if (reached != Reached::kYes && !waits) {
      if (attempts <= 1) connect_again_soon();
      if (answered || attempt > attempts) throw Error(why);
      if (!wire_.renew()) throw Error(reached == Reached::kGone ? nobody_there(why) : refusal_or(why));
    }
    // Somebody answers, but it is another task, or the old one which stops.
    if (options.wait_until_up && answered) {
      const Waiting waiting;
      std::this_thread::sleep_for(kLook);
    }
  }
}

std::optional<NearWire::Answer> RpcChannel::Core::call_on_wire(const std::string& method, const Outgoing& outgoing,
                                                               const CallOptions& options) {
  const std::shared_ptr<NearWire> wire = wire_for(outgoing, options.patient && !options.timeout);
  if (!wire) return std::nullopt;
  std::optional<NearWire::Answer> answer;
  {
    Cancellation::Registration registration;
    if (options.cancellation != nullptr) {
      registration = options.cancellation->on_cancel([&](const Status&) {
        wire->break_off();
        tell_cancelled(outgoing.number.number());
      });
    }
    if (wire->send(method, outgoing.lent.message)) answer = wire->wait([this] { return connected(); });
  }
  const bool given_up = options.cancellation != nullptr && options.cancellation->cancelled();
  wires_.give_back(wire, given_up || !answer ? nullptr : &*answer);
  return answer;
}

RpcChannel::Core::Heard RpcChannel::Core::call_by_grpc(const std::string& method, Outgoing& outgoing,
                                                       const CallOptions& options, const Attempt& attempt) {
  auto context = make_context(attempt.deadline, outgoing, attempt.again);
  Cancellation::Registration registration;
  if (options.cancellation != nullptr) {
    registration = options.cancellation->on_cancel([&](const Status&) {
      context->TryCancel();
      tell_cancelled(outgoing.number.number());
    });
  }
  const RpcFaults::Fate fate = fate_of(method, outgoing.lent.message, attempt.deadline);
  Heard heard{.lost_by_test = fate.request_lost || fate.response_lost};
  if (fate.request_lost) {
    heard.status = kLost;
    return heard;
  }
  // The queue is of this thread alone, so that the answer is read by the thread that waits for it.
  std::optional<grpc::CompletionQueue> of_this_call;
  grpc::CompletionQueue* const own = queue_of_thread();
  grpc::CompletionQueue& queue = own != nullptr ? *own : of_this_call.emplace();
  auto reader = wire_.stub().PrepareUnaryCall(context.get(), method, outgoing.lent.message, &queue);
  reader->StartCall();
  reader->Finish(&heard.answer, &heard.status, nullptr);
  void* tag = nullptr;
  bool ok = false, ended = false;
  // Whoever was to receive it may have answered something else.
  Parcel* const parcel = outgoing.lent.parcel.get();
  while (parcel != nullptr && !ended && !parcel->send_until(Clock::now() + kLook)) {
    ended = queue.AsyncNext(&tag, &ok, grpc_time(Clock::now())) != grpc::CompletionQueue::TIMEOUT;
  }
  // While it waits in gRPC, a thread that reads a server's network goes on doing so; only what arrives is not handled.
  if (!ended && queue.AsyncNext(&tag, &ok, grpc_time(Clock::now() + kMoment)) == grpc::CompletionQueue::TIMEOUT) {
    const Waiting waiting;
    queue.Next(&tag, &ok);
  }
  if (fate.response_lost && heard.status.ok()) heard.status = kLost;
  return heard;
}

// gRPC's own pauses are too long for somebody who waits: it is asked to try earlier, the rarer the longer that goes on.
RpcChannel::Core::Reached RpcChannel::Core::wait_until_connected(Clock::time_point deadline,
                                                                 std::optional<Clock::time_point> waits_since,
                                                                 const Cancellation* cancellation) {
  const Waiting waiting;
  if (!waits_since && wire_.channel().GetState(/*try_to_connect=*/true) == GRPC_CHANNEL_TRANSIENT_FAILURE) {
    // That may be old: gRPC pauses before it tries again, and says nothing of another refusal.
    grpc::experimental::ChannelResetConnectionBackoff(&wire_.channel());
    const auto soon = std::min(deadline, Clock::now() + kRefused);
    if (wire_.channel().WaitForConnected(grpc_time(soon))) return Reached::kYes;
    if (wire_.is_gone()) return Reached::kGone;
    // Somebody has begun to listen there, or this machine is too busy for all to happen within a moment.
    grpc::experimental::ChannelResetConnectionBackoff(&wire_.channel());
    return wire_.channel().WaitForConnected(grpc_time(deadline)) ? Reached::kYes : Reached::kNo;
  }
  Clock::time_point try_at = Clock::now();
  while (Clock::now() < deadline) {
    if (cancellation != nullptr) cancellation->throw_if_cancelled();
    const grpc_connectivity_state state = wire_.channel().GetState(/*try_to_connect=*/true);
    if (state == GRPC_CHANNEL_READY) return Reached::kYes;
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE && !waits_since) return Reached::kNo;
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE && Clock::now() >= try_at) {
      grpc::experimental::ChannelResetConnectionBackoff(&wire_.channel());
      try_at =
          Clock::now() + std::clamp<Clock::duration>((Clock::now() - *waits_since) / 8, kSoon, TaskWire::kAskAgain);
    }
    const Clock::time_point look = std::min(deadline, Clock::now() + kLook);
    wire_.channel().WaitForStateChange(
        state, grpc_time(state == GRPC_CHANNEL_TRANSIENT_FAILURE ? std::min(look, try_at) : look));
  }
  return Reached::kNo;
}

void RpcChannel::Core::connect_again_soon() const {
  if (wire_.channel().GetState(/*try_to_connect=*/true) != GRPC_CHANNEL_TRANSIENT_FAILURE) return;
  grpc::experimental::ChannelResetConnectionBackoff(&wire_.channel());
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
  call->context =
      make_context(deadline, *call->request, /*again=*/false);  // holds gRPC's channel, also when this is gone
  call->send(wire_.stub(), [call] {});
}

void RpcChannel::Core::tell_cancelled(uint64_t number) const {
  if (number == 0) return;
  Frame frame;
  set_request_id(frame.envelope, {numbers_.client(), number});
  frame.envelope.set_task(task_);
  send_unattended(call_rpc::kCancel, encode(std::move(frame)), Clock::now() + kTellTimeout);
}

void RpcChannel::Core::give_back(RequestNumbers::Taken& number, const Frame& answer, size_t kept_tensors) {
  const bool large = number.number() != 0 && bytes_of_first(answer.tensors, kept_tensors) > kLargeAnswer;
  number.give_back();
  if (!large) return;
  Frame frame;
  numbers_.take(frame.envelope).give_back();
  frame.envelope.set_task(task_);
  send_unattended(call_rpc::kAcknowledge, encode(std::move(frame)), Clock::now() + kTellTimeout);
}

}  // namespace muster

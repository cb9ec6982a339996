#include "muster/rpc/rpc_channel.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <thread>

#include "muster/base/blocking.h"
#include "muster/near/near_visit.h"
#include "muster/rpc/answer_threads.h"
#include "muster/rpc/channel_arguments.h"
#include "muster/rpc/service_names.h"
#include "muster/runtime/run_options.h"

namespace muster {
namespace {

using Clock = std::chrono::system_clock;

const grpc::Status kLost(grpc::StatusCode::UNAVAILABLE, "lost by a fault that a test has asked for");
constexpr auto kRefused = std::chrono::milliseconds(50);  // to wait for a task that has refused a connection
constexpr auto kMeetTimeout = std::chrono::seconds(10);
constexpr auto kTellTimeout = std::chrono::seconds(10);
constexpr auto kMoment = std::chrono::microseconds(200);  // less than it takes to wake two threads
constexpr auto kLook = std::chrono::milliseconds(100);    // at whether the caller has given up

}  // namespace

struct RpcChannel::Grpc {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<grpc::GenericStub> stub;
};

// A request as it is sent, and what it lends, until its call has ended.
struct RpcChannel::Outgoing {
  Outgoing(Frame request, std::shared_ptr<NearConnection> server) : near(std::move(server)) {
    if (near) frame = request;
    LentFrame lent = encode_for(near.get(), std::move(request));
    message = std::move(lent.message);
    loan = lent.loan;
  }
  explicit Outgoing(grpc::ByteBuffer packed) : message(std::move(packed)) {}
  ~Outgoing() { end_loan(); }
  Outgoing(const Outgoing&) = delete;
  Outgoing& operator=(const Outgoing&) = delete;

  // Bytes are sent instead of lent, both ways.
  void repack() {
    end_loan();
    message = encode(frame);
  }

  void end_loan() {
    if (near) near->ledger().end(std::exchange(loan, {}));
  }

  std::shared_ptr<NearConnection> near{};  // null: the task is not a process of this machine
  grpc::ByteBuffer message{};
  LoanLedger::Loan loan{};
  Frame frame{};  // if something may be lent, here or in the answer
};

// A call whose answer is received by the answer threads.
struct RpcChannel::Pending {
  std::string method{};
  std::shared_ptr<Outgoing> request;
  uint64_t request_id = 0;
  Clock::time_point deadline;
  const Cancellation* cancellation;
  Done done;
  int attempt = 1, attempts = 1;
  RpcFaults::Fate fate{};
  std::unique_ptr<grpc::ClientContext> context{};
  grpc::ByteBuffer answer{};
  grpc::Status status{};
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader{};  // ends before its context
  Cancellation::Registration registration{};

  void send(grpc::GenericStub& stub, std::function<void()> received) {
    AnswerThreads& threads = AnswerThreads::instance();
    reader = stub.PrepareUnaryCall(context.get(), method, request->message, &threads.queue());
    reader->StartCall();
    reader->Finish(&answer, &status, threads.when_done(std::move(received)));
  }
};

RpcChannel::RpcChannel(std::string address, std::string task, const ChannelOptions& options)
    : address_(std::move(address)),
      task_(std::move(task)),
      options_(options),
      grpc_(std::make_shared<Grpc>()),
      near_(std::make_shared<NearVisit>(task_)) {
  grpc::ChannelArguments arguments;
  set_transport_arguments([&](const char* name, int value) { arguments.SetInt(name, value); });
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);    // shorter than ChannelOptions::reconnect
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5'000);  // in spite of its name: how long connecting may take
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL,
                   1);  // one connection per channel: a restart is seen by its owner
  // A certificate is made for a task's name, which is the same wherever the task runs.
  if (options_.credentials.tls) arguments.SetSslTargetNameOverride("muster");
  grpc_->channel = grpc::CreateCustomChannel(address_, channel_credentials(options_.credentials), arguments);
  grpc_->stub = std::make_unique<grpc::GenericStub>(grpc_->channel);
}

RpcChannel::~RpcChannel() = default;

Status RpcChannel::explain(int code, const std::string& message) const {
  const auto known = static_cast<StatusCode>(code);
  return {known, str_cat(task_.empty() ? "task" : task_, " at ", address_, ": ", message), task_};
}

namespace {

std::unique_ptr<grpc::ClientContext> make_context(Clock::time_point deadline, const Credentials& credentials) {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(deadline);
  if (!credentials.token.empty()) context->AddMetadata("authorization", "Bearer " + credentials.token);
  return context;
}

// What a caller has left with its call may be the last thing that holds the channel, whose destructor waits for the
// thread that reconnects: that one must not be where it goes.
void release_elsewhere(std::shared_ptr<void> held) {
  static ElasticPool& pool = *new ElasticPool("release", 1);  // never destroyed: it may be used to the very end
  pool.submit([held = std::move(held)]() mutable { held.reset(); });
}

}  // namespace

// Throws LoanLost if the call is to be made again with `repack`ed bytes.
Frame RpcChannel::open(const grpc::ByteBuffer& answer, const Outgoing& request) {
  const uint64_t key = request.near ? request.near->key() : 0;
  Frame frame;
  try {
    frame = decode(answer, {.lender = [&](uint64_t of) { return of == key ? request.near : nullptr; }});
  } catch (const LoanLost&) {
    near_->distrust(key);
    throw;
  }
  if (frame.envelope.near_key() != key) near_->forget(key);
  if (frame.envelope.loan_refused()) {
    near_->distrust(key);
    throw LoanLost(Status(StatusCode::kUnavailable, "the task cannot read this process's memory"));
  }
  if (frame.envelope.has_loan() && request.near) {
    request.near->give_back({frame.envelope.loan().slip(), frame.envelope.loan().number()});
  }
  if (frame.envelope.has_error()) throw Error(from_proto(frame.envelope.error()));
  return frame;
}

// The calls hold all they need: nobody waits for them, and the channel may go at any time.
void RpcChannel::meet_task() {
  if (!options_.near_memory || !near_->unmet()) return;
  near_->meet(
      [grpc = grpc_, credentials = options_.credentials, task = task_](bool knocked, NearVisit::Answered answered) {
        proto::MeetRequest request;
        request.set_knocked(knocked);
        Frame frame = with_header(request);
        frame.envelope.set_task(task);
        auto call = std::make_shared<Pending>();
        call->method = call_rpc::kMeet;
        call->request = std::make_shared<Outgoing>(encode(std::move(frame)));
        call->context = make_context(Clock::now() + kMeetTimeout, credentials);
        call->send(*grpc->stub, [grpc, call, answered = std::move(answered)] {
          Status status;
          proto::MeetAnswer answer;
          try {
            if (!call->status.ok()) throw unavailable(call->status.error_message());
            answer = header_of<proto::MeetAnswer>(decode(call->answer).envelope);
          } catch (...) {
            status = status_of(std::current_exception());
          }
          answered(status, answer.door());
        });
      });
}

RpcChannel::CallDeadline RpcChannel::deadline_of(const CallOptions& options) const {
  if (!options.timeout && options.patient) return CallDeadline::max();
  return Clock::now() + options.timeout.value_or(options_.call_timeout);
}

Frame RpcChannel::call(const std::string& method, Frame request, const CallOptions& options) {
  const auto deadline = deadline_of(options);
  const auto give_up = std::min(deadline, Clock::now() + options_.connect_timeout);
  request.envelope.set_task(task_);
  const uint64_t id = request.envelope.request_id();
  Outgoing outgoing(std::move(request), near_->connection());
  for (int attempt = 1;; ++attempt) {
    if (options.cancellation != nullptr) options.cancellation->throw_if_cancelled();
    auto context = make_context(deadline, options_.credentials);
    Cancellation::Registration registration;
    if (options.cancellation != nullptr) {
      registration = options.cancellation->on_cancel([&](const Status&) {
        context->TryCancel();
        tell_cancelled(id);
      });
    }
    // The queue is of this thread alone, so that the answer is read by the thread that waits for it.
    thread_local grpc::CompletionQueue queue;
    grpc::ByteBuffer answer;
    grpc::Status status;
    const RpcFaults::Fate fate = fate_of(method, outgoing.message, deadline);
    if (fate.request_lost) {
      status = kLost;
    } else {
      auto reader = grpc_->stub->PrepareUnaryCall(context.get(), method, outgoing.message, &queue);
      reader->StartCall();
      reader->Finish(&answer, &status, nullptr);
      void* tag = nullptr;
      bool ok = false;
      // While it waits in gRPC, a thread that reads a server's network goes on doing so; only what arrives is not
      // handled.
      if (queue.AsyncNext(&tag, &ok, Clock::now() + kMoment) == grpc::CompletionQueue::TIMEOUT) {
        about_to_block();
        queue.Next(&tag, &ok);
      }
      if (fate.response_lost && status.ok()) status = kLost;
    }
    registration.reset();
    if (status.ok()) {
      meet_task();
      try {
        return open(answer, outgoing);
      } catch (const LoanLost&) {
        outgoing.repack();
        continue;
      }
    }
    if (options.cancellation != nullptr) options.cancellation->throw_if_cancelled();
    const Status why = explain(status.error_code(), status.error_message());
    if (why.code() != StatusCode::kUnavailable) throw Error(why);
    const bool answered = grpc_->channel->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY;
    const auto patience = options.wait_until_up ? give_up : std::min(deadline, Clock::now() + options_.reconnect);
    if (!(attempt < options.attempts.value_or(options_.attempts) || options.wait_until_up) ||
        !wait_until_connected(patience, options.wait_until_up, options.cancellation))
      throw Error(why);
    // Somebody answers, but it is another task, or the old one which stops.
    if (options.wait_until_up && answered) std::this_thread::sleep_for(kLook);
  }
}

// gRPC connects, with growing pauses, only while somebody waits for it.
bool RpcChannel::wait_until_connected(std::chrono::system_clock::time_point deadline, bool again_when_refused,
                                      const Cancellation* cancellation) const {
  if (!again_when_refused && grpc_->channel->GetState(/*try_to_connect=*/true) == GRPC_CHANNEL_TRANSIENT_FAILURE) {
    // That may be old: gRPC pauses before it tries again, and says nothing of another refusal.
    grpc::experimental::ChannelResetConnectionBackoff(grpc_->channel.get());
    return grpc_->channel->WaitForConnected(std::min(deadline, Clock::now() + kRefused));
  }
  while (Clock::now() < deadline) {
    if (cancellation != nullptr) cancellation->throw_if_cancelled();
    const grpc_connectivity_state state = grpc_->channel->GetState(/*try_to_connect=*/true);
    if (state == GRPC_CHANNEL_READY) return true;
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE && !again_when_refused) return false;
    grpc_->channel->WaitForStateChange(state, std::min(deadline, Clock::now() + kLook));
  }
  return false;
}

void RpcChannel::start(const std::string& method, Frame request, const CallOptions& options, Done done) {
  auto pending = std::make_shared<Pending>();
  pending->method = method;
  request.envelope.set_task(task_);
  pending->request_id = request.envelope.request_id();
  pending->request = std::make_shared<Outgoing>(std::move(request), near_->connection());
  pending->deadline = deadline_of(options);
  pending->attempts = options.attempts.value_or(options_.attempts);
  pending->cancellation = options.cancellation;
  pending->done = std::move(done);
  begin(std::move(pending));
}

// Says what becomes of a call, and makes it a first time if it is to be made twice.
RpcFaults::Fate RpcChannel::fate_of(const std::string& method, const grpc::ByteBuffer& message,
                                    const CallDeadline& deadline) {
  if (!options_.faults) return {};
  const RpcFaults::Fate fate = options_.faults->draw(method);
  if (fate.in_flight) send_unattended(method, message, deadline);
  return fate;
}

void RpcChannel::send_unattended(const std::string& method, const grpc::ByteBuffer& message,
                                 const CallDeadline& deadline) const {
  auto call = std::make_shared<Pending>();
  call->method = method;
  call->request = std::make_shared<Outgoing>(message);
  call->context = make_context(deadline, options_.credentials);
  call->send(*grpc_->stub, [call] {});
}

void RpcChannel::tell_cancelled(uint64_t request_id) const {
  if (request_id == 0) return;
  Frame frame;
  frame.envelope.set_request_id(request_id);
  frame.envelope.set_task(task_);
  send_unattended(call_rpc::kCancel, encode(std::move(frame)), Clock::now() + kTellTimeout);
}

void RpcChannel::begin(std::shared_ptr<Pending> pending) {
  pending->reader.reset();
  pending->context = make_context(pending->deadline, options_.credentials);
  if (pending->cancellation != nullptr) {
    pending->registration = pending->cancellation->on_cancel(
        [this, id = pending->request_id, context = pending->context.get()](const Status&) {
          context->TryCancel();
          tell_cancelled(id);
        });
  }
  pending->fate = fate_of(pending->method, pending->request->message, pending->deadline);
  if (pending->fate.request_lost) return ended(pending, kLost);
  Pending& call = *pending;
  call.send(*grpc_->stub, [this, pending = std::move(pending)] { ended(pending, pending->status); });
}

void RpcChannel::ended(const std::shared_ptr<Pending>& pending, const grpc::Status& result_of_call) {
  pending->registration.reset();
  const grpc::Status& status = pending->fate.response_lost && result_of_call.ok() ? kLost : result_of_call;
  if (!status.ok()) {
    const Status why = explain(status.error_code(), status.error_message());
    const bool cancelled = pending->cancellation != nullptr && pending->cancellation->cancelled();
    if (why.code() != StatusCode::kUnavailable || pending->attempt >= pending->attempts || cancelled)
      return pending->done(why, {});
    ++pending->attempt;
    pending->answer.Clear();
    return reconnects_.submit([this, call = pending, why]() mutable {
      if (wait_until_connected(Clock::now() + options_.reconnect, /*again_when_refused=*/false, nullptr))
        return begin(std::move(call));
      call->done(why, {});
      release_elsewhere(std::move(call));
    });
  }
  meet_task();
  Status result;
  Frame frame;
  try {
    frame = open(pending->answer, *pending->request);
  } catch (const LoanLost&) {
    pending->request->repack();
    pending->answer.Clear();
    return begin(pending);
  } catch (...) {
    result = status_of(std::current_exception());
  }
  pending->done(result, std::move(frame));
}

}  // namespace muster

#include "muster/rpc/rpc_channel.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <thread>

#include "muster/rpc/channel_arguments.h"
#include "muster/runtime/run_options.h"

namespace muster {
namespace {

using Clock = std::chrono::system_clock;

// A call that was cut off is made once more, and waits that long for the task to be back.
constexpr auto kReconnect = std::chrono::milliseconds(250);
constexpr auto kFirstPause = std::chrono::milliseconds(1);
constexpr auto kLongestPause = std::chrono::milliseconds(1'000);
constexpr double kPauseGrowth = 1.3;

}  // namespace

struct RpcChannel::Grpc {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<grpc::GenericStub> stub;
};

// A call that waits for its answer on gRPC's threads.
struct RpcChannel::Pending {
  std::string method;
  grpc::ByteBuffer request;
  Clock::time_point deadline;
  const Cancellation* cancellation;
  Done done;
  std::optional<grpc::Status> cut_off{};  // why the first call failed, once there is a second one
  std::unique_ptr<grpc::ClientContext> context{};
  grpc::ByteBuffer answer{};
  Cancellation::Registration registration{};
};

RpcChannel::RpcChannel(std::string address, std::string task, const ChannelOptions& options)
    : address_(std::move(address)), task_(std::move(task)), options_(options), grpc_(std::make_unique<Grpc>()) {
  grpc::ChannelArguments arguments;
  set_transport_arguments([&](const char* name, int value) { arguments.SetInt(name, value); });
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);    // shorter than kReconnect
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

std::unique_ptr<grpc::ClientContext> make_context(Clock::time_point deadline, const Credentials& credentials,
                                                  bool wait) {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(deadline);
  context->set_wait_for_ready(wait);
  if (!credentials.token.empty()) context->AddMetadata("authorization", "Bearer " + credentials.token);
  return context;
}

Frame open(const grpc::ByteBuffer& answer) {
  Frame frame = decode(answer);
  if (frame.envelope.has_error()) throw Error(from_proto(frame.envelope.error()));
  return frame;
}

}  // namespace

Frame RpcChannel::call(const std::string& method, Frame request, const CallOptions& options) {
  const auto timeout = options.timeout.value_or(options_.call_timeout);
  const auto begin = Clock::now();
  const auto deadline = begin + timeout;
  const auto give_up = std::min(deadline, begin + options_.connect_timeout);
  request.envelope.set_timeout_us(std::chrono::microseconds(timeout).count());
  const grpc::ByteBuffer message = encode(std::move(request));
  auto pause = std::chrono::duration_cast<std::chrono::duration<double, std::milli>>(kFirstPause);
  std::optional<grpc::Status> cut_off;  // why the first call failed, once there is a second one
  while (true) {
    if (options.cancellation != nullptr) options.cancellation->throw_if_cancelled();
    const bool reconnect = cut_off && !options.wait_until_up;
    auto context = make_context(reconnect ? std::min(deadline, Clock::now() + kReconnect) : deadline,
                                options_.credentials, reconnect);
    Cancellation::Registration registration;
    if (options.cancellation != nullptr) {
      registration = options.cancellation->on_cancel([&](const Status&) { context->TryCancel(); });
    }
    // The queue is of this thread alone, so that the answer is read by the thread that waits for it.
    thread_local grpc::CompletionQueue queue;
    grpc::ByteBuffer answer;
    grpc::Status status;
    auto reader = grpc_->stub->PrepareUnaryCall(context.get(), method, message, &queue);
    reader->StartCall();
    reader->Finish(&answer, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    registration.reset();
    if (status.ok()) return open(answer);
    if (options.cancellation != nullptr) options.cancellation->throw_if_cancelled();
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE && !reconnect) {
      throw Error(explain(status.error_code(), status.error_message()));
    }
    const bool again = options.wait_until_up ? Clock::now() + pause < give_up : !cut_off;
    if (!cut_off || options.wait_until_up) cut_off = status;
    if (!again) throw Error(explain(cut_off->error_code(), cut_off->error_message()));
    if (!options.wait_until_up) continue;
    std::this_thread::sleep_for(pause);
    pause = std::min<decltype(pause)>(pause * kPauseGrowth, kLongestPause);
  }
}

void RpcChannel::start(const std::string& method, Frame request, const CallOptions& options, Done done) {
  auto pending = std::make_shared<Pending>();
  pending->method = method;
  const auto timeout = options.timeout.value_or(options_.call_timeout);
  request.envelope.set_timeout_us(std::chrono::microseconds(timeout).count());
  pending->request = encode(std::move(request));
  pending->deadline = Clock::now() + timeout;
  pending->cancellation = options.cancellation;
  pending->done = std::move(done);
  begin(std::move(pending));
}

void RpcChannel::begin(std::shared_ptr<Pending> pending) {
  const bool reconnect = pending->cut_off.has_value();
  pending->context =
      make_context(reconnect ? std::min(pending->deadline, Clock::now() + kReconnect) : pending->deadline,
                   options_.credentials, reconnect);
  if (pending->cancellation != nullptr) {
    pending->registration =
        pending->cancellation->on_cancel([context = pending->context.get()](const Status&) { context->TryCancel(); });
  }
  grpc_->stub->UnaryCall(pending->context.get(), pending->method, {}, &pending->request, &pending->answer,
                         [this, pending](const grpc::Status& status) { ended(pending, status); });
}

void RpcChannel::ended(const std::shared_ptr<Pending>& pending, const grpc::Status& status) {
  pending->registration.reset();
  const bool cancelled = pending->cancellation != nullptr && pending->cancellation->cancelled();
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE && !pending->cut_off && !cancelled) {
    pending->cut_off = status;
    pending->answer.Clear();
    return begin(pending);
  }
  if (!status.ok()) {
    const grpc::Status& why = pending->cut_off && !cancelled ? *pending->cut_off : status;
    return pending->done(explain(why.error_code(), why.error_message()), {});
  }
  Status result;
  Frame frame;
  try {
    frame = open(pending->answer);
  } catch (...) {
    result = status_of(std::current_exception());
  }
  pending->done(result, std::move(frame));
}

}  // namespace muster

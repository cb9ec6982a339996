#include "muster/rpc/task_wire.h"

#include <grpcpp/grpcpp.h>

#include "muster/rpc/calls/nobody_listens.h"
#include "muster/rpc/credentials/channel_arguments.h"
#include "muster/rpc/credentials/credentials_probe.h"

namespace muster {

TaskWire::TaskWire(std::string address, std::string task, const Credentials& credentials)
    : address_(std::move(address)), task_(std::move(task)), credentials_(credentials, CertificateUse{}) {
  absl::MutexLock lock(&mu_);
  shown_ = credentials_.get();
  connect();
}

void TaskWire::connect() {
  grpc::ChannelArguments arguments;
  set_transport_arguments([&](const char* name, int value) { arguments.SetInt(name, value); });
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  // Once a connection has failed, gRPC makes it again and again by itself, with pauses that grow by a half and differ
  // by a fifth: a task that is gone is to cost those that knew it little, and hundreds that have lost it are not to
  // come back at the same moment. Whoever has a call to make does not wait for that, but has it tried at once.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 5'000);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5'000);  // in spite of its name: how long connecting may take
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // One connection per channel: a restart is seen by its owner.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // A certificate names its task, wherever that runs. Who does not know the task asks for the host in the address.
  if (shown_->tls && !task_.empty()) arguments.SetSslTargetNameOverride(server_name(task_));
  auto made = std::make_unique<Connection>();
  made->channel = grpc::CreateCustomChannel(address_, channel_credentials(*shown_), arguments);
  made->stub = std::make_unique<grpc::GenericStub>(made->channel);
  now_.store(made.get(), std::memory_order_release);
  connections_.push_back(std::move(made));
}

bool TaskWire::renew() {
  absl::MutexLock lock(&mu_);
  std::shared_ptr<const Credentials> latest = credentials_.get();
  if (latest == shown_) return false;
  shown_ = std::move(latest);
  connect();
  return true;
}

bool TaskWire::just_asked() {
  absl::MutexLock lock(&mu_);
  return asked_ && std::chrono::steady_clock::now() - *asked_ < kAskAgain;
}

bool TaskWire::is_gone() {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kSlow(100);  // a refusal takes a round trip
  const Clock::time_point begin = Clock::now();
  {
    absl::MutexLock lock(&mu_);
    if (slow_ && begin - *slow_ < kAskAgain) return false;
  }
  if (nobody_listens(address_)) return true;
  const Clock::time_point now = Clock::now();
  absl::MutexLock lock(&mu_);
  if (now - begin > kSlow) slow_ = now;
  return false;
}

std::optional<std::string> TaskWire::refusal() {
  if (just_asked()) return std::nullopt;
  std::shared_ptr<const Credentials> shown;
  {
    absl::MutexLock lock(&mu_);
    shown = shown_;
  }
  std::optional<std::string> refusal = credentials_refusal(address_, task_, *shown);
  if (!refusal) {
    absl::MutexLock lock(&mu_);
    asked_ = std::chrono::steady_clock::now();
  }
  return refusal;
}

}  // namespace muster

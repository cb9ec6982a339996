#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/rpc/credentials/current_credentials.h"

namespace muster {

// What connects a channel with its task by gRPC, made anew when the certificates were. Thread-safe.
class TaskWire {
 public:
  TaskWire(std::string address, std::string task, const Credentials& credentials);

  // Of now. They stay as long as this: calls may still be under way by those before.
  grpc::Channel& channel() const { return *now()->channel; }
  grpc::GenericStub& stub() const { return *now()->stub; }

  // Somebody has answered, so that both ends accept what the other one shows.
  void answered() {
    if (!now()->accepted.load(std::memory_order_relaxed)) now()->accepted.store(true, std::memory_order_relaxed);
  }
  bool accepted() const { return now()->accepted.load(std::memory_order_relaxed); }

  // For whoever could not connect. True: the certificates were renewed, and are shown from now on.
  bool renew() ABSL_LOCKS_EXCLUDED(mu_);
  // Why there will be no connection, however often one tries: see credentials_refusal(), which waits for a moment.
  // Nothing also if that was just asked and there was no reason.
  std::optional<std::string> refusal() ABSL_LOCKS_EXCLUDED(mu_);
  bool just_asked() ABSL_LOCKS_EXCLUDED(mu_);
  // Whether nobody_listens() at its address. No also where that was slow to find out a moment ago: a host that is
  // silent, or a name that nobody resolves.
  bool is_gone() ABSL_LOCKS_EXCLUDED(mu_);

  static constexpr std::chrono::milliseconds kAskAgain{1000};

 private:
  struct Connection {
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<grpc::GenericStub> stub;
    std::atomic<bool> accepted = false;
  };
  Connection* now() const { return now_.load(std::memory_order_acquire); }
  void connect() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string address_;
  const std::string task_;
  CurrentCredentials credentials_;
  std::atomic<Connection*> now_ = nullptr;

  absl::Mutex mu_;
  std::vector<std::unique_ptr<Connection>> connections_ ABSL_GUARDED_BY(mu_);  // the last is that of now
  std::shared_ptr<const Credentials> shown_ ABSL_GUARDED_BY(mu_);
  std::optional<std::chrono::steady_clock::time_point> asked_ ABSL_GUARDED_BY(mu_);  // when there was no reason
  std::optional<std::chrono::steady_clock::time_point> slow_ ABSL_GUARDED_BY(mu_);   // when is_gone() was
};

}  // namespace muster

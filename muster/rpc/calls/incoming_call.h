// What all calls of a server have in common, whichever way they come.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "muster/rpc/calls/byte_gate.h"
#include "muster/rpc/calls/call_gate.h"
#include "muster/rpc/calls/network_readers.h"
#include "muster/rpc/rpc_server.h"
#include "muster/rpc/wires/near_wire_door.h"

namespace muster {

struct RpcServer::Grpc {
  explicit Grpc(const RpcServerOptions& options)
      : gate(std::max(1, options.max_threads)),
        bytes(std::make_shared<ByteGate>(options.max_bytes_under_way, options.bytes_patience)) {}

  CallGate gate;
  const std::shared_ptr<ByteGate> bytes;
  std::shared_ptr<grpc::ServerCredentials> credentials;  // before the server, which it outlives
  grpc::AsyncGenericService service;
  std::unique_ptr<grpc::ServerCompletionQueue> queue;
  std::unique_ptr<grpc::Server> server;
  std::optional<NetworkReaders> readers;
  std::once_flag first_wire;
  std::unique_ptr<NearWireDoor> wires;  // null: nobody has asked for one
};

// A call from the moment when its message is there. `self_` keeps it alive as long as its answer may be given.
class IncomingCall : public RpcCall {
 public:
  const std::string& peer() const override { return peer_; }
  std::chrono::steady_clock::time_point deadline() const override { return deadline_; }

  void answer(Frame frame) override;
  void fail(const Status& status) override;
  void cancel(const Status& why) { cancellation_.cancel(why); }

 protected:
  explicit IncomingCall(RpcServer& server) : server_(server) {}

  // `message_` is there. The method runs on this thread, or on one that works for calls which wait.
  void handle(const std::string& method);
  // The answer, once. Nothing of the call may be used afterwards.
  virtual void write(const grpc::ByteBuffer& message) = 0;
  virtual void refuse(const grpc::Status& status) = 0;
  // An answer that has not reached its caller: what it lends comes home.
  void take_back_unsent();

  RpcServer& server_;
  grpc::ByteBuffer message_;
  std::string peer_;
  std::chrono::steady_clock::time_point deadline_;
  std::shared_ptr<IncomingCall> self_;
  std::optional<ByteGate::Hold> hold_;  // of what it takes here, if that is much

 private:
  void run(const RpcServer::MethodEntry& entry);
  const std::shared_ptr<NearConnection>& find_caller(uint64_t key);
  void refuse_loan();

  std::shared_ptr<NearConnection> caller_;  // if it is a process of this machine
  uint64_t lines_caller_ = 0;               // to whom lines may lead
  LoanLedger::Loan loan_;
  std::shared_ptr<Parcel> parcel_;
};

// One that comes on a wire.
class NearServerCall final : public IncomingCall, private NetworkEvent {
 public:
  // Nothing: the server stops.
  static std::optional<NearWireDoor::Handling> take(RpcServer& server, NearWireDoor::Arrived arrived);

  std::chrono::milliseconds age() const override { return {}; }  // only what is made for the first time comes so

 private:
  NearServerCall(RpcServer& server, NearWireDoor::Arrived arrived);

  void happened(bool ok) override;
  void write(const grpc::ByteBuffer& message) override;
  void refuse(const grpc::Status& status) override;
  void release();

  const std::shared_ptr<WireToCaller> wire_;
  const std::string method_;
};

}  // namespace muster

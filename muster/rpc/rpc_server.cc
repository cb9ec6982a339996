#include "muster/rpc/rpc_server.h"

#include <arpa/inet.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <thread>

#include "muster/base/check.h"
#include "muster/base/log.h"
#include "muster/lines/tcp_socket.h"
#include "muster/rpc/calls/incoming_call.h"
#include "muster/rpc/calls/once_calls.h"
#include "muster/rpc/credentials/channel_arguments.h"
#include "muster/rpc/credentials/handshake_watch.h"
#include "muster/rpc/service_names.h"
#include "muster/runtime/worker/restart.h"

namespace muster {
namespace {

constexpr int kWaiting = 16;                             // calls that can arrive at the same moment
constexpr auto kStopPatience = std::chrono::seconds(5);  // for calls that are told to end

bool is_loopback(const std::string& host) {
  in_addr address{};  // "127.example.org" is not one
  const bool is_ip4 = inet_pton(AF_INET, host.c_str(), &address) == 1;
  return host == "localhost" || (is_ip4 && host.starts_with("127.")) || host == "::1" || host == "[::1]";
}

// "ipv4:10.0.0.1:4711" without its port, which is another one each time that a peer comes.
std::string host_of_peer(const std::string& peer) { return peer.substr(0, peer.rfind(':')); }

// Equal in a time that does not say where they differ.
bool same_secret(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  return difference == 0;
}

constexpr auto kLongestAge = std::chrono::hours(24 * 365);  // more is as good as for ever

// gRPC knows deadlines by the clock of the wall, which jumps. To be asked as soon as the call has arrived.
std::chrono::steady_clock::time_point on_steady_clock(std::chrono::system_clock::time_point deadline) {
  const auto now = std::chrono::system_clock::now();
  const auto left = deadline > now + kLongestAge ? std::chrono::nanoseconds(kLongestAge) : deadline - now;
  return std::chrono::steady_clock::now() + left;
}

// Where large tensors may come and go apart from gRPC, which is where gRPC listens. Nothing: all is encrypted.
std::optional<std::string> host_for_lines(const RpcServerOptions& options) {
  if (options.credentials.tls) return std::nullopt;
  const std::string host = host_of_address(options.address);
  return host == "localhost" ? "127.0.0.1" : host;
}

// How many threads wait inside gRPC at most: one handles tens of thousands of small calls a second.
int most_turns() { return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 4, 1, 8); }

std::pair<std::string, int> parse_address(const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = -1;
  if (colon != std::string::npos && colon + 1 < address.size() &&
      address.find_first_not_of("0123456789", colon + 1) == std::string::npos && address.size() - colon <= 6) {
    port = std::stoi(address.substr(colon + 1));
  }
  if (port < 0 || port > 65535 || colon == 0) {
    throw invalid_argument("address \"", address, "\" has no port; expected \"host:port\", like \"127.0.0.1:2222\"");
  }
  return {address.substr(0, colon), port};
}

}  // namespace

// One call, from the moment when the server waits for it.
//
//   waiting --arrives, is admitted--> reading --read--> running --answer()/fail()--> finishing --> gone
//
// Nothing of a caller that is not admitted is read.
//
// gRPC holds it by the tags below; `self_` keeps it alive until gRPC has no tag of it any more.
class ServerCall final : public IncomingCall {
 public:
  // What gRPC gives back when something has happened.
  class Tag final : public NetworkEvent {
   public:
    Tag(ServerCall* call, void (ServerCall::*then)(bool ok)) : call_(call), then_(then) {}

    void happened(bool ok) override {
      ServerCall* call = call_;  // which is gone, and this with it, if that was the last
      (call->*then_)(ok);
      call->release();
    }

   private:
    ServerCall* const call_;
    void (ServerCall::*const then_)(bool ok);
  };

  // Waits for none if the server stops.
  static void wait_for(RpcServer& server) {
    if (!server.enter()) return;
    std::shared_ptr<ServerCall> call(new ServerCall(server));
    call->self_ = call;
    call->tags_ = 2;  // arrival, and the end of the call
    call->context_.AsyncNotifyWhenDone(call->done_.tag());
    server.grpc_->service.RequestCall(&call->context_, &call->stream_, server.grpc_->queue.get(),
                                      server.grpc_->queue.get(), call->arrived_.tag());
  }

  std::chrono::milliseconds age() const override {
    const int64_t age = number_in_metadata(kAgeOfRequest);
    return std::chrono::milliseconds(std::clamp<int64_t>(age, 0, std::chrono::milliseconds(kLongestAge).count()));
  }

 private:
  explicit ServerCall(RpcServer& server) : IncomingCall(server), stream_(&context_) {}

  void arrived(bool ok) {
    if (!ok) return release();  // The server stops. The tag of its end comes only for a call that has arrived.
    wait_for(server_);
    server_.requests_.fetch_add(1, std::memory_order_relaxed);
    ++tags_;  // the answer, whose tag is finished_: until it is given, whoever owes it may use the call
    peer_ = context_.peer();
    deadline_ = on_steady_clock(context_.deadline());
    std::string token;
    auto header = context_.client_metadata().find("authorization");
    if (header != context_.client_metadata().end()) token.assign(header->second.data(), header->second.size());
    try {
      server_.admit(peer_, token);
      admitted_ = true;
    } catch (const Error& error) {
      return refuse(grpc::Status(static_cast<grpc::StatusCode>(error.code()), error.status().message()));
    }
    {
      absl::MutexLock lock(&server_.mu_);
      server_.under_way_[this] = self_;
    }
    ++tags_;
    if (const int64_t bytes = number_in_metadata(kBytesOfRequest); bytes > 0) {
      auto at_once = server_.grpc_->bytes->take(bytes, [this](ByteGate::Hold hold) {
        hold_ = std::move(hold);
        stream_.Read(&message_, read_.tag());
      });
      if (!at_once) return;  // another thread may be at it
      hold_ = std::move(at_once);
    }
    stream_.Read(&message_, read_.tag());
  }

  int64_t number_in_metadata(const char* name) const {
    const auto& metadata = context_.client_metadata();
    const auto said = metadata.find(name);
    int64_t number = 0;
    if (said != metadata.end()) std::from_chars(said->second.data(), said->second.data() + said->second.size(), number);
    return number;
  }

  void read(bool ok) {
    if (!ok) {
      // Cut off, or over the limit on messages, which gRPC itself tells the caller.
      return refuse(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "no message, or one that is too large"));
    }
    handle(context_.method());
  }

  void write(const grpc::ByteBuffer& message) override {
    MUSTER_CHECK(!finishing_.exchange(true)) << context_.method() << " was answered twice";
    stream_.WriteAndFinish(message, grpc::WriteOptions(), grpc::Status::OK, finished_.tag());
  }

  void refuse(const grpc::Status& status) override {
    finishing_.store(true);
    stream_.Finish(status, finished_.tag());
  }

  void finished(bool sent) {
    // gRPC hands the call from the thread that has answered to this one; the load says so where ThreadSanitizer sees
    // it.
    if (finishing_.load() && !sent) take_back_unsent();
  }

  void done(bool) {
    if (context_.IsCancelled()) cancellation_.cancel(Status(StatusCode::kCancelled, "the caller has gone"));
  }

  void release() {
    if (--tags_ > 0) return;
    RpcServer& server = server_;
    std::shared_ptr<IncomingCall> last;
    {
      absl::MutexLock lock(&server.mu_);
      if (admitted_) server.dismiss(peer_);
      server.under_way_.erase(this);
      last = std::move(self_);
    }
    last.reset();
    server.leave();
  }

  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_;
  bool admitted_ = false;
  std::atomic<bool> finishing_ = false;
  std::atomic<int> tags_ = 0;
  Tag arrived_{this, &ServerCall::arrived};
  Tag read_{this, &ServerCall::read};
  Tag finished_{this, &ServerCall::finished};
  Tag done_{this, &ServerCall::done};
};

RpcServer::RpcServer(RpcServerOptions options, std::vector<MethodEntry> methods)
    : options_(std::move(options)),
      once_(std::make_unique<OnceCalls>(OnceCallsOptions{
          .grace = options_.grace, .most_bytes = options_.remembered_bytes, .keep_silent = options_.remembered_for})),
      door_(options_.task),
      lines_(host_for_lines(options_)),
      grpc_(std::make_unique<Grpc>(options_)) {
  auto meet = [this](const std::shared_ptr<RpcCall>& call) {
    const auto request = header_of<proto::MeetRequest>(call->request().envelope);
    proto::MeetAnswer answer;
    if (request.wires()) {
      if (const NearWireDoor* door = wire_door(); door != nullptr) {
        answer.set_wire_door(door->name());
        answer.set_wire_secret_high(door->secret().high);
        answer.set_wire_secret_low(door->secret().low);
      }
    } else if (request.lines() && request.line() != 0) {
      answer.set_line_let_in(lines_.let_in(request.line()));
    } else if (request.lines()) {
      const LineDoor::Place place = lines_.place();
      answer.set_line_port(place.port);
      answer.set_line_ip4_only(place.ip4_only);
    } else if (request.knocked()) {
      door_.look();
    } else {
      answer.set_door(door_.name());
    }
    call->answer(with_header(answer));
  };
  methods.push_back({.name = call_rpc::kMeet, .method = meet, .pace = Pace::kShort});
  for (MethodEntry& method : methods) methods_.emplace(method.name, method);
  auto cancel = [this](const std::shared_ptr<RpcCall>& call) {
    once_->cancel(request_id_of(call->request().envelope));
    call->answer({});
  };
  auto acknowledge = [this](const std::shared_ptr<RpcCall>& call) {
    const proto::Envelope& envelope = call->request().envelope;
    once_->acknowledge(request_id_of(envelope), envelope.wanted());
    call->answer({});
  };
  auto leave = [this](const std::shared_ptr<RpcCall>& call) {
    once_->leave(request_id_of(call->request().envelope).client);
    call->answer({});
  };
  methods_.emplace(call_rpc::kLeave, MethodEntry{.name = call_rpc::kLeave, .method = leave, .pace = Pace::kQuick});
  methods_.emplace(call_rpc::kCancel, MethodEntry{.name = call_rpc::kCancel, .method = cancel, .pace = Pace::kQuick});
  methods_.emplace(call_rpc::kAcknowledge,
                   MethodEntry{.name = call_rpc::kAcknowledge, .method = acknowledge, .pace = Pace::kQuick});
  const auto [host, port] = parse_address(options_.address);
  if (!is_loopback(host) && !options_.credentials.tls && !options_.insecure) {
    throw failed_precondition(
        "server ", options_.task, " at ", options_.address,
        ": refuses to listen beyond this machine without TLS; give it certificates (see `muster "
        "certs`), or say insecure (ServerOptions::insecure, --insecure) if the network is trusted");
  }
  if (!is_loopback(host) && !options_.credentials.tls) {
    MUSTER_LOG(warning) << options_.task << " listens on " << options_.address
                        << " without encryption: whoever reaches it can run programs in it";
  }
  grpc::ServerBuilder builder;
  int bound = 0;
  grpc_->credentials = server_credentials(
      std::make_shared<CurrentCredentials>(options_.credentials, CertificateUse{.task = options_.task}));
  builder.AddListeningPort(options_.address, grpc_->credentials, &bound);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  set_transport_arguments([&](const char* name, int value) { builder.AddChannelArgument(name, value); });
  const int64_t most = std::min<int64_t>(options_.max_message_bytes, std::numeric_limits<int>::max());
  builder.SetMaxReceiveMessageSize(options_.max_message_bytes > most ? -1 : static_cast<int>(most));
  builder.SetMaxSendMessageSize(-1);
  // Above our own limit, which has words for those who reach it: a call over this one waits at its caller.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 2 * options_.max_calls_per_peer);
  builder.RegisterAsyncGenericService(&grpc_->service);
  grpc_->queue = builder.AddCompletionQueue();
  grpc_->server = builder.BuildAndStart();
  if (!grpc_->server || bound == 0) {
    if (grpc_->server) grpc_->server->Shutdown();
    grpc_->queue->Shutdown();
    void* tag = nullptr;
    for (bool ok = false; grpc_->queue->Next(&tag, &ok);) {
    }
    throw already_exists("server ", options_.task, ": cannot listen on ", options_.address,
                         "; somebody else does, or the address is not this machine's");
  }
  address_ = str_cat(host, ":", bound);
  if (options_.credentials.tls) {
    handshakes_ = std::make_unique<HandshakeWatch>(
        bound, [this](const std::string& peer, const std::string& why) { refuse_handshake(peer, why); });
  }
  for (int i = 0; i < kWaiting; ++i) ServerCall::wait_for(*this);
  // If calls took all threads, nobody would read the network: not even pings were answered, and every caller took the
  // server for dead. So there may be as many as the gate keeps, those whose turn it is to read, and one that looks.
  grpc_->readers.emplace(*grpc_->queue, NetworkReadersOptions{.most_turns = most_turns(),
                                                              .max_threads = options_.max_threads + most_turns() + 1,
                                                              .look =
                                                                  [this] {
                                                                    grpc_->gate.look();
                                                                    grpc_->bytes->look();
                                                                    lines_.sweep();
                                                                    once_->look();
                                                                  },
                                                              .on_start = options_.on_thread_start});
}

RpcServer::~RpcServer() {
  std::vector<std::shared_ptr<RpcCall>> calls;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    for (auto& [raw, weak] : under_way_) {
      if (auto call = weak.lock()) calls.push_back(std::move(call));
    }
  }
  const Status why(StatusCode::kUnavailable, "the server stops", options_.task);
  for (auto& call : calls) static_cast<IncomingCall&>(*call).cancel(why);
  once_->cancel_all(why);
  calls.clear();
  grpc_->server->Shutdown(
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_seconds(kStopPatience.count(), GPR_TIMESPAN)));
  {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(+[](int* count) { return *count == 0; }, &calls_));
  }
  grpc_->wires.reset();
  grpc_->queue->Shutdown();
  grpc_->readers.reset();
}

size_t RpcServer::wires() const { return grpc_->wires ? grpc_->wires->wires() : 0; }
void RpcServer::break_wires() { grpc_->wires->break_all(); }

NearWireDoor* RpcServer::wire_door() {
  if (!near_memory_wanted()) return nullptr;
  std::call_once(grpc_->first_wire, [this] {
    grpc_->wires = std::make_unique<NearWireDoor>(
        [this](NearWireDoor::Arrived arrived) { return NearServerCall::take(*this, std::move(arrived)); },
        NetworkReadersOptions{.most_turns = most_turns(),
                              .max_threads = options_.max_threads + most_turns() + 1,
                              .on_start = options_.on_thread_start});
  });
  return grpc_->wires.get();
}

const RpcServer::MethodEntry* RpcServer::find(const std::string& name) const {
  auto it = methods_.find(name);
  return it == methods_.end() ? nullptr : &it->second;
}

void RpcServer::admit(const std::string& peer, const std::string& token) {
  absl::MutexLock lock(&mu_);
  if (stopping_) throw unavailable("server ", options_.task, " stops");
  if (!options_.credentials.token.empty() && !same_secret(token, "Bearer " + options_.credentials.token)) {
    if (refused_.size() < 10'000 && refused_[host_of_peer(peer)]++ == 0) {
      MUSTER_LOG(warning) << options_.task << " refuses the calls of " << host_of_peer(peer) << ": "
                          << (token.empty() ? "no token" : "wrong token");
    }
    throw Error(Status(StatusCode::kUnauthenticated,
                       str_cat(options_.task, token.empty() ? " asks for a token" : " does not know this token")));
  }
  int& calls = calls_of_peer_[peer];
  if (calls >= options_.max_calls_per_peer) {
    throw resource_exhausted(options_.task, " already works on ", calls, " calls of this connection");
  }
  ++calls;
}

// Once per host, as for tokens: who tries again and again does not fill the log.
void RpcServer::refuse_handshake(const std::string& host, const std::string& why) {
  absl::MutexLock lock(&mu_);
  if (refused_.size() < 10'000 && refused_["TLS " + host]++ == 0) {
    MUSTER_LOG(warning) << options_.task << " refuses the connection of " << (host.empty() ? "somebody" : host) << ": "
                        << why;
  }
}

int64_t RpcServer::bytes_under_way() const { return grpc_->bytes->held(); }
size_t RpcServer::calls_kept_back() const { return grpc_->bytes->waiting(); }
size_t RpcServer::remembered_requests() const { return once_->counts().requests; }

bool RpcServer::enter() {
  absl::MutexLock lock(&mu_);
  if (stopping_) return false;
  ++calls_;
  return true;
}

void RpcServer::leave() {
  absl::MutexLock lock(&mu_);
  --calls_;
}

void RpcServer::dismiss(const std::string& peer) {
  auto it = calls_of_peer_.find(peer);
  if (--it->second == 0) calls_of_peer_.erase(it);
}

void RpcServer::dispatch(const MethodEntry& entry, std::shared_ptr<RpcCall> call) {
  const uint64_t meant = call->request().envelope.incarnation();
  if (meant != 0 && meant != options_.incarnation) {
    return call->fail(
        restarted(options_.task, str_cat(options_.task, " was restarted since, and has lost what it had")));
  }
  if (const RequestId id = request_id_of(call->request().envelope); entry.once && id.number != 0) {
    // A copy, since the request goes over to the run; most have none.
    const auto wanted = call->request().envelope.wanted();
    call = once_->begin(id, wanted, std::move(call));
    if (!call) return;
  }
  try {
    entry.method(call);
  } catch (...) {
    call->fail(status_of(std::current_exception()));
  }
}

}  // namespace muster

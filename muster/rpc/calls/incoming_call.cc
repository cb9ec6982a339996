#include "muster/rpc/calls/incoming_call.h"

#include <utility>

#include "muster/base/blocking.h"
#include "muster/runtime/worker/lost_device.h"

namespace muster {
namespace {

constexpr const char* kNearPeer = "a process of this machine";
constexpr std::chrono::hours kNoDeadline(24 * 365);  // only calls that take as long as they take come on wires

// gRPC's own health service would answer whoever asks; ours is a call like all others. The answer is the message
// HealthCheckResponse{status: SERVING}, or NOT_SERVING.
constexpr const char* kHealthCheck = "/grpc.health.v1.Health/Check";
grpc::ByteBuffer health() {
  const grpc::Slice status(device_is_lost() ? "\x08\x02" : "\x08\x01", 2);
  return grpc::ByteBuffer(&status, 1);
}

}  // namespace

void IncomingCall::answer(Frame frame) {
  LentFrame message;
  try {
    const std::shared_ptr<LinesOut> lines = worth_a_parcel(frame) ? server_.lines_.to(lines_caller_) : nullptr;
    message = encode_for({caller_.get(), lines.get()}, std::move(frame));
  } catch (...) {
    return fail(status_of(std::current_exception()));
  }
  loan_ = message.loan;
  parcel_ = message.parcel;
  if (message.parcel && hold_) {
    message.parcel->keep(std::make_shared<ByteGate::Hold>(*std::exchange(hold_, std::nullopt)));
  }
  write(message.message);
  if (message.parcel) send_in_background(std::move(message.parcel));
}

void IncomingCall::fail(const Status& status) {
  Frame frame;
  frame.envelope.set_near_key(caller_ ? caller_->key() : 0);
  *frame.envelope.mutable_error() = to_proto(status.from(server_.options_.task));
  write(encode(std::move(frame)));
}

void IncomingCall::handle(const std::string& method) {
  if (method == kHealthCheck) return write(health());
  server_.door_.collect();  // who writes to a variable that was lent would have to copy it
  const RpcServer::MethodEntry* entry = server_.find(method);
  if (entry == nullptr) return refuse(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "no method " + method));
  using Pace = RpcServer::Pace;
  const bool waits = entry->pace == Pace::kUsual || entry->pace == Pace::kRun;
  const bool takes_long = entry->pace == Pace::kUsual || entry->pace == Pace::kShort;
  const FrameSigns signs = signs_of(message_);
  if (signs.heavy && !hold_) {
    // Nothing of what it sends apart, or lends, is taken before.
    int64_t weight = 0;
    try {
      weight = weight_of(message_);
    } catch (...) {
      return fail(status_of(std::current_exception()));
    }
    auto at_once = server_.grpc_->bytes->take(weight, [this, entry](ByteGate::Hold hold) {
      hold_ = std::move(hold);
      server_.grpc_->gate.run_later([this, entry] { run(*entry); });
    });
    if (!at_once) return;  // another thread may be at it
    hold_ = std::move(at_once);
  }
  if (takes_long || message_.Length() > kLongCopy) about_to_block();
  if (!waits && !signs.parcel) return run(*entry);
  server_.grpc_->gate.run([this, entry] { run(*entry); });
}

// Nothing of the call may be used afterwards.
void IncomingCall::run(const RpcServer::MethodEntry& entry) {
  std::shared_ptr<RpcCall> call = self_;
  try {
    request_ = decode(message_, {.lender = [this](uint64_t key) { return find_caller(key); },
                                 .line = [this](uint64_t key) { return server_.lines_.from(key); },
                                 .most_bytes = server_.options_.max_message_bytes,
                                 .until = deadline_,
                                 .cancellation = &cancellation_});
    message_.Clear();
  } catch (const LoanLost&) {
    return refuse_loan();
  } catch (...) {
    return fail(status_of(std::current_exception()));
  }
  if (const std::string& meant = request_.envelope.task(); !meant.empty() && meant != server_.options_.task) {
    return refuse(grpc::Status(grpc::StatusCode::UNAVAILABLE, str_cat("here is ", server_.options_.task, ", not ",
                                                                      std::string_view(meant).substr(0, 200))));
  }
  find_caller(request_.envelope.near_key());
  lines_caller_ = request_.envelope.caller();
  server_.dispatch(entry, std::move(call));
}

const std::shared_ptr<NearConnection>& IncomingCall::find_caller(uint64_t key) {
  if (!caller_) caller_ = server_.door_.find(key);
  return caller_;
}

void IncomingCall::refuse_loan() {
  Frame frame;
  frame.envelope.set_near_key(caller_ ? caller_->key() : 0);
  frame.envelope.set_loan_refused(true);
  write(encode(std::move(frame)));
}

void IncomingCall::take_back_unsent() {
  if (caller_) caller_->ledger().end(loan_);
  if (parcel_) parcel_->break_off();
}

// ---- On a wire
NearServerCall::NearServerCall(RpcServer& server, NearWireDoor::Arrived arrived)
    : IncomingCall(server), wire_(std::move(arrived.wire)), method_(std::move(arrived.method)) {
  message_ = std::move(arrived.message);
  peer_ = kNearPeer;
  deadline_ = std::chrono::steady_clock::now() + kNoDeadline;
}

std::optional<NearWireDoor::Handling> NearServerCall::take(RpcServer& server, NearWireDoor::Arrived arrived) {
  if (!server.enter()) return std::nullopt;
  server.requests_.fetch_add(1, std::memory_order_relaxed);
  const std::shared_ptr<NearServerCall> call(new NearServerCall(server, std::move(arrived)));
  call->self_ = call;
  {
    absl::MutexLock lock(&server.mu_);
    server.under_way_[call.get()] = call;
  }
  auto gone = [weak = std::weak_ptr(call)] {
    if (const auto left = weak.lock()) left->cancel(Status(StatusCode::kCancelled, "the caller has gone"));
  };
  return NearWireDoor::Handling{.event = call.get(), .gone = std::move(gone)};
}

void NearServerCall::happened(bool) { handle(method_); }

void NearServerCall::write(const grpc::ByteBuffer& message) {
  if (!wire_->answer(message)) take_back_unsent();
  release();
}

void NearServerCall::refuse(const grpc::Status& status) {
  wire_->refuse(status);
  release();
}

void NearServerCall::release() {
  RpcServer& server = server_;
  std::shared_ptr<IncomingCall> last;
  {
    absl::MutexLock lock(&server.mu_);
    server.under_way_.erase(this);
    last = std::move(self_);
  }
  last.reset();
  server.leave();
}

}  // namespace muster

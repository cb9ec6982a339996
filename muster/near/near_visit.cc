#include "muster/near/near_visit.h"

#include <cerrno>

#include "muster/base/log.h"
#include "muster/near/near_socket.h"

namespace muster {
namespace {

constexpr int kMostFailures = 8;  // after that, a channel lends nothing any more

}  // namespace

std::shared_ptr<NearConnection> NearVisit::connection() const {
  absl::MutexLock lock(&mu_);
  return connection_;
}

void NearVisit::met(std::shared_ptr<NearConnection> connection) {
  absl::MutexLock lock(&mu_);
  connection_.swap(connection);
  state_ = State::kMet;
}

void NearVisit::failed() {
  absl::MutexLock lock(&mu_);
  count_failure();
}

void NearVisit::count_failure() {
  connection_ = nullptr;
  state_ = ++failures_ < kMostFailures ? State::kUnmet : State::kMet;
}

void NearVisit::forget(uint64_t key) {
  absl::MutexLock lock(&mu_);
  if (!connection_ || connection_->key() != key) return;
  connection_ = nullptr;
  state_ = State::kUnmet;
}

void NearVisit::distrust(uint64_t key) {
  absl::MutexLock lock(&mu_);  // two calls may find the same loan lost: that is one failure
  if (connection_ && connection_->key() == key) count_failure();
}

void NearVisit::meet(const Ask& ask) {
  {
    absl::MutexLock lock(&mu_);
    if (state_ != State::kUnmet) return;
    state_ = near_memory_wanted() ? State::kMeeting : State::kMet;
    if (state_ == State::kMet) return;
  }
  ask(false, [self = shared_from_this(), ask](const Status& status, const std::string& door) {
    if (!status.ok()) return self->failed();
    self->knock(ask, door);
  });
}

void NearVisit::knock(const Ask& ask, const std::string& door) {
  Descriptor socket = connect_to(door);
  if (!socket) return errno == EAGAIN ? failed() : met(nullptr);  // of another machine, or many knock at once
  std::optional<NearProcess> process = NearProcess::behind(socket);
  if (!process) return met(nullptr);
  // In a shared_ptr, because a std::function is copied.
  auto parts = std::make_shared<NearConnection::Parts>(NearConnection::Parts{
      .socket = std::move(socket), .process = *std::move(process), .ledger = std::make_unique<LoanLedger>()});
  if (!send_letter(parts->socket, {.word = NearWord::kHello, .ledger = parts->ledger->place()})) return failed();
  ask(true, [self = shared_from_this(), parts](const Status& status, const std::string&) {
    if (!status.ok()) return self->failed();
    self->enter(std::move(*parts));
  });
}

void NearVisit::enter(NearConnection::Parts parts) {
  NearLetter welcome;
  std::string task;
  if (receive_letter(parts.socket, parts.process, welcome, &task) != Received::kMessage ||
      welcome.word != NearWord::kWelcome) {
    return met(nullptr);
  }
  if (!task_.empty() && task != task_) {
    MUSTER_LOG(warning) << task_ << " has named the door of " << task << " as its own: its tensors are sent";
    return met(nullptr);
  }
  parts.theirs = welcome.ledger;
  parts.key = welcome.key;
  parts.they_read = welcome.reads != 0;
  parts.we_read = can_read(parts.process, parts.theirs);
  if (!parts.we_read && !parts.they_read) return met(nullptr);
  if (!send_letter(parts.socket, {.word = NearWord::kReady, .reads = parts.we_read ? 1u : 0u})) return failed();
  met(std::make_shared<NearConnection>(std::move(parts)));
}

}  // namespace muster

#include "muster/rpc/acquaintance.h"

#include <unistd.h>

#include <array>
#include <atomic>

#include "muster/rpc/near_memory.h"
#include "muster/runtime/run_options.h"

namespace muster {
namespace {

constexpr size_t kMostMeetings = 256;
constexpr size_t kMostKnown = 16'384;
constexpr int kMostFailures = 8;  // after that, a channel lends nothing any more

// Writes a number where other processes can read it, until 1024 others were written.
uint64_t show(uint64_t number) {
  static auto& board = *new std::array<std::atomic<uint64_t>, 1024>{};
  static std::atomic<size_t> next{0};
  std::atomic<uint64_t>& place = board[next.fetch_add(1, std::memory_order_relaxed) % board.size()];
  place.store(number, std::memory_order_seq_cst);
  return reinterpret_cast<uint64_t>(&place);
}

bool shows(pid_t process, uint64_t address, uint64_t number) {
  uint64_t shown = 0;
  return process > 0 && read_memory(process, {{&shown, address, sizeof shown}}) && shown == number;
}

}  // namespace

proto::MeetAnswer Acquaintances::meet(const proto::MeetRequest& request) {
  proto::MeetAnswer answer;
  if (machine_name().empty() || request.machine() != machine_name()) return answer;
  answer.set_machine(machine_name());
  if (request.meeting() == 0) {
    const Meeting meeting{random_id(), random_id()};
    answer.set_process(::getpid());
    answer.set_answer_address(show(request.question()));
    answer.set_meeting(meeting.id);
    answer.set_question(meeting.question);
    absl::MutexLock lock(&mu_);
    if (meetings_.size() == kMostMeetings) meetings_.pop_front();
    meetings_.push_back(meeting);
    return answer;
  }
  Meeting meeting;
  {
    absl::MutexLock lock(&mu_);
    for (size_t i = 0; i < meetings_.size(); ++i) {
      if (meetings_[i].id != request.meeting()) continue;
      meeting = meetings_[i];
      meetings_.erase(meetings_.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
  }
  if (meeting.id == 0) return answer;
  const auto process = static_cast<pid_t>(request.process());
  const NearPeer peer{.id = random_id(),
                      .process = process,
                      .we_read = shows(process, request.answer_address(), meeting.question),
                      .they_read = request.reads()};
  if (!peer.we_read && !peer.they_read) return answer;
  answer.set_acquaintance(peer.id);
  answer.set_reads(peer.we_read);
  absl::MutexLock lock(&mu_);
  if (order_.size() == kMostKnown) {
    known_.erase(order_.front());
    order_.pop_front();
  }
  order_.push_back(peer.id);
  known_[peer.id] = peer;
  return answer;
}

NearPeer Acquaintances::find(uint64_t id) const {
  if (id == 0) return {};
  absl::MutexLock lock(&mu_);
  auto it = known_.find(id);
  return it == known_.end() ? NearPeer() : it->second;
}

NearPeer Acquaintance::peer() const {
  absl::MutexLock lock(&mu_);
  return peer_;
}

void Acquaintance::met(const NearPeer& peer) {
  absl::MutexLock lock(&mu_);
  state_ = State::kMet;
  peer_ = peer;
}

void Acquaintance::failed() {
  absl::MutexLock lock(&mu_);
  count_failure();
}

void Acquaintance::count_failure() {
  peer_ = {};
  state_ = ++failures_ < kMostFailures ? State::kUnmet : State::kMet;
}

void Acquaintance::forget(uint64_t id) {
  absl::MutexLock lock(&mu_);
  if (id == 0 || peer_.id != id) return;
  peer_ = {};
  state_ = State::kUnmet;
}

void Acquaintance::distrust(uint64_t id) {
  absl::MutexLock lock(&mu_);  // two calls may find the same loan lost: that is one failure
  if (id != 0 && peer_.id == id) count_failure();
}

void Acquaintance::meet(const Ask& ask) {
  {
    absl::MutexLock lock(&mu_);
    if (state_ != State::kUnmet) return;
    state_ = machine_name().empty() ? State::kMet : State::kMeeting;
    if (state_ == State::kMet) return;
  }
  proto::MeetRequest request;
  request.set_machine(machine_name());
  request.set_question(random_id());
  ask(request, [self = shared_from_this(), ask, question = request.question()](const Status& status,
                                                                               const proto::MeetAnswer& answer) {
    if (!status.ok()) return self->failed();
    if (answer.machine() != machine_name()) return self->met({});
    self->answered(ask, question, answer);
  });
}

void Acquaintance::answered(const Ask& ask, uint64_t question, const proto::MeetAnswer& answer) {
  NearPeer peer{.process = static_cast<pid_t>(answer.process())};
  peer.we_read = shows(peer.process, answer.answer_address(), question);
  proto::MeetRequest request;
  request.set_machine(machine_name());
  request.set_meeting(answer.meeting());
  request.set_process(::getpid());
  request.set_answer_address(show(answer.question()));
  request.set_reads(peer.we_read);
  ask(request, [self = shared_from_this(), peer](const Status& status, const proto::MeetAnswer& last) mutable {
    if (!status.ok()) return self->failed();
    if (last.acquaintance() == 0) return self->met({});
    peer.id = last.acquaintance();
    peer.they_read = last.reads();
    self->met(peer);
  });
}

}  // namespace muster

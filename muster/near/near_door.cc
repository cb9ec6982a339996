#include "muster/near/near_door.h"

#include <absl/strings/str_cat.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>

#include "muster/near/near_socket.h"
#include "muster/runtime/worker/run_options.h"

namespace muster {
namespace {

constexpr size_t kMostVisitors = 64;
constexpr auto kBorrowed = std::chrono::seconds(60);  // at most, by one of whom nothing is heard
constexpr auto kSweep = std::chrono::seconds(1);
constexpr auto kLast = std::chrono::seconds(2);  // for borrowers, when the door goes

// Each of them takes two descriptors, and the network needs some, too.
size_t most_known() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return std::min<size_t>(limit.rlim_cur / 8, 512);
}

}  // namespace

NearDoor::NearDoor(std::string task) : task_(task.substr(0, kLongestTask)), watched_(::epoll_create1(EPOLL_CLOEXEC)) {}

NearDoor::~NearDoor() {
  const auto end = Clock::now() + kLast;
  while (lent() > 0 && Clock::now() < end) {
    epoll_event event{};
    ::epoll_wait(watched_.number(), &event, 1, 50);  // ms: calls that failed take their loans back themselves
    receive_returns();
  }
}

void NearDoor::open() {
  opened_ = true;
  if (!near_memory_wanted() || !watched_) return;
  std::string name = absl::StrCat("muster-", absl::Hex(random_id()), absl::Hex(random_id()));
  listener_ = listen_at(name);
  if (listener_) name_ = std::move(name);
}

std::string NearDoor::name() {
  absl::MutexLock lock(&mu_);
  if (!opened_) open();
  return name_;
}

void NearDoor::look() {
  receive_returns();  // which finds those who have gone
  absl::MutexLock lock(&mu_);
  if (!listener_) return;
  while (Descriptor socket = accept_from(listener_)) {
    std::optional<NearProcess> process = NearProcess::behind(socket);
    if (!process) continue;
    if (visitors_.size() == kMostVisitors) visitors_.erase(visitors_.begin());
    visitors_.push_back({.parts = {.socket = std::move(socket), .process = *std::move(process), .ledger = nullptr}});
  }
  let_in();
}

void NearDoor::let_in() {
  std::erase_if(visitors_, [this](Visitor& visitor) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    Step step = advance(visitor);
    if (step == Step::kEnters) {
      auto connection = std::make_shared<NearConnection>(std::move(visitor.parts));
      epoll_event event{.events = EPOLLIN, .data = {.u64 = connection->key()}};
      if (known_.size() < most_known() &&
          ::epoll_ctl(watched_.number(), EPOLL_CTL_ADD, connection->socket().number(), &event) == 0) {
        known_[connection->key()] = std::move(connection);
      }
    }
    return step != Step::kWaits;
  });
}

NearDoor::Step NearDoor::advance(Visitor& visitor) const {
  NearConnection::Parts& parts = visitor.parts;
  NearLetter letter;
  while (true) {
    const Received received = receive_letter(parts.socket, parts.process, letter);
    if (received == Received::kNothing) return Step::kWaits;
    if (received == Received::kEnd) return Step::kGoes;
    if (!visitor.greeted) {
      if (letter.word != NearWord::kHello) return Step::kGoes;
      visitor.greeted = true;
      parts.theirs = letter.ledger;
      parts.we_read = can_read(parts.process, parts.theirs);
      parts.key = random_id();
      parts.ledger = std::make_unique<LoanLedger>(lent_);
      const NearLetter welcome{.word = NearWord::kWelcome,
                               .ledger = parts.ledger->place(),
                               .key = parts.key,
                               .reads = parts.we_read ? 1u : 0u};
      if (!send_letter(parts.socket, welcome, task_)) return Step::kGoes;
    } else {
      // Sent by the process that was taken hold of, after that: so it is that process.
      parts.they_read = letter.reads != 0;
      return letter.word == NearWord::kReady && (parts.we_read || parts.they_read) ? Step::kEnters : Step::kGoes;
    }
  }
}

std::shared_ptr<NearConnection> NearDoor::find(uint64_t key) {
  if (key == 0) return nullptr;
  absl::MutexLock lock(&mu_);
  auto it = known_.find(key);
  if (it == known_.end() && !visitors_.empty()) {
    let_in();  // who was ready before it called
    it = known_.find(key);
  }
  return it == known_.end() ? nullptr : it->second;
}

void NearDoor::collect() {
  if (lent() > 0) receive_returns();
}

void NearDoor::receive_returns() {
  if (!watched_) return;
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(watched_.number(), events.data(), events.size(), 0);
  std::vector<std::shared_ptr<NearConnection>> some;  // and the last to hold those that have gone, with no lock held
  bool sweep = false;
  {
    absl::MutexLock lock(&mu_);
    for (int i = 0; i < count; ++i) {
      auto it = known_.find(events[i].data.u64);
      if (it != known_.end()) some.push_back(it->second);
    }
    if (const auto now = Clock::now(); now - swept_ > kSweep) {
      swept_ = now;
      sweep = true;
      for (const auto& [key, connection] : known_) some.push_back(connection);
    }
  }
  for (const std::shared_ptr<NearConnection>& connection : some) {
    if (sweep) connection->ledger().end_all_before(Clock::now() - kBorrowed);
    if (connection->receive_returns() && (!sweep || connection->process().alive())) continue;
    absl::MutexLock lock(&mu_);
    known_.erase(connection->key());
  }
}

}  // namespace muster

#include "muster/rpc/calls/once_calls.h"

#include <algorithm>

#include "muster/rpc/rpc_server.h"

namespace muster {
namespace {

constexpr int64_t kManyBytes = 64 << 10;  // bytes

constexpr size_t kMostRequests = 16'384;             // of a client; its connection allows fewer at the same time
constexpr auto kSlowest = std::chrono::seconds(60);  // a call may have been on its way for so long

int64_t bytes_of_answer(const Frame& frame) {
  auto bytes = static_cast<int64_t>(frame.envelope.header().size());
  for (const at::Tensor& tensor : frame.tensors) {
    if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

// What of an answer is kept: what was only read would keep its variable's memory from being written in place.
Frame kept_of(const Frame& answer) {
  return {answer.envelope, {answer.tensors.begin(), answer.tensors.end() - static_cast<ptrdiff_t>(answer.fleeting)}};
}

}  // namespace

// Runs in place of the first call of a request, and has its answer afterwards.
//
//   wanted --last caller is lost--> unwanted --grace has passed--> cancelled
//     ^                                |
//     '------------- asked again ------'          finish() ends all of these
class OnceCalls::Run final : public RpcCall, public std::enable_shared_from_this<Run> {
 public:
  Run(OnceCalls& owner, const ClientId& id, Client& client, uint64_t number, std::shared_ptr<RpcCall> call)
      : owner_(owner), id_(id), client_(client), number_(number), call_(std::move(call)) {
    request_ = std::move(call_->request());
  }

  const std::string& peer() const override { return call_->peer(); }
  std::chrono::steady_clock::time_point deadline() const override { return call_->deadline(); }
  std::chrono::milliseconds age() const override { return call_->age(); }
  void answer(Frame frame) override {
    const Callers callers = finish(Status(), frame);
    for (const auto& caller : callers.again) caller->answer(frame);
    callers.first->answer(std::move(frame));
    request_ = {};
  }
  void fail(const Status& status) override {
    const Callers callers = finish(status, {});
    for (const auto& caller : callers.again) caller->fail(status);
    callers.first->fail(status);
    request_ = {};
  }

  void cancel(const Status& why) { cancellation_.cancel(why); }

  // The call that it runs in place of, or another one of the same request.
  void add_caller(const std::shared_ptr<RpcCall>& caller, bool first) ABSL_LOCKS_EXCLUDED(mu_) {
    Status status;
    Frame answer;
    if (!waits(caller, first, status, answer)) {
      return status.ok() ? caller->answer(std::move(answer)) : caller->fail(status);
    }
    auto lost = [weak = weak_from_this()](const Status&) {
      if (std::shared_ptr<Run> run = weak.lock()) run->lose_caller();
    };
    Cancellation::Registration registration = caller->cancellation().on_cancel(lost);
    absl::MutexLock lock(&mu_);
    if (!finished_) registrations_.push_back(std::move(registration));
  }

  Frame drop_answer() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    status_ = Status(StatusCode::kAborted, "the request was applied, but its answer was too large to be kept for long");
    return std::exchange(answer_, {});
  }

 private:
  struct Callers {
    std::shared_ptr<RpcCall> first;
    std::vector<std::shared_ptr<RpcCall>> again;
  };

  bool waits(const std::shared_ptr<RpcCall>& caller, bool first, Status& status, Frame& answer)
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (finished_) {
      status = status_;
      answer = answer_;
      return false;
    }
    ++callers_;
    deadline_ = std::max(deadline_, caller->deadline());
    if (!first) again_.push_back(caller);
    return true;
  }

  void lose_caller() ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      if (finished_ || --callers_ > 0) return;
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - std::chrono::steady_clock::now());
      const auto wait = std::min(owner_.options_.grace, left);
      if (wait.count() > 0) {
        auto patience_ends = [weak = weak_from_this(), loss = ++losses_] {
          if (std::shared_ptr<Run> run = weak.lock()) run->end_unless_wanted(loss);
        };
        alarms_.push_back(owner_.timer_.after(absl::FromChrono(wait), std::move(patience_ends)));
        return;
      }
    }
    end();
  }

  void end_unless_wanted(int loss) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      if (callers_ > 0 || losses_ != loss) return;
    }
    end();
  }

  void end() { cancel(Status(StatusCode::kCancelled, "the caller has gone")); }

  // The server may be destroyed once the callers are answered: nothing of it is used afterwards.
  Callers finish(const Status& status, const Frame& answer) ABSL_LOCKS_EXCLUDED(mu_) {
    Callers callers{.first = std::move(call_), .again = {}};
    std::vector<DeadlineTimer::Alarm> alarms;
    std::vector<Cancellation::Registration> registrations;
    Frame kept = kept_of(answer);
    const int64_t bytes = bytes_of_answer(kept);
    {
      absl::MutexLock lock(&mu_);
      finished_ = true;
      status_ = status;
      answer_ = std::move(kept);
      callers.again.swap(again_);
      alarms.swap(alarms_);
      registrations.swap(registrations_);
    }
    owner_.finish(id_, client_, number_, bytes);
    return callers;
  }

  OnceCalls& owner_;
  const ClientId id_;
  Client& client_;
  const uint64_t number_;
  std::shared_ptr<RpcCall> call_;  // until it is answered

  absl::Mutex mu_;
  int callers_ ABSL_GUARDED_BY(mu_) = 0;  // that wait for the answer
  int losses_ ABSL_GUARDED_BY(mu_) = 0;   // of the last of them
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  std::chrono::steady_clock::time_point deadline_ ABSL_GUARDED_BY(mu_);  // of the most patient one
  std::vector<std::shared_ptr<RpcCall>> again_ ABSL_GUARDED_BY(mu_);     // those after the first
  std::vector<Cancellation::Registration> registrations_ ABSL_GUARDED_BY(mu_);
  std::vector<DeadlineTimer::Alarm> alarms_ ABSL_GUARDED_BY(mu_);
  Status status_ ABSL_GUARDED_BY(mu_);  // from here on: once it has finished
  Frame answer_ ABSL_GUARDED_BY(mu_);
};

OnceCalls::OnceCalls(OnceCallsOptions options) : options_(std::move(options)) {}

OnceCalls::~OnceCalls() = default;

bool OnceCalls::Client::wants(uint64_t number) const {
  return number >= newest || std::binary_search(wanted.begin(), wanted.end(), number);
}

std::vector<OnceCalls::Request>::iterator OnceCalls::Client::find(uint64_t number) {
  return std::lower_bound(requests.begin(), requests.end(), number,
                          [](const Request& request, uint64_t other) { return request.number < other; });
}

std::shared_ptr<OnceCalls::Run> OnceCalls::find_or_begin(const RequestId& id, Wanted wanted,
                                                         const std::shared_ptr<RpcCall>& call, const Begun& begun) {
  if (left_.contains(id.client)) {
    begun.refused =
        Status(StatusCode::kAborted, str_cat("request ", id.number, " of a client that has left is not run"));
    return nullptr;
  }
  Client& client = find_or_add(id.client, begun.dropped);
  hear(client, id.number, wanted, begun.dropped);
  auto request = client.find(id.number);
  const bool known = request != client.requests.end() && request->number == id.number;
  if (!known) begun.refused = refusal(client, id.number, *call);
  if (!begun.refused.ok()) return nullptr;
  if (!known) request = add(client, request, id.number);
  begun.is_first = !request->run;
  if (begun.is_first) {
    if (known) begun.cancelled = Status(StatusCode::kCancelled, "cancelled by the caller");
    if (!all_cancelled_.ok()) begun.cancelled = all_cancelled_;
    request->run = std::make_shared<Run>(*this, id.client, client, id.number, call);
    ++client.running;
  }
  return request->run;
}

std::shared_ptr<RpcCall> OnceCalls::begin(const RequestId& id, Wanted wanted, std::shared_ptr<RpcCall> call) {
  Runs dropped;
  std::shared_ptr<Run> run;
  Status refused, cancelled;
  bool is_first = false;
  {
    absl::MutexLock lock(&mu_);
    run = find_or_begin(id, wanted, call, {dropped, refused, cancelled, is_first});
  }
  if (!refused.ok()) {
    call->fail(refused);
    return nullptr;
  }
  run->add_caller(call, is_first);
  if (!is_first) return nullptr;
  if (!cancelled.ok()) run->cancel(cancelled);
  return run;
}

void OnceCalls::acknowledge(const RequestId& id, Wanted wanted) {
  Runs dropped;
  absl::MutexLock lock(&mu_);
  if (auto known = clients_.find(id.client); known != clients_.end()) {
    hear(known->second, id.number, wanted, dropped);
  }
}

void OnceCalls::leave(const ClientId& id) {
  Runs dropped;
  absl::MutexLock lock(&mu_);
  const auto known = clients_.find(id);
  if (known == clients_.end()) return;
  known->second.leaves = true;
  if (known->second.running == 0) end(id, known->second, dropped);
}

// The last that is heard of it.
void OnceCalls::end(const ClientId& id, Client& client, Runs& dropped) {
  for (Request& request : client.requests) drop(client, request, dropped);
  numbers_ -= client.wanted.size();
  left_[id] = options_.now();
  clients_.erase(id);
}

void OnceCalls::cancel(const RequestId& id) {
  Runs dropped;
  std::shared_ptr<Run> run;
  {
    absl::MutexLock lock(&mu_);
    if (left_.contains(id.client)) return;
    Client& client = find_or_add(id.client, dropped);
    for (const auto& [number, unwanted] : client.unwanted) {
      if (number == id.number) run = unwanted;
    }
    auto request = client.find(id.number);
    if (request != client.requests.end() && request->number == id.number) {
      run = request->run;
    } else if (client.wants(id.number) && client.requests.size() < kMostRequests) {
      add(client, request, id.number);
    }
  }
  if (run) run->cancel(Status(StatusCode::kCancelled, "cancelled by the caller"));
}

void OnceCalls::cancel_all(const Status& why) {
  std::vector<std::shared_ptr<Run>> runs;
  {
    absl::MutexLock lock(&mu_);
    all_cancelled_ = why;
    for (auto& [id, client] : clients_) {
      for (const Request& request : client.requests) {
        if (request.run) runs.push_back(request.run);
      }
      for (const auto& [number, run] : client.unwanted) runs.push_back(run);
    }
  }
  for (auto& run : runs) run->cancel(why);
}

OnceCalls::Counts OnceCalls::counts() const {
  absl::MutexLock lock(&mu_);
  Counts counts{.clients = clients_.size(), .left = left_.size(), .requests = 0, .numbers = numbers_, .bytes = bytes_};
  for (const auto& [id, client] : clients_) counts.requests += client.requests.size();
  return counts;
}

OnceCalls::Client& OnceCalls::find_or_add(const ClientId& id, Runs& dropped) {
  const Time now = options_.now();
  if (now >= look_again_ || too_many()) forget_silent(now, dropped);
  Client& client = clients_[id];
  client.heard = now;
  return client;
}

bool OnceCalls::too_many() const {
  constexpr size_t kSmaller = 10;  // at least, than one that may come again
  return clients_.size() + left_.size() / kSmaller >= options_.most_clients || numbers_ >= options_.most_numbers;
}

std::vector<OnceCalls::Request>::iterator OnceCalls::add(Client& client, std::vector<Request>::iterator place,
                                                         uint64_t number) {
  ++numbers_;
  return client.requests.insert(place, {.number = number});
}

Status OnceCalls::refusal(const Client& client, uint64_t number, const RpcCall& call) const {
  if (!client.wants(number)) {
    return {StatusCode::kAborted, str_cat("request ", number, " of this client is done with, and is not run again")};
  }
  // Had it come before, its client was heard of since it was first made; so it came only if that was forgotten.
  const auto age = call.age();
  if (age.count() > 0 && last_forgotten_ != Time::min() && client.heard - age - kSlowest <= last_forgotten_) {
    return {StatusCode::kAborted, str_cat("request ", number, " of this client was first made ", age.count() / 1000,
                                          " s ago, which is too long to tell whether it was applied; it is not run")};
  }
  if (client.requests.size() >= kMostRequests) {
    return {StatusCode::kResourceExhausted, str_cat("a client that wants the answers to ", kMostRequests, " requests")};
  }
  return {};
}

// Requests may overtake each other: only what the latest says counts.
void OnceCalls::hear(Client& client, uint64_t number, Wanted wanted, Runs& dropped) {
  if (number <= client.newest) return;
  client.newest = number;
  numbers_ -= client.wanted.size();
  client.wanted.clear();
  if (wanted.size() > kMostRequests) wanted.remove_prefix(wanted.size() - kMostRequests);
  for (uint64_t distance : wanted) {
    if (distance > 0 && distance < number) client.wanted.push_back(number - distance);
  }
  numbers_ += client.wanted.size();
  if (!std::is_sorted(client.wanted.begin(), client.wanted.end()))
    std::sort(client.wanted.begin(), client.wanted.end());
  std::erase_if(client.requests, [&](Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (client.wants(request.number)) return false;
    drop(client, request, dropped);
    return true;
  });
}

void OnceCalls::drop(Client& client, Request& request, Runs& dropped) {
  bytes_ -= request.bytes;
  --numbers_;
  if (request.run && !request.finished) {
    client.unwanted.emplace_back(request.number, std::move(request.run));
  } else {
    dropped.push_back(std::move(request.run));
  }
}

void OnceCalls::forget_silent(Time now, Runs& dropped) {
  look_again_ = now + options_.keep_silent / 4;
  auto forget_those_before = [&](Time latest) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    absl::erase_if(clients_, [&](auto& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      Client& client = entry.second;
      if (client.running > 0 || client.heard > latest) return false;
      last_forgotten_ = std::max(last_forgotten_, client.heard);
      for (Request& request : client.requests) drop(client, request, dropped);
      numbers_ -= client.wanted.size();
      return true;
    });
    absl::erase_if(left_, [&](const auto& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      if (entry.second > latest) return false;
      last_forgotten_ = std::max(last_forgotten_, entry.second);
      return true;
    });
  };
  forget_those_before(now - options_.keep_silent);
  if (!too_many()) return;
  std::vector<Time> times;
  for (const auto& [id, client] : clients_) times.push_back(client.heard);
  for (const auto& [id, when] : left_) times.push_back(when);
  auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  forget_those_before(*middle);
}

void OnceCalls::finish(const ClientId& id, Client& client, uint64_t number, int64_t bytes) {
  std::vector<Frame> dropped;
  Runs ended;
  std::shared_ptr<Run> last;
  absl::MutexLock lock(&mu_);
  --client.running;
  client.heard = options_.now();
  auto request = client.find(number);
  if (request == client.requests.end() || request->number != number) {
    auto unwanted = std::find_if(client.unwanted.begin(), client.unwanted.end(),
                                 [&](const auto& entry) { return entry.first == number; });
    last = std::move(unwanted->second);
    client.unwanted.erase(unwanted);
    if (client.leaves && client.running == 0) end(id, client, ended);
    return;
  }
  request->finished = true;
  request->bytes = bytes;
  bytes_ += bytes;
  if (client.leaves && client.running == 0) return end(id, client, ended);
  if (bytes_ > options_.most_bytes) drop_answers(request->run.get(), dropped);
}

void OnceCalls::look() {
  std::vector<Frame> dropped;
  absl::MutexLock lock(&mu_);
  const Time now = options_.now();
  if (now < look_for_large_ || bytes_ < kManyBytes) return;
  look_for_large_ = now + options_.keep_large / 8;
  for (auto& [id, client] : clients_) {
    if (client.heard > now - options_.keep_large) continue;
    for (Request& request : client.requests) {
      if (request.bytes < kManyBytes) continue;
      dropped.push_back(request.run->drop_answer());
      bytes_ -= std::exchange(request.bytes, 0);
    }
  }
}

void OnceCalls::drop_answers(const Run* latest, std::vector<Frame>& dropped) {
  std::vector<Client*> clients;
  for (auto& [id, client] : clients_) clients.push_back(&client);
  std::sort(clients.begin(), clients.end(), [](const Client* a, const Client* b) { return a->heard < b->heard; });
  for (Client* client : clients) {
    for (Request& request : client->requests) {
      if (bytes_ <= options_.most_bytes / 4 * 3) return;
      if (request.bytes == 0 || request.run.get() == latest) continue;
      dropped.push_back(request.run->drop_answer());
      bytes_ -= std::exchange(request.bytes, 0);
    }
  }
}

}  // namespace muster

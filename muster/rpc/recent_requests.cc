#include "muster/rpc/recent_requests.h"

#include "muster/base/check.h"

namespace muster {

bool RecentRequests::begin(uint64_t id, Waiter waiter) {
  if (id == 0) return true;
  Status status;
  Frame answer;
  {
    absl::MutexLock lock(&mu_);
    auto [it, is_new] = requests_.try_emplace(id);
    if (is_new) return true;
    Request& known = it->second;
    if (!known.done) {
      known.waiters.push_back(std::move(waiter));
      return false;
    }
    status = known.status;
    answer = known.answer;
    if (!known.kept) {
      status = Status(StatusCode::kAborted, "the request was applied before, but its answer was too large to keep");
    }
  }
  waiter(status, answer);
  return false;
}

void RecentRequests::finish(uint64_t id, const Status& status, const Frame& answer) {
  if (id == 0) return;
  std::vector<Waiter> waiters;
  {
    absl::MutexLock lock(&mu_);
    auto it = requests_.find(id);
    MUSTER_CHECK(it != requests_.end() && !it->second.done) << "request " << id;
    Request& request = it->second;
    request.done = true;
    waiters.swap(request.waiters);
    for (const at::Tensor& tensor : answer.tensors) {
      if (tensor.defined()) request.bytes += static_cast<int64_t>(tensor.nbytes());
    }
    request.bytes += static_cast<int64_t>(answer.envelope.header().size());
    request.kept = request.bytes <= most_bytes_ / 4;
    if (request.kept) {
      request.status = status;
      request.answer = answer;
    } else {
      request.bytes = 0;
    }
    bytes_ += request.bytes;
    order_.push_back(id);
    forget_old();
  }
  for (Waiter& waiter : waiters) waiter(status, answer);
}

void RecentRequests::forget_old() {
  while (order_.size() > most_ || bytes_ > most_bytes_) {
    auto it = requests_.find(order_.front());
    order_.pop_front();
    bytes_ -= it->second.bytes;
    requests_.erase(it);
  }
}

size_t RecentRequests::size() const {
  absl::MutexLock lock(&mu_);
  return requests_.size();
}

}  // namespace muster

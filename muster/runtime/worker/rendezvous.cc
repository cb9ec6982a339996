#include "muster/runtime/worker/rendezvous.h"

#include <algorithm>

#include "muster/base/check.h"

namespace muster {
namespace {

constexpr size_t kAbortedRemembered = 1024;

template <class Characters>
std::string text(const Characters& characters) {
  return {characters.begin(), characters.end()};
}

}  // namespace

bool AbortedSteps::add(uint64_t step, const Status& why) {
  if (entries_.empty()) {
    entries_.resize(kAbortedRemembered);
    places_.reserve(kAbortedRemembered + 1);
  }
  if (!places_.emplace(step, next_).second) return false;
  Entry& entry = entries_[next_];
  if (entry.code != StatusCode::kOk) places_.erase(entry.step);
  entry = {};  // what was too long for it goes
  entry.step = step;
  entry.code = why.code();
  entry.message.assign(why.message().begin(), why.message().end());
  entry.task.assign(why.task().begin(), why.task().end());
  entry.detail.assign(why.detail().begin(), why.detail().end());
  next_ = (next_ + 1) % entries_.size();
  return true;
}

std::optional<Status> AbortedSteps::find(uint64_t step) const {
  auto place = places_.find(step);
  if (place == places_.end()) return std::nullopt;
  const Entry& entry = entries_[place->second];
  return Status(entry.code, text(entry.message), text(entry.task), text(entry.detail));
}

void Rendezvous::send(uint64_t step, int64_t edge, at::Tensor value, uint64_t owner) {
  ReceiveDone waiter;
  {
    absl::MutexLock lock(&mu_);
    if (auto aborted = aborted_.find(step)) throw Error(*aborted);
    Step& edges = steps_[step];
    auto [it, is_new] = edges.try_emplace(edge);
    if (is_new) {
      it->second.value = std::move(value);
      it->second.owner = owner;
      return;
    }
    if (!it->second.waiter) throw already_exists("edge ", edge, " of step ", step, " was sent twice");
    waiter = std::move(it->second.waiter);
    edges.erase(it);
    if (edges.empty()) steps_.erase(step);
  }
  waiter(Status(), std::move(value));
}

uint64_t Rendezvous::receive(uint64_t step, int64_t edge, ReceiveDone done) {
  Status status;
  at::Tensor value;
  {
    absl::MutexLock lock(&mu_);
    if (auto aborted = aborted_.find(step)) {
      status = *aborted;
    } else {
      Step& edges = steps_[step];
      auto [it, is_new] = edges.try_emplace(edge);
      if (is_new) {
        it->second.waiter = std::move(done);
        return it->second.number = ++waiters_;
      }
      if (it->second.waiter) {
        status = Status(StatusCode::kAlreadyExists, str_cat("edge ", edge, " of step ", step, " has a reader"));
      } else {
        value = std::move(it->second.value);
        edges.erase(it);
        if (edges.empty()) steps_.erase(step);
      }
    }
  }
  done(status, std::move(value));
  return 0;
}

void Rendezvous::give_up(uint64_t step, int64_t edge, uint64_t number, const Status& why) {
  ReceiveDone waiter;
  {
    absl::MutexLock lock(&mu_);
    auto edges = steps_.find(step);
    if (edges == steps_.end()) return;
    auto it = edges->second.find(edge);
    if (it == edges->second.end() || !it->second.waiter || it->second.number != number) return;
    waiter = std::move(it->second.waiter);
    edges->second.erase(it);
    if (edges->second.empty()) steps_.erase(edges);
  }
  waiter(why, {});
}

void Rendezvous::abort(uint64_t step, const Status& why) {
  MUSTER_CHECK(!why.ok());
  Step edges;
  {
    absl::MutexLock lock(&mu_);
    if (!aborted_.add(step, why)) return;
    if (auto it = steps_.find(step); it != steps_.end()) {
      edges = std::move(it->second);
      steps_.erase(it);
    }
  }
  for (auto& [number, edge] : edges) {
    if (edge.waiter) edge.waiter(why, {});
  }
}

size_t Rendezvous::drop(uint64_t owner) {
  std::vector<at::Tensor> dropped;  // destroyed without the lock
  absl::MutexLock lock(&mu_);
  absl::erase_if(steps_, [&](auto& step) {
    absl::erase_if(step.second, [&](auto& edge) {
      if (edge.second.owner != owner || edge.second.waiter) return false;
      dropped.push_back(std::move(edge.second.value));
      return true;
    });
    return step.second.empty();
  });
  return dropped.size();
}

size_t Rendezvous::waiting_values() const {
  absl::MutexLock lock(&mu_);
  size_t count = 0;
  for (const auto& [step, edges] : steps_) {
    for (const auto& [number, edge] : edges) count += edge.value.defined() ? 1 : 0;
  }
  return count;
}

size_t Rendezvous::values_of(uint64_t step) const {
  absl::MutexLock lock(&mu_);
  const auto found = steps_.find(step);
  if (found == steps_.end()) return 0;
  return std::count_if(found->second.begin(), found->second.end(),
                       [](const auto& edge) { return edge.second.value.defined(); });
}

}  // namespace muster

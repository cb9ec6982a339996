#include "muster/runtime/worker/read_ahead.h"

namespace muster {

void ReadAhead::begin(std::function<Parts()> after) {
  after_ = std::move(after);
  Parts ended;  // destroyed without the lock
  Reads dropped;
  absl::MutexLock lock(&mu_);
  ended.swap(next_);
  dropped = std::exchange(for_this_, std::exchange(for_next_, {}));
}

const RemoteParts* ReadAhead::next() {
  Parts found = after_();
  absl::MutexLock lock(&mu_);
  if (!next_) next_ = std::move(found);
  return next_.get();
}

void ReadAhead::fail() {
  Reads dropped;
  absl::MutexLock lock(&mu_);
  for_next_.swap(dropped);
}

void ReadAhead::forget() {
  Reads dropped;
  absl::MutexLock lock(&mu_);
  for_this_.swap(dropped);
}

void ReadAhead::put(const Key& read, std::vector<at::Tensor> outputs) {
  absl::MutexLock lock(&mu_);
  for_next_[read] = std::move(outputs);
}

std::optional<std::vector<at::Tensor>> ReadAhead::take(const Key& read) {
  absl::MutexLock lock(&mu_);
  const auto found = for_this_.find(read);
  if (found == for_this_.end()) return std::nullopt;
  std::vector<at::Tensor> outputs = std::move(found->second);
  for_this_.erase(found);
  return outputs;
}

}  // namespace muster

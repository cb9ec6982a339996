#include "muster/distribute/coordinator/spent_closures.h"

#include <algorithm>
#include <utility>

#include "muster/runtime/memory/memory_pool.h"

namespace muster {
namespace {

bool is_small(const at::Tensor& argument) {
  return !argument.defined() || (argument.is_cpu() && argument.layout() == at::kStrided &&
                                 argument.storage().nbytes() <= SpentClosures::kSmallArgument);
}

// All that is not the closure's alone, or much.
void let_go(ScheduledClosure& closure) {
  closure.entry.reset();
  closure.variants.clear();
  closure.trace = nullptr;
  closure.resources.clear();
  closure.holds.clear();
  if (closure.result && (closure.watched() || closure.result->state() != RemoteResult::State::kNotReady)) {
    closure.result.reset();
  }
  if (!std::all_of(closure.arguments.begin(), closure.arguments.end(), is_small)) closure.arguments.clear();
}

}  // namespace

void SpentClosures::give(Batch closures) {
  std::erase_if(closures, [](const auto& closure) { return closure.use_count() > 1; });
  for (const auto& closure : closures) let_go(*closure);
  absl::MutexLock lock(&mu_);
  const size_t room = kMost - std::min(kMost, closures_.size());
  const auto end = closures.begin() + static_cast<std::ptrdiff_t>(std::min(room, closures.size()));
  closures_.insert(closures_.end(), std::make_move_iterator(closures.begin()), std::make_move_iterator(end));
  count_.store(closures_.size(), std::memory_order_relaxed);
}

void SpentClosures::free_some() {
  if (count() == 0) return;
  std::shared_ptr<ScheduledClosure> some[2];  // more than are made, so that they do not become more and more
  {
    absl::MutexLock lock(&mu_);
    for (auto& one : some) {
      if (closures_.empty()) break;
      one = std::move(closures_.back());
      closures_.pop_back();
    }
    count_.store(closures_.size(), std::memory_order_relaxed);
  }
  const MemoryPool::Use kept_for_the_next(true);
  for (auto& one : some) one.reset();
}

void SpentClosures::free_all() {
  Batch freed;
  absl::MutexLock lock(&mu_);
  freed.swap(closures_);
  count_.store(0, std::memory_order_relaxed);
}

}  // namespace muster

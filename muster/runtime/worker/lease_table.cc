#include "muster/runtime/worker/lease_table.h"

#include <algorithm>

namespace muster {

std::shared_ptr<LeaseTable::Entry>& LeaseTable::find_or_make(const Owner& owner) {
  std::shared_ptr<Entry>& entry = entries_[owner.id];
  if (!entry) entry = std::make_shared<Entry>(*this, Lease{owner, {}});
  entry->heard();
  return entry;
}

std::shared_ptr<LeaseTable::Entry> LeaseTable::of(const Owner& owner) {
  if (owner.id == 0) return nullptr;
  absl::MutexLock lock(&mu_);
  return find_or_make(owner);
}

bool LeaseTable::renew(const Lease& lease) {
  if (lease.owner.id == 0) throw invalid_argument("a lease of nobody: an owner has a number that is not 0");
  absl::MutexLock lock(&mu_);
  Lease& known = find_or_make(lease.owner)->lease_;
  for (const std::string& container : lease.containers) {
    auto& all = known.containers;
    if (std::find(all.begin(), all.end(), container) == all.end()) all.push_back(container);
  }
  auto lapsed = std::find(lapsed_.begin(), lapsed_.end(), lease.owner.id);
  if (lapsed == lapsed_.end()) return false;
  lapsed_.erase(lapsed);
  return true;
}

Lease LeaseTable::end(const Owner& owner) {
  absl::MutexLock lock(&mu_);
  auto it = entries_.find(owner.id);
  if (it == entries_.end()) return {owner, {}};
  Lease lease = it->second->lease_;
  entries_.erase(it);
  return lease;
}

std::vector<Lease> LeaseTable::tick() {
  constexpr size_t kRemembered = 1024;
  std::vector<Lease> ended;
  absl::MutexLock lock(&mu_);
  const int64_t now = now_.fetch_add(1, std::memory_order_relaxed) + 1;
  absl::erase_if(entries_, [&](const auto& entry) {
    // The tick in which it was last heard of may have been nearly over.
    if (now - entry.second->heard_.load(std::memory_order_relaxed) <= kTicks) return false;
    ended.push_back(entry.second->lease_);
    return true;
  });
  for (const Lease& lease : ended) lapsed_.push_back(lease.owner.id);
  while (lapsed_.size() > kRemembered) lapsed_.pop_front();
  return ended;
}

size_t LeaseTable::size() const {
  absl::MutexLock lock(&mu_);
  return entries_.size();
}

}  // namespace muster

#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_map.h>
#include <absl/synchronization/mutex.h>

#include <atomic>
#include <deque>
#include <memory>
#include <vector>

#include "muster/runtime/worker/owner.h"

namespace muster {

// The leases of one task. Time passes in ticks, of which a lease has a few: so that whatever an owner does can renew
// its lease without a lock and without looking at a clock. Thread-safe.
class LeaseTable {
 public:
  // So many ticks without a word end a lease.
  static constexpr int64_t kTicks = 4;

  // What keeps a lease: programs and sequences of its owner have it at hand.
  class Entry {
   public:
    Entry(const LeaseTable& table, Lease lease) : table_(table), lease_(std::move(lease)) { heard(); }
    // For the hot path: a word that is read by all and written once per tick.
    void heard() {
      const int64_t now = table_.now_.load(std::memory_order_relaxed);
      if (heard_.load(std::memory_order_relaxed) != now) heard_.store(now, std::memory_order_relaxed);
    }
    const Owner& owner() const { return lease_.owner; }

   private:
    friend class LeaseTable;
    const LeaseTable& table_;
    std::atomic<int64_t> heard_{0};
    Lease lease_;  // guarded by the table's mutex, but for the owner, which does not change
  };

  // The lease of that owner, renewed; null for nobody.
  std::shared_ptr<Entry> of(const Owner& owner) ABSL_LOCKS_EXCLUDED(mu_);
  // True if it had lapsed. Containers are added to those that it has.
  bool renew(const Lease& lease) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends it. What it was for; nothing but the owner if there is none.
  Lease end(const Owner& owner) ABSL_LOCKS_EXCLUDED(mu_);
  // One tick has passed: the leases that end now.
  std::vector<Lease> tick() ABSL_LOCKS_EXCLUDED(mu_);

  size_t size() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  std::shared_ptr<Entry>& find_or_make(const Owner& owner) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::atomic<int64_t> now_{1};

  mutable absl::Mutex mu_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mu_);
  std::deque<uint64_t> lapsed_ ABSL_GUARDED_BY(mu_);  // the last ones
};

}  // namespace muster

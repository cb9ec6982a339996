#include "muster/distribute/coordinator/worker_loads.h"

#include "muster/base/check.h"

namespace muster {

WorkerLoads::WorkerLoads(size_t workers, int most) : most_(most), loads_(workers), lines_(most), spare_(workers) {}

std::optional<size_t> WorkerLoads::take() {
  absl::MutexLock lock(&mu_);
  for (Line& line : lines_) {
    if (line.empty()) continue;
    const size_t worker = line.front();
    count(worker);
    return worker;
  }
  return std::nullopt;
}

bool WorkerLoads::take(size_t worker) {
  absl::MutexLock lock(&mu_);
  if (!loads_[worker].line) return false;
  count(worker);
  return true;
}

void WorkerLoads::count_another(size_t worker) {
  absl::MutexLock lock(&mu_);
  count(worker);
}

void WorkerLoads::count_short(size_t worker) {
  absl::MutexLock lock(&mu_);
  --loads_[worker].long_ones;
  place(worker);
}

void WorkerLoads::give_back(size_t worker, bool was_long, bool warm) {
  absl::MutexLock lock(&mu_);
  Load& load = loads_[worker];
  MUSTER_CHECK(load.messages > 0) << "more messages were given back than taken";
  --load.messages;
  under_way_.fetch_sub(1, std::memory_order_relaxed);
  if (was_long) --load.long_ones;
  place(worker, warm);
}

void WorkerLoads::found(size_t worker, uint64_t generation) {
  absl::MutexLock lock(&mu_);
  if (generation > loads_[worker].generation) set_there(worker, true, generation);
}

void WorkerLoads::lost(size_t worker, uint64_t generation) {
  absl::MutexLock lock(&mu_);
  if (generation >= loads_[worker].generation) set_there(worker, false, generation);
}

void WorkerLoads::set_there(size_t worker, bool there, uint64_t generation) {
  loads_[worker].there = there;
  loads_[worker].generation = generation;
  place(worker);
}

int WorkerLoads::under_way(size_t worker) const {
  absl::MutexLock lock(&mu_);
  return loads_[worker].messages;
}

void WorkerLoads::count(size_t worker) {
  ++loads_[worker].messages;
  ++loads_[worker].long_ones;
  under_way_.fetch_add(1, std::memory_order_relaxed);
  place(worker);
}

// In its line, or in none. Nodes are moved, so nothing is allocated.
void WorkerLoads::place(size_t worker, bool first) {
  Load& load = loads_[worker];
  std::optional<int> line;
  if (load.there && load.messages < most_ && load.long_ones == 0) line = load.messages;
  if (line == load.line) return;
  Line& from = load.line ? lines_[*load.line] : spare_;
  Line& to = line ? lines_[*line] : spare_;
  const Line::iterator node = load.line ? load.place : spare_.begin();
  *node = worker;
  to.splice(first ? to.begin() : to.end(), from, node);
  load.place = node;
  load.line = line;
}

}  // namespace muster

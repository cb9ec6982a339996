#include "muster/runtime/worker/run_turns.h"

#include <utility>

#include "muster/runtime/worker/read_ahead.h"

namespace muster {

void RunTurns::take(uint64_t sequence, uint64_t program, Work work) {
  {
    absl::MutexLock lock(&mu_);
    auto [line, is_first] = lines_.try_emplace(sequence);
    if (!is_first) {
      line->second.push_back({program, std::move(work)});
      return;
    }
  }
  ReadAhead ahead;
  for (; work; work = next(sequence)) work(ahead);
}

bool RunTurns::join(uint64_t sequence, uint64_t program, Work& work) {
  absl::MutexLock lock(&mu_);
  const auto line = lines_.find(sequence);
  if (line == lines_.end()) return false;
  line->second.push_back({program, std::move(work)});
  return true;
}

uint64_t RunTurns::next_program(uint64_t sequence) const {
  absl::MutexLock lock(&mu_);
  const auto line = lines_.find(sequence);
  return line == lines_.end() || line->second.empty() ? 0 : line->second.front().program;
}

RunTurns::Work RunTurns::next(uint64_t sequence) {
  absl::MutexLock lock(&mu_);
  auto line = lines_.find(sequence);
  if (line->second.empty()) {
    lines_.erase(line);
    return nullptr;
  }
  Work work = std::move(line->second.front().work);
  line->second.pop_front();
  return work;
}

}  // namespace muster

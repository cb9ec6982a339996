#include "muster/runtime/run_turns.h"

#include <utility>

namespace muster {

void RunTurns::take(uint64_t sequence, std::function<void()> work) {
  {
    absl::MutexLock lock(&mu_);
    auto [line, is_first] = lines_.try_emplace(sequence);
    if (!is_first) {
      line->second.push_back(std::move(work));
      return;
    }
  }
  for (; work; work = next(sequence)) work();
}

std::function<void()> RunTurns::next(uint64_t sequence) {
  absl::MutexLock lock(&mu_);
  auto line = lines_.find(sequence);
  if (line->second.empty()) {
    lines_.erase(line);
    return nullptr;
  }
  std::function<void()> work = std::move(line->second.front());
  line->second.pop_front();
  return work;
}

}  // namespace muster

#include "muster/runtime/executor/input_timing.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <map>

namespace muster {
namespace {

double load_of_lane(const std::vector<StageTiming>& stages, int lane) {
  double sum = 0;
  for (const StageTiming& stage : stages) {
    if (stage.lane == lane) sum += stage.load();
  }
  return sum;
}

}  // namespace

InputTiming InputTiming::since(const InputTiming& before) const {
  InputTiming passed = *this;
  passed.seconds -= before.seconds;
  passed.waited -= before.waited;
  passed.elements -= before.elements;
  for (size_t i = 0; i < std::min(stages.size(), before.stages.size()); ++i) {
    passed.stages[i].seconds -= before.stages[i].seconds;
    passed.stages[i].elements -= before.stages[i].elements;
  }
  return passed;
}

void InputTiming::add(const InputTiming& other) {
  seconds += other.seconds;
  waited += other.waited;
  elements += other.elements;
  for (const StageTiming& more : other.stages) {
    const auto same = std::ranges::find_if(
        stages, [&](const StageTiming& stage) { return stage.name == more.name && stage.lane == more.lane; });
    if (same == stages.end()) {
      stages.push_back(more);
      continue;
    }
    same->seconds += more.seconds;
    same->elements += more.elements;
    same->threads = more.threads;
  }
}

const StageTiming* InputTiming::bottleneck() const {
  std::map<int, double> lanes;
  for (const StageTiming& stage : stages) lanes[stage.lane] += stage.load();
  const auto busiest = std::ranges::max_element(lanes, {}, &std::pair<const int, double>::second);
  if (busiest == lanes.end() || busiest->second <= 0) return nullptr;
  const StageTiming* longest = nullptr;
  for (const StageTiming& stage : stages) {
    if (stage.lane != busiest->first) continue;
    if (longest == nullptr || stage.load() > longest->load()) longest = &stage;
  }
  return longest;
}

double InputTiming::bottleneck_share() const {
  const StageTiming* stage = bottleneck();
  return stage == nullptr ? 0 : stage->load() / load_of_lane(stages, stage->lane);
}

std::string InputTiming::to_string() const {
  std::string text =
      absl::StrFormat("waited for data %.1f ms of %.1f ms, for %d elements", waited * 1e3, seconds * 1e3, elements);
  if (const StageTiming* stage = bottleneck()) {
    absl::StrAppendFormat(&text, "; %s limits it, with %.0f %% of the work there", stage->name,
                          bottleneck_share() * 100);
  }
  return text;
}

}  // namespace muster

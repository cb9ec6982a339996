#include "muster/runtime/executor/shared_copies.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace muster {
namespace {

class CopySharer {
 public:
  CopySharer(Plan& plan, const PlanMemory& memory)
      : plan_(plan), memory_(memory), awaited_(plan.lanes.size()), readers_(num_groups()), writers_(num_groups()) {
    for (size_t lane = 0; lane < plan.lanes.size(); ++lane) {
      for (size_t i = 0; i < plan.lanes[lane].size(); ++i) note({lane, i}, plan.lanes[lane][i]);
    }
  }

  void share() {
    for (size_t lane = 0; lane < plan_.lanes.size(); ++lane) {
      for (Step& step : plan_.lanes[lane]) {
        auto* copy = step.as<Step::Copy>();
        if (copy == nullptr || copy->share || copy->sent) continue;
        if (!step.device.is_cpu() || !plan_.lane_torch_devices[lane].is_cpu()) continue;
        copy->share = may_share(step);
      }
    }
  }

 private:
  struct Place {
    size_t lane, index;
  };
  // Of a group.
  struct Readers {
    std::optional<Place> last{};
    bool in_order = true;  // all in one lane, and steps that are done with it when they end
  };

  size_t num_groups() const { return static_cast<size_t>(memory_.aliases().num_groups()); }

  void note(const Place& place, const Step& step) {
    if (step.signals >= 0 && !step.is_answered_later()) signalled_.emplace(step.signals, place);
    for (int32_t event : step.awaits) awaited_[place.lane].emplace_back(place.index, event);
    for (int group : memory_.aliases().written_groups(step.instruction)) writers_[group].push_back(place);
    for_each_operand(step, [&](ValueId value) {
      const int group = memory_.group(value);
      if (group == PlanMemory::kNoGroup) return;
      Readers& readers = readers_[group];
      if (!ends_with_its_step(step) || (readers.last && readers.last->lane != place.lane)) readers.in_order = false;
      readers.last = place;
    });
  }

  static bool ends_with_its_step(const Step& step) {
    if (const auto* copy = step.as<Step::Copy>()) return !copy->share;
    const auto* call = step.as<Step::Op>();
    return call != nullptr && call->factors < 0;  // a product that is not made at once keeps its factors
  }

  // What is written to is read by nobody in the place of a copy, so sharing one changes nothing for another.
  bool may_share(const Step& copy) const {
    const int from = memory_.group(copy.slots[0].value), to = memory_.group(copy.results[0][0]);
    if (from == PlanMemory::kNoGroup || to == PlanMemory::kNoGroup || from == to) return false;
    if (memory_.aliases().written(to) || memory_.seen(to).anywhere() || memory_.seen(from).constant) return false;
    const Readers& readers = readers_[to];
    if (!readers.last || !readers.in_order) return false;
    // Whoever writes has waited for that reader.
    return std::ranges::all_of(writers_[from], [&](const Place& writer) { return is_after(writer, *readers.last); });
  }

  bool is_after(const Place& step, const Place& reader) const {
    if (step.lane == reader.lane) return step.index > reader.index;
    return std::ranges::any_of(awaited_[step.lane], [&](const auto& awaited) {
      if (awaited.first > step.index) return false;
      const auto signalled = signalled_.find(awaited.second);
      return signalled != signalled_.end() && signalled->second.lane == reader.lane &&
             signalled->second.index >= reader.index;
    });
  }

  Plan& plan_;
  const PlanMemory& memory_;
  std::map<int32_t, Place> signalled_;                            // by event
  std::vector<std::vector<std::pair<size_t, int32_t>>> awaited_;  // by lane: which step awaits which event
  std::vector<Readers> readers_;                                  // by group
  std::vector<std::vector<Place>> writers_;                       // by group
};

}  // namespace

void share_copies(Plan& plan, const PlanMemory& memory) {
  if (plan.lanes.size() > 1) CopySharer(plan, memory).share();
}

}  // namespace muster

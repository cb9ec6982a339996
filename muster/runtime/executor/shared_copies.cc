#include "muster/runtime/executor/shared_copies.h"

#include <algorithm>
#include <map>
#include <optional>

namespace muster {
namespace {

class CopySharer {
 public:
  CopySharer(Plan& plan, const Aliases& aliases, ValueId recorded)
      : plan_(plan), aliases_(aliases), recorded_(recorded) {
    for_each_step([&](const Place& place, const Step& step) {
      if (step.signals >= 0 && !step.is_answered_later()) signalled_[step.signals] = place;
    });
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

  template <class Visit>
  void for_each_step(const Visit& visit) const {
    for (size_t lane = 0; lane < plan_.lanes.size(); ++lane) {
      for (size_t i = 0; i < plan_.lanes[lane].size(); ++i) visit(Place{lane, i}, plan_.lanes[lane][i]);
    }
  }

  bool in_group(ValueId value, int group) const {
    return value >= 0 && value < recorded_ && aliases_.group(value) == group;
  }

  bool may_share(const Step& copy) const {
    const ValueId source = copy.slots[0].value, target = copy.results[0][0];
    if (source >= recorded_ || target < 0 || target >= recorded_) return false;
    const int from = aliases_.group(source), to = aliases_.group(target);
    if (from == to || aliases_.written(to) || is_known_outside(to) || is_constant(from)) return false;
    const std::optional<Place> last = last_reader(to);
    return last && is_written_later(from, *last);
  }

  bool is_known_outside(int group) const {
    const Program& program = plan_.program;
    const auto shares = [&](const auto& input) { return in_group(input.value, group); };
    return std::ranges::any_of(program.arguments, shares) || std::ranges::any_of(program.variables, shares) ||
           is_constant(group) ||
           std::ranges::any_of(program.outputs, [&](ValueId output) { return in_group(output, group); });
  }
  bool is_constant(int group) const {
    return std::ranges::any_of(plan_.program.constants,
                               [&](const Constant& constant) { return in_group(constant.value, group); });
  }

  // Of what is in the group, if all of that is in one lane and by steps that are done with it when they end.
  std::optional<Place> last_reader(int group) const {
    std::optional<Place> last;
    bool in_order = true;
    for_each_step([&](const Place& place, const Step& step) {
      bool reads = false;
      for_each_operand(step, [&](ValueId value) { reads = reads || in_group(value, group); });
      if (!reads) return;
      in_order = in_order && ends_with_its_step(step) && (!last || last->lane == place.lane);
      last = place;
    });
    return in_order ? last : std::nullopt;
  }

  static bool ends_with_its_step(const Step& step) {
    if (const auto* copy = step.as<Step::Copy>()) return !copy->share;
    const auto* call = step.as<Step::Op>();
    return call != nullptr && call->factors < 0;  // a product that is not made at once keeps its factors
  }

  // Whether whoever writes to the group has waited for that reader.
  bool is_written_later(int group, const Place& reader) const {
    bool later = true;
    for_each_step([&](const Place& place, const Step& step) {
      const std::vector<int>& written = aliases_.written_groups(step.instruction);
      if (std::ranges::find(written, group) != written.end()) later = later && is_after(place, reader);
    });
    return later;
  }

  bool is_after(const Place& step, const Place& reader) const {
    if (step.lane == reader.lane) return step.index > reader.index;
    const std::vector<Step>& lane = plan_.lanes[step.lane];
    return std::any_of(lane.begin(), lane.begin() + static_cast<ptrdiff_t>(step.index) + 1, [&](const Step& before) {
      return std::ranges::any_of(before.awaits, [&](int32_t event) {
        const auto signalled = signalled_.find(event);
        return signalled != signalled_.end() && signalled->second.lane == reader.lane &&
               signalled->second.index >= reader.index;
      });
    });
  }

  Plan& plan_;
  const Aliases& aliases_;
  const ValueId recorded_;
  std::map<int32_t, Place> signalled_;  // by event
};

}  // namespace

void share_copies(Plan& plan, const Aliases& aliases, ValueId recorded) {
  if (plan.lanes.size() > 1) CopySharer(plan, aliases, recorded).share();
}

}  // namespace muster

#include "muster/runtime/gpu/stretches.h"

#include <algorithm>
#include <map>
#include <set>

namespace muster {
namespace {

constexpr size_t kShortest = 4;      // steps that are worth a graph
constexpr int64_t kLongest = 4'096;  // that a loop is laid out to

bool can_be_recorded(const Step::Op& call) {
  // What comes out depends on what is in the tensors, so the host has to look.
  if (call.op.hasTag(at::Tag::data_dependent_output) || call.op.hasTag(at::Tag::dynamic_output_shape)) return false;
  // Row ops on a GPU look for the rows that are there (composed_row_ops.h).
  if (call.op.schema().name().starts_with("muster_rows::")) return false;
  return !call.guard || call.guard->can_be_deferred();
}

int64_t recorded_steps(const Plan& plan, const Step& step);

// Of the body of a loop; 0 if one of them cannot be recorded, or they are too many.
int64_t recorded_steps(const Plan& body, at::Device device) {
  if (body.lanes.size() != 1 || body.lane_torch_devices[0] != device || body.communicates) return 0;
  int64_t steps = 0;
  for (const Step& step : body.lanes[0]) {
    const int64_t more = recorded_steps(body, step);
    if (more == 0 || steps + more > kLongest) return 0;
    steps += more;
  }
  return steps;
}

// How many a graph has for it: a loop is laid out. 0 if it cannot be recorded, since it takes part in what happens
// outside of the GPU or only a look at the GPU tells how it goes on.
int64_t recorded_steps(const Plan& plan, const Step& step) {
  if (const auto* call = step.as<Step::Op>()) return can_be_recorded(*call) ? 1 : 0;
  if (step.as<Step::Copy>()) return step.device == plan.lane_torch_devices[step.lane] ? 1 : 0;
  const auto* loop = step.as<Step::Loop>();
  if (loop == nullptr || !loop->trips) return 0;
  const int64_t trips = *loop->trips, steps = recorded_steps(*plan.bodies[loop->bodies[0]], step.device);
  return steps == 0 || trips < 1 || trips > kLongest / steps ? 0 : trips * steps;
}

template <class Visit>
void for_each_result(const Step& step, const Visit& visit) {
  for (const auto& values : step.results) {
    for (ValueId value : values) {
      if (value >= 0) visit(value);
    }
  }
}

class Finder {
 public:
  Finder(const Plan& plan, size_t lane, const Aliases& aliases)
      : plan_(plan), steps_(plan.lanes[lane]), lane_(lane), aliases_(aliases) {
    for (const VariableRef& variable : plan.program.variables) variables_.insert(variable.value);
    for (size_t i = 0; i < plan.constants.size(); ++i) {
      constants_[plan.program.constants[i].value] = plan.constant_written[i];
    }
  }

  std::vector<Stretch> find() {
    std::vector<Stretch> found;
    for (size_t i = 0; i < steps_.size(); ++i) {
      const bool recorded = recorded_steps(plan_, steps_[i]) > 0;
      if (!recorded || !steps_[i].awaits.empty()) end(i, found);
      if (!recorded) continue;
      take(i);
      if (steps_[i].signals >= 0) end(i + 1, found);
    }
    end(steps_.size(), found);
    return found;
  }

 private:
  void take(size_t index) {
    const Step& step = steps_[index];
    for_each_operand(step, [&](ValueId value) {
      if (!made_.contains(value)) inputs_.insert(value);
    });
    for_each_result(step, [&](ValueId value) { made_.insert(value); });
    for (ValueId value : step.kills) killed_.insert(value);
    ++taken_;
  }

  void end(size_t end, std::vector<Stretch>& found) {
    if (taken_ >= kShortest || has_loop(end - taken_, end)) found.push_back(stretch(end - taken_, end));
    taken_ = 0;
    inputs_.clear();
    made_.clear();
    killed_.clear();
  }

  bool has_loop(size_t begin, size_t end) const {
    return std::any_of(steps_.begin() + static_cast<ptrdiff_t>(begin), steps_.begin() + static_cast<ptrdiff_t>(end),
                       [](const Step& step) { return step.as<Step::Loop>() != nullptr; });
  }

  // A copy of it would not do: it is written to, or too large to be copied every time.
  bool stays(ValueId value) const { return variables_.contains(value) || aliases_.written(aliases_.group(value)); }

  Stretch stretch(size_t begin, size_t end) const {
    Stretch made{.begin = begin, .end = end};
    const Program& program = plan_.program;
    for (ValueId value : inputs_) {
      if (killed_.contains(value)) made.dropped.push_back(value);
      if (const auto constant = constants_.find(value); constant == constants_.end()) {
        (stays(value) ? made.fixed : made.inputs).push_back(value);
      } else if (constant->second) {
        made.fixed.push_back(value);
      }
    }
    std::set<ValueId> wanted(program.outputs.begin(), program.outputs.end());
    for (size_t lane = 0; lane < plan_.lanes.size(); ++lane) {
      for (size_t i = 0; i < plan_.lanes[lane].size(); ++i) {
        if (lane == lane_ && i >= begin && i < end) continue;
        for_each_operand(plan_.lanes[lane][i], [&](ValueId value) { wanted.insert(value); });
      }
    }
    for (ValueId value : made_) {
      if (wanted.contains(value)) made.results.push_back(value);
    }
    return made;
  }

  const Plan& plan_;
  const std::vector<Step>& steps_;
  const size_t lane_;
  const Aliases& aliases_;
  std::set<ValueId> variables_;
  std::map<ValueId, bool> constants_;  // whether they are written to
  // Of the stretch that is being made.
  size_t taken_ = 0;
  std::set<ValueId> inputs_, made_, killed_;
};

}  // namespace

std::vector<Stretch> find_stretches(const Plan& plan, size_t lane, const Aliases& aliases) {
  return Finder(plan, lane, aliases).find();
}

}  // namespace muster

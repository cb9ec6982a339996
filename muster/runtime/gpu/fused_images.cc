#include "muster/runtime/gpu/fused_images.h"

#include <c10/core/MemoryFormat.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "muster/runtime/gpu/image_ops.h"
#include "muster/runtime/ops/op_catalog.h"

namespace muster {
namespace {

class ImageFuser {
 public:
  ImageFuser(Plan& plan, size_t lane, const PlanMemory& memory)
      : plan_(plan), steps_(plan.lanes[lane]), memory_(memory), gone_(steps_.size(), false) {
    uses_.assign(plan.program.num_values, 0);
    for (const auto& steps : plan.lanes) {
      for (const Step& step : steps) for_each_operand(step, [&](ValueId value) { ++uses_[value]; });
    }
    for (ValueId output : plan.program.outputs) {
      if (output >= 0) ++uses_[output];
    }
    maker_.assign(plan.program.num_values, steps_.size());
    for (size_t i = 0; i < steps_.size(); ++i) {
      for (const auto& values : steps_[i].results) {
        for (ValueId value : values) {
          if (value >= 0) maker_[value] = i;
        }
      }
    }
  }

  void fuse() {
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (is_op(i, "aten::native_batch_norm")) fuse_normalization(i);
    }
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (is_op(i, "aten::native_batch_norm_backward")) fuse_backward(i);
    }
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (is_op(i, "aten::max_pool2d_with_indices")) replace_pooling(i);
    }
    copy_to_usual_order();
    count_together();
    size_t kept = 0;
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (gone_[i]) continue;
      if (kept != i) steps_[kept] = std::move(steps_[i]);
      ++kept;
    }
    steps_.erase(steps_.begin() + static_cast<ptrdiff_t>(kept), steps_.end());
  }

 private:
  // A batch norm that was fused, by what it makes.
  struct Normalization {
    size_t step;
    ValueId image, mean, invstd;
    ValueId positive;  // a value that nothing else makes any more
  };

  const std::string& name_of(size_t i) const {
    return plan_.program.op_of(plan_.program.instructions[steps_[i].instruction]).name;
  }
  bool is_op(size_t i, const char* name) const {
    return i < steps_.size() && !gone_[i] && steps_[i].as<Step::Op>() && name_of(i) == name;
  }

  // Whether a kernel may be chosen for it: what it makes may lie in any order.
  bool is_free(size_t i) const { return steps_[i].as<Step::Op>()->choice != nullptr && steps_[i].signals < 0; }

  // Whether it waits for nobody, nobody waits for it, and it takes its operands in any order.
  bool is_alone(size_t i) const {
    return steps_[i].awaits.empty() && steps_[i].signals < 0 && steps_[i].unordered.empty();
  }

  static ValueId operand(const Step& step, int32_t position) {
    for (const Step::Slot& slot : step.slots) {
      if (slot.position == position) return slot.value;
    }
    return kNoValue;
  }

  // The step that alone uses the value.
  std::optional<size_t> only_user(ValueId value, size_t after) const {
    if (value < 0 || uses_[value] != 1) return std::nullopt;
    for (size_t i = after + 1; i < steps_.size(); ++i) {
      bool uses = false;
      for_each_operand(steps_[i], [&](ValueId used) { uses = uses || used == value; });
      if (uses) return gone_[i] ? std::nullopt : std::optional(i);
    }
    return std::nullopt;
  }

  // a + b, of two tensors.
  bool is_sum(size_t i) const {
    if (!is_op(i, "aten::add.Tensor") && !is_op(i, "aten::add_.Tensor")) return false;
    const Step& step = steps_[i];
    const c10::IValue& factor = step.as<Step::Op>()->stack[2];
    return step.slots.size() == 2 && step.slots[0].value != step.slots[1].value && is_alone(i) &&
           ((factor.isInt() && factor.toInt() == 1) || (factor.isDouble() && factor.toDouble() == 1));
  }

  bool reads(const Step& step, int group) const {
    bool found = false;
    for_each_operand(step, [&](ValueId value) { found = found || memory_.group(value) == group; });
    return found;
  }
  const std::vector<int>& written_by(const Step& step) const {
    return memory_.aliases().written_groups(step.instruction);
  }

  // Whether other lanes are told of the step, or it waits for them: what comes before it there must not come after it.
  bool meets_others(size_t i) const { return !steps_[i].awaits.empty() || steps_[i].signals >= 0; }

  // Whether none of the steps between two writes what `step` is given, has to do with what it writes, or meets others.
  bool may_pass(const Step& step, size_t after, size_t before) const {
    const std::vector<int>& written = written_by(step);
    for (size_t i = after + 1; i < before; ++i) {
      if (gone_[i]) continue;
      if (meets_others(i)) return false;
      for (int group : written_by(steps_[i])) {
        if (reads(step, group)) return false;
      }
      for (int group : written) {
        if (reads(steps_[i], group)) return false;
      }
    }
    return true;
  }

  bool uses_any(size_t i, const std::vector<std::vector<ValueId>>& results) const {
    bool uses = false;
    for_each_operand(steps_[i], [&](ValueId value) {
      for (const auto& values : results) uses = uses || std::find(values.begin(), values.end(), value) != values.end();
    });
    return uses;
  }

  // Ours checks its operands itself.
  static Step::Op& call_ours(Step& step, const c10::OperatorHandle& op) {
    Step::Op& call = *step.as<Step::Op>();
    call.op = op;
    call.guard = nullptr;
    call.choice = nullptr;
    call.in_place.reset();
    call.one_order = false;
    return call;
  }

  static void give(Step& step, int32_t position, ValueId value, bool needed) {
    step.slots.push_back({position, value, needed});
  }

  // What was to be dropped by `from` is dropped by `to`, but for what is not made any more.
  static void hand_kills(std::vector<ValueId>& from, std::vector<ValueId>& to, const std::vector<ValueId>& not_made) {
    for (ValueId value : from) {
      const bool made = std::find(not_made.begin(), not_made.end(), value) == not_made.end();
      if (made && std::find(to.begin(), to.end(), value) == to.end()) to.push_back(value);
    }
    from.clear();
  }

  // What steps between two would drop, or overwrite as they drop it, but a step that moves down past them still needs,
  // is dropped by that.
  void keep_operands(Step& moved, size_t after, size_t before) {
    for (size_t between = after + 1; between < before; ++between) {
      const size_t kept = std::erase_if(steps_[between].kills, [&](ValueId value) {
        bool needed = false;
        for_each_operand(moved, [&](ValueId used) { needed = needed || used == value; });
        if (needed && std::find(moved.kills.begin(), moved.kills.end(), value) == moved.kills.end()) {
          moved.kills.push_back(value);
        }
        return needed;
      });
      if (kept == 0) continue;
      if (auto* call = steps_[between].as<Step::Op>()) call->in_place.reset();
      for (Step::Slot& slot : steps_[between].slots) slot.last = false;
    }
  }

  // Batch norm moves down to the relu behind it.
  void fuse_normalization(size_t i) {
    if (!is_free(i) || !steps_[i].as<Step::Op>()->stack[5].toBool()) return;
    const ValueId normal = steps_[i].results[0][0];
    Step::Slot other{8, kNoValue};
    ValueId summed = kNoValue;
    std::optional<size_t> sum, activation = only_user(normal, i);
    if (activation && is_sum(*activation) && name_of(*activation) == "aten::add.Tensor") {
      sum = activation;
      const Step& step = steps_[*sum];
      const Step::Slot& summand = step.slots[step.slots[0].value == normal ? 1 : 0];
      other.value = summand.value;
      other.needed = summand.needed;
      summed = step.results[0][0];
      activation = only_user(summed, *sum);
    }
    // What it waits for those after it have not waited for once more.
    const bool fits = steps_[i].awaits.empty() && activation && is_op(*activation, "aten::relu") &&
                      is_alone(*activation) && steps_[*activation].results[0][0] >= 0 &&
                      may_move(i, sum, *activation, other);
    if (!fits) return replace_normalization(steps_[i], {8, kNoValue}, false);
    Step fused = steps_[i];
    replace_normalization(fused, other, true);
    const size_t at = *activation;
    fused.results[0] = steps_[at].results[0];
    fused.kills.clear();
    const std::vector<ValueId> not_made{normal, summed};
    hand_kills(steps_[i].kills, fused.kills, not_made);
    if (sum) hand_kills(steps_[*sum].kills, fused.kills, not_made);
    keep_operands(fused, i, at);
    hand_kills(steps_[at].kills, fused.kills, not_made);
    gone_[i] = true;
    if (sum) gone_[*sum] = true;
    auto result = [&](size_t number) { return fused.results[number].empty() ? kNoValue : fused.results[number][0]; };
    normalizations_[result(0)] = {at, operand(fused, 0), result(1), result(2), normal};
    steps_[at] = std::move(fused);
  }

  bool may_move(size_t i, std::optional<size_t> sum, size_t to, const Step::Slot& other) const {
    Step moved = steps_[i];
    if (other.value >= 0) moved.slots.push_back(other);
    for (size_t between = i + 1; between < to; ++between) {
      if (between != sum && !gone_[between] && uses_any(between, moved.results)) return false;
    }
    return may_pass(moved, i, to);
  }

  static void replace_normalization(Step& step, const Step::Slot& other, bool relu) {
    Step::Op& call = call_ours(step, image_ops::all().normalize);
    call.stack.emplace_back();
    call.stack.emplace_back(relu);
    if (other.value >= 0) step.slots.push_back(other);
    step.results.emplace_back();
  }

  // The backward of batch norm moves up to that of relu.
  void fuse_backward(size_t i) {
    const Step::Op& call = *steps_[i].as<Step::Op>();
    if (!is_free(i) || !call.stack[7].toBool() || operand(steps_[i], 5) < 0 || operand(steps_[i], 6) < 0) return;
    const ValueId gradient = operand(steps_[i], 0);
    const size_t at = gradient >= 0 ? maker_[gradient] : steps_.size();
    const auto forward = forward_of(at, i);
    if (forward == normalizations_.end()) return replace_backward(steps_[i], {});
    const ValueId incoming = operand(steps_[at], 0), result = forward->first;
    const std::optional<size_t> sum = sum_before(at, incoming);
    const bool keeps = uses_[gradient] > 1;
    Step fused = steps_[i];
    Behind behind{.result = result, .positive = forward->second.positive, .keep = keeps};
    std::vector<ValueId> not_made;
    if (!keeps) not_made.push_back(gradient);
    if (sum) {
      behind.more = steps_[*sum].slots[1].value;
      for (Step::Slot& slot : fused.slots) {
        if (slot.position == 0) slot.value = steps_[*sum].slots[0].value;
      }
      not_made.push_back(steps_[*sum].results[0][0]);
    } else {
      for (Step::Slot& slot : fused.slots) {
        if (slot.position == 0) slot.value = incoming;
      }
    }
    replace_backward(fused, behind);
    if (keeps) fused.results[3] = {gradient};
    steps_[forward->second.step].results[3] = {forward->second.positive};
    fused.kills.clear();
    if (sum) {
      hand_kills(steps_[*sum].kills, fused.kills, not_made);
      keep_operands(fused, *sum, at);
      gone_[*sum] = true;
    }
    hand_kills(steps_[at].kills, fused.kills, not_made);
    fused.kills.push_back(forward->second.positive);
    // Steps between the two may still use what was to be dropped by the second.
    size_t last = i - 1;
    while (last > at && gone_[last]) --last;
    hand_kills(steps_[i].kills, last > at ? steps_[last].kills : fused.kills, not_made);
    steps_[at] = std::move(fused);
    gone_[i] = true;
    normalizations_.erase(forward);
  }

  // The normalization that has made what `at`, the backward of a relu, was made of, if that and `i`, the backward of
  // batch norm, are its.
  std::map<ValueId, Normalization>::iterator forward_of(size_t at, size_t i) {
    if (at >= i || !is_op(at, "aten::threshold_backward") || !is_alone(at)) return normalizations_.end();
    const Step& relu = steps_[at];
    const c10::IValue& threshold = relu.as<Step::Op>()->stack[2];
    const bool from_zero =
        (threshold.isInt() && threshold.toInt() == 0) || (threshold.isDouble() && threshold.toDouble() == 0);
    if (!from_zero || operand(relu, 0) < 0 || !steps_[i].awaits.empty()) return normalizations_.end();
    const auto forward = normalizations_.find(operand(relu, 1));
    if (forward == normalizations_.end()) return forward;
    const Normalization& found = forward->second;
    if (found.step >= at || found.image != operand(steps_[i], 1) || found.mean != operand(steps_[i], 5) ||
        found.invstd != operand(steps_[i], 6) || is_written(forward->first, found.step, at) ||
        !may_pass(steps_[i], at, i)) {
      return normalizations_.end();
    }
    bool is_there = true;
    for_each_operand(steps_[i], [&](ValueId value) {
      for (size_t between = at + 1; between < i; ++between) is_there = is_there && !makes(steps_[between], value);
    });
    return is_there ? forward : normalizations_.end();
  }

  bool is_written(ValueId value, size_t after, size_t before) const {
    for (size_t i = after + 1; i < before; ++i) {
      if (gone_[i]) continue;
      for (int group : written_by(steps_[i])) {
        if (memory_.group(value) == group) return true;
      }
    }
    return false;
  }

  static bool makes(const Step& step, ValueId value) {
    return std::any_of(step.results.begin(), step.results.end(), [&](const std::vector<ValueId>& values) {
      return std::find(values.begin(), values.end(), value) != values.end();
    });
  }

  // The sum of two gradients that is used by step `at` alone, in place or not.
  std::optional<size_t> sum_before(size_t at, ValueId incoming) const {
    for (size_t i = at; i-- > 0;) {
      if (gone_[i] || !is_sum(i)) continue;
      const Step& sum = steps_[i];
      const bool in_place = name_of(i) == "aten::add_.Tensor";
      const ValueId target = sum.slots[0].value, made = sum.results[0][0];
      if (made != incoming && !(in_place && target == incoming)) continue;
      if (sum.slots[0].position != 0 || sum.slots[1].position != 1) return std::nullopt;
      if (memory_.group(target) == PlanMemory::kNoGroup) return std::nullopt;
      if (in_place ? !is_only_read_by(at, i, target) : uses_[incoming] != 1) return std::nullopt;
      // Itself it writes to nothing any more.
      for (size_t between = i + 1; between < at; ++between) {
        if (gone_[between]) continue;
        if (meets_others(between)) return std::nullopt;
        for (int group : written_by(steps_[between])) {
          if (reads(sum, group)) return std::nullopt;
        }
      }
      return i;
    }
    return std::nullopt;
  }

  // Whether after step `i` the memory of a value is read once more, by step `at`.
  bool is_only_read_by(size_t at, size_t i, ValueId value) const {
    const int group = memory_.group(value);
    if (memory_.seen(group).anywhere()) return false;
    int reads_of = 0;
    for (const auto& lane : plan_.lanes) {
      for (const Step& step : lane) {
        const bool here = &lane == &steps_;
        const size_t number = here ? static_cast<size_t>(&step - lane.data()) : 0;
        if (here && (number <= i || gone_[number])) continue;
        for_each_operand(step, [&](ValueId used) {
          if (memory_.group(used) == group) reads_of += here && number == at ? 1 : 2;
        });
      }
    }
    return reads_of == 1;
  }

  struct Behind {  // relu
    ValueId more = kNoValue, result = kNoValue, positive = kNoValue;
    bool keep = false;
  };

  static void replace_backward(Step& step, const Behind& behind) {
    Step::Op& call = call_ours(step, image_ops::all().normalize_backward);
    for (int i = 0; i < 3; ++i) call.stack.emplace_back();
    call.stack.emplace_back(behind.keep);
    if (behind.more >= 0) give(step, 10, behind.more, /*needed=*/true);
    if (behind.result >= 0) give(step, 11, behind.result, /*needed=*/true);
    if (behind.positive >= 0) give(step, 12, behind.positive, /*needed=*/false);  // only our kernels make it
    step.results.emplace_back();
  }

  // Indices are places in windows then, which only the backward of the same pooling understands.
  void replace_pooling(size_t i) {
    const Step& pooling = steps_[i];
    const ValueId indices = pooling.results[1].empty() ? kNoValue : pooling.results[1][0];
    if (!is_free(i)) return;
    std::vector<size_t> backward;
    for (size_t j = i + 1; j < steps_.size(); ++j) {
      if (is_op(j, "aten::max_pool2d_with_indices_backward") && indices >= 0 && operand(steps_[j], 7) == indices) {
        backward.push_back(j);
      }
    }
    if (indices >= 0 && static_cast<size_t>(uses_[indices]) != backward.size()) return;
    for (size_t j : backward) {
      if (!is_free(j) || operand(steps_[j], 1) != operand(pooling, 0)) return;
      if (!same_windows(*pooling.as<Step::Op>(), *steps_[j].as<Step::Op>())) return;
    }
    call_ours(steps_[i], image_ops::all().max_pool);
    for (size_t j : backward) call_ours(steps_[j], image_ops::all().max_pool_backward);
  }

  // A gradient whose type changes may change its order on the way, if all its users want the usual one.
  void copy_to_usual_order() {
    std::vector<int> reorders(plan_.program.num_values, 0);  // by value: how often it is brought to that order
    for (const Step& step : steps_) {
      for (const int32_t position : step.unordered) {
        for (const Step::Slot& slot : step.slots) reorders[slot.value] += slot.position == position;
        for (const Step::ListSlot& list : step.lists) {
          if (list.position != position) continue;
          for (ValueId value : list.values) {
            if (value >= 0) ++reorders[value];
          }
        }
      }
    }
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (!is_op(i, "aten::_to_copy")) continue;
      Step::Op& call = *steps_[i].as<Step::Op>();
      const ValueId copy = steps_[i].results[0][0];
      if (call.choice != nullptr || copy < 0 || !steps_[i].unordered.empty() || !call.stack.back().isNone()) continue;
      if (reorders[copy] > 0 && reorders[copy] == uses_[copy]) {
        call.stack.back() = static_cast<int64_t>(at::MemoryFormat::Contiguous);
      }
    }
  }

  // Steps that add a number to a tensor that nothing else has to do with, as batch norm counts what it has seen. All of
  // them with one number are done by the first, unless a step between meets others.
  void count_together() {
    std::vector<int> uses(memory_.aliases().num_groups(), 0);
    auto use = [&](ValueId value) {
      if (const int group = memory_.group(value); group != PlanMemory::kNoGroup) ++uses[group];
    };
    for (const auto& lane : plan_.lanes) {
      for (const Step& step : lane) {
        const bool is_gone = &lane == &steps_ && gone_[static_cast<size_t>(&step - lane.data())];
        if (!is_gone) for_each_operand(step, use);
      }
    }
    for (ValueId output : plan_.program.outputs) use(output);
    std::map<int64_t, std::vector<size_t>> counts;  // by number
    auto take = [&] {
      for (const auto& [number, steps] : counts) make_one(steps, number);
      counts.clear();
    };
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (gone_[i]) continue;
      if (meets_others(i)) {
        take();
      } else if (is_count(i, uses)) {
        counts[steps_[i].as<Step::Op>()->stack[1].toInt()].push_back(i);
      }
    }
    take();
  }

  // `uses`: how often values of a group are used.
  bool is_count(size_t i, const std::vector<int>& uses) const {
    if (!is_op(i, "aten::add_.Scalar") || !is_alone(i)) return false;
    const Step& step = steps_[i];
    const Step::Op& call = *step.as<Step::Op>();
    if (step.slots.size() != 1 || call.guard != nullptr) return false;
    const int group = memory_.group(step.slots[0].value);
    if (group == PlanMemory::kNoGroup || uses[group] != 1) return false;
    if (!call.stack[1].isInt() || !call.stack[2].isInt() || call.stack[2].toInt() != 1) return false;
    return maker_[step.slots[0].value] == steps_.size();  // it comes from outside, so it is there from the beginning
  }

  void make_one(const std::vector<size_t>& counts, int64_t number) {
    if (counts.size() == 1) return;
    static const c10::OperatorHandle together = known_op("aten::_foreach_add_.Scalar");
    Step& step = steps_[counts.front()];
    std::vector<ValueId> counters;
    for (size_t i : counts) {
      counters.push_back(steps_[i].slots[0].value);
      if (i == counts.front()) continue;
      step.kills.insert(step.kills.end(), steps_[i].kills.begin(), steps_[i].kills.end());
      gone_[i] = true;
    }
    Step::Op& call = call_ours(step, together);
    call.stack = {c10::IValue(), number};
    step.slots.clear();
    step.lists = {{0, false, std::move(counters)}};
    step.results.clear();
  }

  // By position on the stack: size, stride, padding, dilation, and whether the last windows may be incomplete.
  static bool same_windows(const Step::Op& pooling, const Step::Op& backward) {
    for (size_t i = 1; i <= 4; ++i) {
      if (pooling.stack[i].toIntVector() != backward.stack[i + 1].toIntVector()) return false;
    }
    return pooling.stack[5].toBool() == backward.stack[6].toBool();
  }

  Plan& plan_;
  std::vector<Step>& steps_;
  const PlanMemory& memory_;
  std::vector<bool> gone_;
  std::vector<int> uses_;      // by value
  std::vector<size_t> maker_;  // by value: its step in this lane
  std::map<ValueId, Normalization> normalizations_;
};

}  // namespace

void fuse_images(Plan& plan, size_t lane, const PlanMemory& memory) { ImageFuser(plan, lane, memory).fuse(); }

}  // namespace muster

#include "muster/runtime/executor/plan.h"

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <set>

#include "muster/base/check.h"
#include "muster/base/status.h"
#include "muster/graph/op_table.h"
#include "muster/graph/op_traits.h"
#include "muster/runtime/executor/memory_orders.h"
#include "muster/runtime/executor/one_pass.h"
#include "muster/runtime/executor/plan_memory.h"
#include "muster/runtime/executor/plan_step.h"
#include "muster/runtime/executor/shared_copies.h"
#include "muster/runtime/gpu/fused_images.h"
#include "muster/runtime/gpu/fused_steps.h"
#include "muster/runtime/gpu/gpu_graph.h"
#include "muster/runtime/gpu/image_ops.h"
#include "muster/runtime/gpu/stretches.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/ops/forward_indices.h"
#include "muster/runtime/tuning/weight_order.h"

namespace muster {
namespace {

constexpr const char* kCollectives = "";  // take turns as the parts of a task do; no task is called so

// Builds the lanes of a plan.
class Planner {
 public:
  // `parts` are given for a body.
  Planner(Plan& plan, const LocalDevices& devices, const OpCatalog& catalog, Autotuner* tuner,
          const std::vector<Program>* parts, const std::vector<int>& argument_classes)
      : plan_(plan),
        is_body_(parts != nullptr),
        parts_(is_body_ ? *parts : plan.program.parts),
        program_(plan.program),
        devices_(devices),
        catalog_(catalog),
        tuner_(tuner),
        aliases_(program_, argument_classes),
        memory_(program_, aliases_),
        targets_(targets_of_products(program_)),
        fixed_order_(fixed_orders(program_, aliases_)),
        only_convolved_(only_convolved(program_)) {}

  void build() {
    bind_inputs();
    for (const Op& op : program_.ops) {
      ops_.push_back(own_op(op.name) == nullptr ? std::optional(catalog_.find(op)) : std::nullopt);
      facts_.push_back(facts_of(op.name));
    }
    for (size_t body = 0; body < program_.bodies.size(); ++body) {
      plan_.bodies.push_back(std::make_unique<Plan>(program_.bodies[body], devices_, catalog_, tuner_, &parts_,
                                                    aliases_.argument_classes(body)));
      plan_.random = plan_.random || plan_.bodies.back()->random;
      plan_.groups.merge(std::set(plan_.bodies.back()->groups));
    }
    for (size_t i = 0; i < program_.instructions.size(); ++i) add_step(i);
    if (plan_.lanes.empty()) lane_of(program_.devices.size() > 1 ? program_.devices[1] : devices_.default_name());
    for (ValueId output : program_.outputs) {
      plan_.output_unordered.push_back(output >= 0 && unordered_[output]);
      plan_.output_constant.push_back(
          constant_of_value_.contains(output) ||
          (output >= 0 && memory_.seen(aliases_.group(output)).constant));  // a view of one, too
    }
    plan_.needs_others =
        plan_.communicates || std::ranges::any_of(plan_.bodies, [](const auto& body) { return body->needs_others; });
    if (!is_body_) take_first();
    hold_variables();
    find_last_uses();
    share_copies(plan_, memory_);
    for (size_t lane = 0; lane < plan_.lanes.size(); ++lane) {
      const bool gpu = plan_.lane_torch_devices[lane].is_cuda(), records = gpu && GpuGraph::available();
      if (gpu && tuner_ != nullptr) fuse_activations(plan_.lanes[lane], program_);
      if (gpu && tuner_ != nullptr && image_ops::run_on(plan_.lane_torch_devices[lane])) {
        fuse_images(plan_, lane, memory_);
      }
      plan_.stretches.push_back(records ? find_stretches(plan_, lane, aliases_) : std::vector<Stretch>());
    }
    for (auto& lane : plan_.lanes) {
      for (size_t i = 0; i < lane.size(); ++i) {
        if (lane[i].as<Step::Receive>()) plan_.receives.push_back(&lane[i]);
        const auto* next = i + 1 < lane.size() ? &lane[i + 1].awaits : nullptr;
        const bool waits = next == nullptr || std::find(next->begin(), next->end(), lane[i].signals) != next->end();
        if (auto* remote = lane[i].as<Step::Remote>()) remote->waits = waits;
        if (auto* collective = lane[i].as<Step::Collective>()) collective->waits = waits;
      }
    }
  }

 private:
  const std::string& device_name(int32_t device) const {
    return program_.devices[device].empty() ? devices_.default_name() : program_.devices[device];
  }

  int32_t lane_of(const std::string& device) {
    auto it = std::find(plan_.lane_devices.begin(), plan_.lane_devices.end(), device);
    if (it != plan_.lane_devices.end()) return static_cast<int32_t>(it - plan_.lane_devices.begin());
    plan_.lane_torch_devices.push_back(devices_.device(device));
    plan_.lane_devices.push_back(device);
    plan_.lanes.emplace_back();
    return static_cast<int32_t>(plan_.lanes.size() - 1);
  }

  void bind_inputs() {
    home_.assign(program_.num_values, -1);
    producer_lane_.assign(program_.num_values, -1);
    event_of_.assign(program_.num_values, -1);
    unordered_.assign(program_.num_values, false);
    begun_elsewhere_.assign(program_.num_values, false);
    uses_.assign(program_.num_values, 0);
    for (const Instruction& instruction : program_.instructions) {
      for (const Argument& argument : instruction.arguments) {
        for_each_value(argument, [&](ValueId value) {
          if (value >= 0) ++uses_[value];
        });
      }
    }
    for (const ProgramArgument& argument : program_.arguments) {
      plan_.argument_devices.push_back(devices_.device(device_name(argument.device)));
      plan_.argument_written.push_back(aliases_.written(aliases_.group(argument.value)));
      home_[argument.value] = argument.device;
    }
    BodyAliases bodies;
    for (const VariableRef& variable : program_.variables) {
      plan_.variable_devices.push_back(devices_.device(device_name(variable.device)));
      plan_.variable_uses.push_back(uses_of(variable, program_, aliases_, bodies));
      plan_.weight_products.push_back(tuner_ != nullptr && plan_.variable_devices.back().is_cpu() &&
                                              may_be_in_columns(variable.spec)
                                          ? products_in_any_order(variable.value, program_, aliases_, bodies)
                                          : 0);
      home_[variable.value] = variable.device;
    }
    for (const Constant& constant : program_.constants) {
      constant_of_value_[constant.value] = plan_.constants.size();
      plan_.constants.push_back(tensor_of(constant));
      plan_.constant_written.push_back(aliases_.written(aliases_.group(constant.value)));
    }
  }

  // Their steps stay in their lanes and find them there.
  void take_first() {
    const std::vector<FirstElement> first = first_elements(program_);
    for (size_t i = 0; i < first.size(); ++i) {
      auto& made = plan_.first_elements.emplace_back();
      for (size_t j = 0; j < program_.arguments.size(); ++j) {
        if (program_.arguments[j].value == first[i].number) made.argument = j;
      }
      if (!made.argument) made.number = plan_.constants[constant_of_value_.at(first[i].number)];
      for (auto& lane : plan_.lanes) {
        for (Step& step : lane) {
          if (step.instruction != static_cast<int32_t>(first[i].instruction)) continue;
          Step::Next& next = *step.as<Step::Next>();
          next.first = static_cast<int32_t>(i);
          made.lane = step.lane;
          plan_.element_specs.push_back(next.specs);
        }
      }
    }
  }

  // A variable that goes out of the run, or waits in it for other tasks, is held by a reference, and a writer that
  // comes meanwhile copies it. A large one that is only looked into, such as a table of rows, is not worth that.
  void hold_variables() {
    constexpr int64_t kWorthWaiting = 256 << 10;
    for (size_t i = 0; i < program_.variables.size(); ++i) {
      const VariableRef& variable = program_.variables[i];
      const bool escapes = memory_.seen(aliases_.group(variable.value)).output;
      plan_.variable_held.push_back(!plan_.variable_uses[i].written && !escapes && !plan_.needs_others &&
                                    variable.spec.bytes() >= kWorthWaiting);
    }
  }

  void add_step(size_t index) {
    const Instruction& instruction = program_.instructions[index];
    const std::string& op_name = program_.op_of(instruction).name;
    const auto& op = ops_[instruction.op];
    const OpFacts& facts = facts_[instruction.op];
    Step step{.action = op ? Step::Op{*op} : own_action(op_name), .results = instruction.results};
    step.instruction = static_cast<int32_t>(index);
    step.device = devices_.device(device_name(instruction.device));
    // A copy runs where its source is, in order with the writers of that memory; its result appears elsewhere.
    int32_t lane_device = instruction.device;
    if (auto* copy = step.as<Step::Copy>()) {
      const ValueId source = std::get<ValueRef>(instruction.arguments[0].value).id;
      if (home_[source] >= 0) lane_device = home_[source];
      const ValueId target = instruction.results[0][0];
      // Whoever gets what comes out of it, of a body at once, may write to that; a constant is the program's own.
      copy->share = devices_.device(device_name(lane_device)) == step.device &&
                    !aliases_.written(aliases_.group(source)) && !aliases_.written(aliases_.group(target)) &&
                    !memory_.seen(aliases_.group(source)).constant &&
                    !(is_body_ && memory_.seen(aliases_.group(target)).output);
      copy->sent = !is_body_ && !program_.task.empty() && is_sent(target);
    }
    step.lane = lane_of(device_name(lane_device));
    try {
      if (op) {
        prepare_op(step, instruction, [&](size_t indices, size_t self) {
          return found_by_forward(program_, aliases_, index, indices, self);
        });
      } else {
        prepare_own(step, instruction);
      }
    } catch (const Error& error) {
      throw invalid_argument("program \"", program_.name, "\": instruction ", index, " (", op_name,
                             "): ", error.status().message());
    }
    if (auto* next = step.as<Step::Next>()) {
      if (next->specs.size() != step.results[0].size()) {
        throw invalid_argument("program \"", program_.name, "\": instruction ", index, " (", op_name, ") takes ",
                               step.results[0].size(), " tensors of an element of ", next->specs.size());
      }
      // An element may be a view of memory that belongs to its sequence.
      next->copies = std::any_of(step.results[0].begin(), step.results[0].end(), [&](ValueId value) {
        return value >= 0 && (aliases_.written(aliases_.group(value)) || !keeps_no_order(aliases_.group(value)));
      });
    }
    if (auto* call = step.as<Step::Op>()) {
      // Without gradients it would not make the workspace of its backward pass, which is its last result.
      call->gradients = facts.asks_for_gradients && step.results.back() != std::vector{kNoValue};
      plan_.random = plan_.random || call->generator >= 0;
    }
    bring_constants(step);
    await_producers(step);
    const std::vector<int32_t> visited = is_control(op_name) ? visit_other_lanes(step) : std::vector<int32_t>();
    for (int32_t event : std::exchange(visitors_[step.lane], {})) step.awaits.push_back(event);
    choose_kernel(step, facts);
    note_product(step, facts.product);
    if (facts.adds) note_update(step, facts.subtracts);
    const bool begins = step.is_answered_later();
    plan_.communicates = plan_.communicates || begins || step.as<Step::Send>();
    if (begins) {
      step.signals = plan_.num_events++;
      for (const auto& values : step.results) {
        for (ValueId value : values) {
          if (value >= 0) event_of_[value] = step.signals;
        }
      }
    }
    // The parts of one task run in turn: what one reads, a later one may write. So do collectives: every task of a
    // group makes the same calls in the same order.
    if (const auto* remote = step.as<Step::Remote>()) take_turn(step, parts_[remote->part].task);
    if (const auto* collective = step.as<Step::Collective>()) {
      take_turn(step, kCollectives);
      plan_.groups.insert(collective->group);
    }
    if (!step.bodies().empty()) take_turn_with_parts(step);
    for (const auto& values : step.results) {
      for (ValueId value : values) {
        if (value < 0) continue;
        home_[value] = visited.empty() ? instruction.device : home_of_result(step, value, instruction.device);
        producer_lane_[value] = step.lane;
        if (!visited.empty()) {
          event_of_[value] = step.signals;
          used_elsewhere_.insert(value);
        }
        begun_elsewhere_[value] = begins;
        if (step.as<Step::Copy>() && device_name(lane_device) != device_name(instruction.device)) {
          step.signals = event_of_[value] = plan_.num_events++;
        }
      }
    }
    plan_.lanes[step.lane].push_back(std::move(step));
  }

  // A chosen kernel may return its tensors in another order of memory. Ops that work element by element take and pass
  // on any order; the others get the usual one. Memory that is written or viewed by strides keeps its order.
  void choose_kernel(Step& step, const OpFacts& facts) {
    bool any = false;
    for_each_operand(step, [&](ValueId value) { any = any || unordered_[value]; });
    auto* call = step.as<Step::Op>();
    bool free_results = tuner_ != nullptr && call != nullptr;
    for (const auto& values : step.results) {
      for (ValueId value : values) {
        if (value >= 0) free_results = free_results && keeps_no_order(aliases_.group(value));
      }
    }
    const bool copies = facts.images != nullptr && facts.images->images.empty();
    if (free_results && (!copies || only_convolved_[step.results[0][0]])) {
      call->choice = KernelChoice::make(call->op, facts.images, step.device, *tuner_, image_order_);
    }
    const bool sums = any && free_results && adds_in_any_order(program_, aliases_, fixed_order_, step.instruction);
    const bool passes_on = any && free_results && (facts.any_order || sums);
    if (passes_on) call->one_order = !sums && step.slots.size() > 1;
    if ((free_results && call->choice) || passes_on) {
      for (const auto& values : step.results) {
        for (ValueId value : values) {
          if (value >= 0) unordered_[value] = true;
        }
      }
    } else if (any) {
      for (const Step::Slot& slot : step.slots) {
        if (unordered_[slot.value]) step.unordered.push_back(slot.position);
      }
      for (const Step::ListSlot& list : step.lists) {
        for (ValueId value : list.values) {
          if (value >= 0 && unordered_[value]) {
            step.unordered.push_back(list.position);
            break;
          }
        }
      }
    }
  }

  // From a part to another one, or to the program that it is a part of.
  bool is_sent(ValueId value) const {
    return std::ranges::find(program_.outputs, value) != program_.outputs.end() ||
           std::ranges::any_of(program_.instructions, [&](const Instruction& instruction) {
             const auto* sent =
                 instruction.arguments.empty() ? nullptr : std::get_if<ValueRef>(&instruction.arguments[0].value);
             return sent != nullptr && sent->id == value && program_.op_of(instruction).name == kSend.name;
           });
  }

  void note_product(Step& step, MatrixProduct product) {
    auto* call = step.as<Step::Op>();
    if (tuner_ == nullptr || product == MatrixProduct::kNone || !step.device.is_cpu()) return;
    call->second_factor = second_factor(product);
    if (product != MatrixProduct::kProduct || step.results[0][0] < 0) return;
    call->target = targets_[step.results[0][0]];
    // What its factors are when the update comes is what they are now, and nobody else needs what is not made.
    const bool may_wait = uses_[step.results[0][0]] == 1 &&
                          std::none_of(step.slots.begin(), step.slots.end(), [&](const Step::Slot& slot) {
                            return aliases_.written(aliases_.group(slot.value));
                          });
    if (call->target >= 0 && may_wait) waiting_[step.results[0][0]] = {step.lane, plan_.lanes[step.lane].size()};
  }

  // A product that is only added to a matrix is best added to it as it is made: nobody stores it.
  void note_update(Step& step, bool subtracts) {
    auto* call = step.as<Step::Op>();
    if (call == nullptr) return;
    auto note = [&](size_t index, ValueId target, ValueId value) {
      const auto product = waiting_.find(value);
      if (product == waiting_.end() || product->second.first != step.lane || targets_[value] != target) return;
      const int32_t factors = plan_.num_factors++;
      plan_.lanes[step.lane][product->second.second].as<Step::Op>()->factors = factors;
      call->terms.push_back({static_cast<int32_t>(index), target, value, factors});
    };
    if (step.lists.size() == 2) {
      const std::vector<ValueId>&targets = step.lists[0].values, &values = step.lists[1].values;
      for (size_t i = 0; i < targets.size() && i < values.size(); ++i) note(i, targets[i], values[i]);
    } else if (step.lists.empty() && step.slots.size() > 1 && step.slots[1].position == 1) {
      note(0, step.slots[0].value, step.slots[1].value);
    }
    call->subtracts = subtracts;
  }

  bool keeps_no_order(int group) const { return !fixed_order_[group]; }

  // A constant lives on the CPU; a step on another device uses a copy that is made once.
  void bring_constants(Step& step) {
    if (step.device.is_cpu()) return;
    for_each_operand(step, [&](ValueId& value) {
      auto it = constant_of_value_.find(value);
      if (it == constant_of_value_.end() || program_.constants[it->second].is_number) return;
      const size_t number = it->second;  // the iterator does not survive the insertion below
      ValueId& moved = moved_constants_[{value, step.device.str()}];
      if (moved == 0) {
        moved = program_.new_value();
        Constant constant = program_.constants[number];
        constant.value = moved;
        constant_of_value_[moved] = plan_.constants.size();
        plan_.constants.push_back(plan_.constants[number].to(step.device));
        plan_.constant_written.push_back(plan_.constant_written[number]);
        program_.constants.push_back(std::move(constant));
        home_.push_back(-1);
        producer_lane_.push_back(-1);
        event_of_.push_back(-1);
        unordered_.push_back(false);
        begun_elsewhere_.push_back(false);
      }
      value = moved;
    });
  }

  // Control flow works on the memory of other lanes, too, where that must stay: what its bodies write or return. It has
  // its turn there like any other step: after those before it, before those after it.
  std::vector<int32_t> visit_other_lanes(Step& step) {
    std::vector<int32_t> visited;
    for_each_operand(step, [&](ValueId value) {
      const int32_t lane = home_[value] < 0 ? step.lane : lane_of(device_name(home_[value]));
      if (lane == step.lane) return;
      used_elsewhere_.insert(value);
      if (std::find(visited.begin(), visited.end(), lane) == visited.end()) visited.push_back(lane);
    });
    if (!visited.empty()) step.signals = plan_.num_events++;
    for (const int32_t lane : visited) {
      for (int32_t event : std::exchange(visitors_[lane], {step.signals})) step.awaits.push_back(event);
      if (plan_.lanes[lane].empty()) continue;
      Step& before = plan_.lanes[lane].back();
      if (before.signals < 0) before.signals = plan_.num_events++;
      step.awaits.push_back(before.signals);
    }
    return visited;
  }

  void take_turn(Step& step, const std::string& among) {
    if (auto before = last_turn_.find(among); before != last_turn_.end()) step.awaits.push_back(before->second);
    last_turn_[among] = step.signals;
  }
  // Those of its bodies take theirs with it.
  void take_turn_with_parts(Step& step) {
    std::set<std::string> turns;
    for (int32_t body : step.bodies()) add_turns_of(program_.bodies[body], turns);
    if (turns.empty()) return;
    if (step.signals < 0) step.signals = plan_.num_events++;
    for (const std::string& among : turns) take_turn(step, among);
  }
  void add_turns_of(const Program& body, std::set<std::string>& turns) const {
    for (const Instruction& instruction : body.instructions) {
      const std::string& op = body.op_of(instruction).name;
      if (op == kRemote.name) turns.insert(parts_[std::get<int64_t>(instruction.arguments[0].value)].task);
      if (op == kCollective.name) turns.insert(kCollectives);
    }
    for (const Program& inner : body.bodies) add_turns_of(inner, turns);
  }

  // What control flow returns may be memory that it was given, and is then where that is.
  int32_t home_of_result(Step& step, ValueId result, int32_t otherwise) {
    int32_t home = -1;
    for_each_operand(step, [&](ValueId value) {
      if (home < 0 && memory_.group(value) == aliases_.group(result)) home = home_[value];
    });
    return home < 0 ? otherwise : home;
  }

  void await_producers(Step& step) {
    for_each_operand(step, [&](ValueId value) {
      const int32_t event = event_of_[value];
      if (event < 0 || (producer_lane_[value] == step.lane && !begun_elsewhere_[value])) return;
      if (awaited_.insert({event, step.lane}).second) step.awaits.push_back(event);
    });
  }

  void find_last_uses() {
    std::vector<Step*> last(program_.num_values, nullptr);
    for (auto& lane : plan_.lanes) {
      for (Step& step : lane) {
        for_each_operand(step, [&](ValueId value) { last[value] = &step; });
        for (const auto& values : step.results) {
          for (ValueId value : values) {
            // What comes later than its step cannot be dropped by it.
            if (value >= 0 && begun_elsewhere_[value]) continue;
            if (value >= 0 && (!last[value] || last[value]->lane == step.lane)) last[value] = &step;
          }
        }
      }
    }
    // A copy's result is used in another lane than the one that made it: its last use is there, if there is any.
    for (auto& lane : plan_.lanes) {
      for (Step& step : lane) {
        for_each_operand(step, [&](ValueId value) {
          if (event_of_[value] >= 0) last[value] = &step;
        });
      }
    }
    std::vector<bool> kept(program_.num_values, false);
    for (ValueId value : program_.outputs) {
      if (value >= 0) kept[value] = true;
    }
    for (const ProgramArgument& argument : program_.arguments) {
      plan_.argument_used.push_back(last[argument.value] != nullptr || kept[argument.value]);
    }
    for (const ProgramArgument& argument : program_.arguments) kept[argument.value] = true;
    for (const VariableRef& variable : program_.variables) kept[variable.value] = true;
    for (const Constant& constant : program_.constants) kept[constant.value] = true;
    for (ValueId value : used_elsewhere_) kept[value] = true;
    for (ValueId value = 0; value < program_.num_values; ++value) {
      if (last[value] && !kept[value]) last[value]->kills.push_back(value);
    }
    for (auto& lane : plan_.lanes) {
      for (Step& step : lane) {
        hand_over_last_operands(step);
        overwrite_last_operand(step);
        auto* call = step.as<Step::Op>();
        if (call == nullptr) continue;
        if (step.device.is_cpu()) {
          const std::string& name = program_.op_of(program_.instructions[step.instruction]).name;
          call->small = small_op(name);
          if (tuner_ != nullptr) call->one_pass = one_pass(name);
        }
        if (step.slots.size() != 2) continue;
        if (!facts_[program_.instructions[step.instruction].op].copies) continue;
        const ValueId source = step.slots[1].value;
        // On a GPU the next step finds a variable where this one did, if that was recorded.
        call->moves = step.device.is_cpu() && last[source] == &step && !is_input_or_output(source) &&
                      is_only_copied_to(step.slots[0].value);
      }
    }
  }

  // Arguments are the run's own, if nobody else holds them.
  bool is_input_or_output(ValueId value) const {
    auto is_it = [&](const auto& input) { return input.value == value; };
    return std::any_of(program_.variables.begin(), program_.variables.end(), is_it) ||
           std::any_of(program_.constants.begin(), program_.constants.end(), is_it) ||
           std::find(program_.outputs.begin(), program_.outputs.end(), value) != program_.outputs.end();
  }

  bool is_only_copied_to(ValueId value) const {
    for (size_t i = 0; i < program_.variables.size(); ++i) {
      if (program_.variables[i].value == value) return plan_.variable_uses[i].touched_once;
    }
    return false;
  }

  static void hand_over_last_operands(Step& step) {
    const auto* call = step.as<Step::Op>();
    // On a GPU what is checked beside a step (gpu/device_flags.h) may still need them.
    if (call == nullptr || !step.device.is_cpu()) return;
    for (Step::Slot& slot : step.slots) {
      // Of what an op has written to it may return references, which libtorch reads after it has cleared the stack.
      const c10::AliasInfo* alias = call->op.schema().arguments()[slot.position].alias_info();
      if (alias != nullptr && alias->isWrite()) continue;
      int uses = 0;
      for_each_operand(step, [&](ValueId value) { uses += value == slot.value; });
      slot.last = uses == 1 && std::find(step.kills.begin(), step.kills.end(), slot.value) != step.kills.end();
    }
  }

  // An operand that nobody reads afterwards is a place for the result that is already in the cache.
  void overwrite_last_operand(Step& step) {
    auto* call = step.as<Step::Op>();
    if (call == nullptr || step.slots.empty() || step.slots[0].position != 0) return;
    if (std::find(step.kills.begin(), step.kills.end(), step.slots[0].value) == step.kills.end()) return;
    const std::string_view in_place = facts_[program_.instructions[step.instruction].op].in_place;
    if (!in_place.empty()) call->in_place = known_op(in_place);
  }

  Plan& plan_;
  const bool is_body_;
  const std::vector<Program>& parts_;  // of the outermost program
  Program& program_;
  const LocalDevices& devices_;
  const OpCatalog& catalog_;
  Autotuner* const tuner_;
  const Aliases aliases_;
  const PlanMemory memory_;
  const std::vector<ValueId> targets_;                                // weight_order.h
  const std::vector<bool> fixed_order_, only_convolved_;              // by alias group, and by value (memory_orders.h)
  absl::flat_hash_map<ValueId, std::pair<int32_t, size_t>> waiting_;  // products that may: their lanes and steps
  std::vector<std::optional<c10::OperatorHandle>> ops_;
  std::vector<OpFacts> facts_;                        // of the program's ops
  std::vector<int> uses_;                             // value -> how often instructions are given it
  std::vector<int32_t> home_;                         // value -> index of its device
  std::vector<int32_t> producer_lane_;                // value -> lane that makes it
  std::vector<int32_t> event_of_;                     // value -> event, for values that cross lanes
  std::map<int32_t, std::vector<int32_t>> visitors_;  // lane -> events that its next step awaits
  std::set<ValueId> used_elsewhere_;                  // in other lanes than their own: kept until the end
  std::vector<bool> begun_elsewhere_;                 // value -> it comes from another task, some time after its step
  absl::flat_hash_map<std::string, int32_t> last_turn_;  // task, or kCollectives -> the event of the last one so far
  std::vector<bool> unordered_;  // value -> a chosen kernel may have left it in another order of memory
  std::shared_ptr<ImageOrder> image_order_ = std::make_shared<ImageOrder>(false);
  std::set<std::pair<int32_t, int32_t>> awaited_;
  absl::flat_hash_map<ValueId, size_t> constant_of_value_;
  std::map<std::pair<ValueId, std::string>, ValueId> moved_constants_;
};

}  // namespace

Plan::Plan(Program p, const LocalDevices& devices, const OpCatalog& catalog, Autotuner* tuner,
           const std::vector<Program>* parts, const std::vector<int>& argument_classes)
    : program(std::move(p)) {
  Planner(*this, devices, catalog, tuner, parts, argument_classes).build();
}

}  // namespace muster

#include "muster/runtime/executor/plan_step.h"

#include <algorithm>
#include <type_traits>

#include "muster/base/check.h"
#include "muster/base/status.h"
#include "muster/graph/elements.h"
#include "muster/runtime/ops/literals.h"

namespace muster {
namespace {

ValueId element_id(const Argument& element) {
  if (const auto* ref = std::get_if<ValueRef>(&element.value)) return ref->id;
  return std::holds_alternative<None>(element.value) ? kNoneElement : kUndefinedElement;
}

}  // namespace

Step::Action own_action(const std::string& op) {
  if (op == kCopy.name) return Step::Copy{};
  if (op == kElement.name) return Step::Element{};
  if (op == kNext.name) return Step::Next{};
  if (op == kCond.name) return Step::Cond{};
  if (op == kLoop.name) return Step::Loop{};
  if (op == kLoopGradient.name) return Step::LoopGradient{};
  if (op == kRemote.name) return Step::Remote{};
  if (op == kSend.name) return Step::Send{};
  if (op == kReceive.name) return Step::Receive{};
  MUSTER_CHECK(op == kCollective.name) << op;
  return Step::Collective{};
}

void prepare_op(Step& step, const Instruction& instruction, const FoundByForward& found) {
  Step::Op& call = *step.as<Step::Op>();
  const auto& arguments = call.op.schema().arguments();
  if (step.device.is_cuda() && !call.op.hasComputedKernelForDispatchKey(c10::DispatchKey::CUDA)) {
    throw invalid_argument("it has no kernel for GPUs; ask for a CPU with a DeviceScope around it");
  }
  const std::shared_ptr<const OpGuard> guard = guard_of(call.op, found, step.device.type());
  for (size_t i = 0; i < instruction.arguments.size(); ++i) {
    const Argument& argument = instruction.arguments[i];
    const int32_t position = static_cast<int32_t>(i);
    const c10::TypePtr& type = arguments[i].real_type();
    if (strip_optional(type)->kind() == c10::TypeKind::GeneratorType) {
      call.generator = position;
      call.stack.emplace_back();
      continue;
    }
    const bool needed = type->kind() == c10::TypeKind::TensorType && (!guard || !guard->may_be_missing(i));
    if (const auto* ref = std::get_if<ValueRef>(&argument.value)) step.slots.push_back({position, ref->id, needed});
    if (needed && std::holds_alternative<Undefined>(argument.value)) {
      throw invalid_argument("argument ", i, " (", arguments[i].name(), ") is a tensor that is not defined");
    }
    const auto* list = std::get_if<ArgumentList>(&argument.value);
    ListKind kind = list ? list_kind(type) : ListKind::kPlain;
    if (kind == ListKind::kPlain) {
      call.stack.push_back(plain_argument(argument, type, step.device));
      continue;
    }
    Step::ListSlot slot{position, kind == ListKind::kOptionalTensors, {}};
    for (const Argument& element : *list) {
      slot.values.push_back(element_id(element));
      if (!slot.optional && slot.values.back() < 0) {
        throw invalid_argument("argument ", i, " (", arguments[i].name(), ") has a tensor that is not defined");
      }
    }
    step.lists.push_back(std::move(slot));
    call.stack.emplace_back();
  }
  if (!guard) return;
  guard->check_once(call.stack);
  if (guard->looks_at_each_call()) call.guard = guard;
}

// They take their tensors from slots and lists by position, without a stack.
void prepare_own(Step& step, const Instruction& instruction) {
  std::vector<int64_t> numbers;
  std::string text;
  for (size_t i = 0; i < instruction.arguments.size(); ++i) {
    const Argument& argument = instruction.arguments[i];
    const int32_t position = static_cast<int32_t>(i);
    if (const auto* ref = std::get_if<ValueRef>(&argument.value)) {
      step.slots.push_back({position, ref->id});
    } else if (const auto* list = std::get_if<ArgumentList>(&argument.value); list && !step.as<Step::Next>()) {
      Step::ListSlot slot{position, false, {}};
      for (const Argument& element : *list) slot.values.push_back(element_id(element));
      step.lists.push_back(std::move(slot));
    } else if (const auto* whole = std::get_if<int64_t>(&argument.value)) {
      numbers.push_back(*whole);
    } else if (const auto* words = std::get_if<std::string>(&argument.value)) {
      text = *words;
    }
  }
  auto number = [&](size_t i) {
    if (i >= numbers.size()) throw invalid_argument("has ", numbers.size(), " whole numbers, too few");
    return numbers[i];
  };
  std::visit(
      [&]<class Kind>(Kind& kind) {
        if constexpr (requires { kind.bodies; }) kind.bodies = instruction.bodies;
        if constexpr (std::is_same_v<Kind, Step::Next>) kind.specs = element_of(instruction);
        if constexpr (std::is_same_v<Kind, Step::Loop>) {
          if (!numbers.empty()) kind.trips = numbers[0];
          kind.save = std::any_of(step.results[1].begin(), step.results[1].end(), [](ValueId v) { return v >= 0; });
        }
        if constexpr (std::is_same_v<Kind, Step::Remote>) kind.part = number(0);
        if constexpr (std::is_same_v<Kind, Step::Send>) kind.edge = number(0);
        if constexpr (std::is_same_v<Kind, Step::Receive>)
          kind = {number(0), text, WireForm::from_number(number(1)).value_or(WireForm{})};
        if constexpr (std::is_same_v<Kind, Step::Collective>) {
          kind.group = number(0);
          kind.call = CollectiveCall::from_numbers(number(1), number(2), number(3), text);
        }
      },
      step.action);
}

}  // namespace muster

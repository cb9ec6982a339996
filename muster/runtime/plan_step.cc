#include "muster/runtime/plan_step.h"

#include "muster/base/status.h"
#include "muster/graph/elements.h"
#include "muster/runtime/literals.h"

namespace muster {
namespace {

ValueId element_id(const Argument& element) {
  if (const auto* ref = std::get_if<ValueRef>(&element.value)) return ref->id;
  return std::holds_alternative<None>(element.value) ? kNoneElement : kUndefinedElement;
}

}  // namespace

Step::Kind kind_of(const std::string& op) {
  if (op == kCopy.name) return Step::Kind::kCopy;
  if (op == kElement.name) return Step::Kind::kElement;
  if (op == kNext.name) return Step::Kind::kNext;
  if (op == kCond.name) return Step::Kind::kCond;
  if (op == kLoop.name) return Step::Kind::kLoop;
  if (op == kLoopGradient.name) return Step::Kind::kLoopGradient;
  if (op == kRemote.name) return Step::Kind::kRemote;
  if (op == kSend.name) return Step::Kind::kSend;
  if (op == kReceive.name) return Step::Kind::kReceive;
  if (op == kCollective.name) return Step::Kind::kCollective;
  return Step::Kind::kOp;
}

void prepare_op(Step& step, const Instruction& instruction, const FoundByForward& found) {
  const auto& arguments = step.op->schema().arguments();
  if (step.device.is_cuda() && !step.op->hasComputedKernelForDispatchKey(c10::DispatchKey::CUDA)) {
    throw invalid_argument("it has no kernel for GPUs; ask for a CPU with a DeviceScope around it");
  }
  const std::shared_ptr<const OpGuard> guard = guard_of(*step.op, found, step.device.type());
  for (size_t i = 0; i < instruction.arguments.size(); ++i) {
    const Argument& argument = instruction.arguments[i];
    const int32_t position = static_cast<int32_t>(i);
    const c10::TypePtr& type = arguments[i].real_type();
    if (strip_optional(type)->kind() == c10::TypeKind::GeneratorType) {
      step.generator = position;
      step.stack.emplace_back();
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
      step.stack.push_back(plain_argument(argument, type, step.device));
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
    step.stack.emplace_back();
  }
  if (!guard) return;
  guard->check_once(step.stack);
  if (guard->looks_at_each_call()) step.guard = guard;
}

// The ops of our own take their tensors from slots and lists by position, without a stack.
void prepare_control(Step& step, const Instruction& instruction) {
  for (size_t i = 0; i < instruction.arguments.size(); ++i) {
    const Argument& argument = instruction.arguments[i];
    const int32_t position = static_cast<int32_t>(i);
    step.stack.emplace_back();
    if (const auto* ref = std::get_if<ValueRef>(&argument.value)) {
      step.slots.push_back({position, ref->id});
    } else if (const auto* list = std::get_if<ArgumentList>(&argument.value); list && step.kind == Step::Kind::kNext) {
      step.specs = element_of(instruction);
    } else if (list != nullptr) {
      Step::ListSlot slot{position, false, {}};
      for (const Argument& element : *list) slot.values.push_back(element_id(element));
      step.lists.push_back(std::move(slot));
    } else if (const auto* number = std::get_if<int64_t>(&argument.value)) {
      step.stack.back() = *number;
      step.number = *number;
    } else if (const auto* text = std::get_if<std::string>(&argument.value)) {
      step.task = *text;
    }
  }
  if (step.kind != Step::Kind::kCollective) return;
  step.number = step.stack[1].toInt();
  step.collective =
      CollectiveCall::from_numbers(step.stack[2].toInt(), step.stack[3].toInt(), step.stack[4].toInt(), step.task);
}

}  // namespace muster

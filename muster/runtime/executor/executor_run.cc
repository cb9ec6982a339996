#include "muster/runtime/executor/executor_run.h"

#include <c10/core/DeviceGuard.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <utility>

#include "muster/base/blocking.h"
#include "muster/runtime/gpu/wait_for_device.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/ops/failed_op.h"
#include "muster/runtime/ops/matrix_product.h"
#include "muster/runtime/ops/op_failure.h"
#include "muster/runtime/ops/operands.h"

namespace muster {

void Executor::Run::receive() {
  if (plan_.receives.empty()) return;
  join_others();
  for (const Step* step : plan_.receives) begin_receive(*step, *step->as<Step::Receive>());
  await_calls();
  leave_if_failed();
}

void Executor::Run::execute(OrderTrial* trial) {
  trial_ = trial;
  for (size_t i = 0; i < plan_.constants.size(); ++i) {
    if (plan_.constant_written[i]) frame_.values[plan_.program.constants[i].value] = plan_.constants[i].clone();
  }
  if (plan_.lanes.size() == 1 && !plan_.communicates) return run_lane(0);
  if (plan_.communicates) return run_with_others();
  ++frame_.epoch;
  run_lanes();
  if (const std::exception_ptr failure = first_failure()) std::rethrow_exception(failure);
}

void Executor::Run::run_lanes() {
  auto run = [this](int lane) {
    try {
      PlainTensors plain;
      run_lane(lane);
    } catch (...) {
      fail(std::current_exception());
    }
  };
  if (plan_.lanes.size() == 1) {
    run(0);
  } else {
    about_to_block();
    frame_.team->run(run);
  }
}

void Executor::Run::join_others() {
  if (others_) return;
  ++frame_.epoch;
  others_.emplace();
  remote_options_ = options_;
  remote_options_.cancellation = &*others_;
  remote_options_.profile = nullptr;
  if (options_.meeting == 0) remote_options_.meeting = random_id();
  if (options_.cancellation != nullptr) {
    outer_ = options_.cancellation->on_cancel([&](const Status& why) { fail(std::make_exception_ptr(Error(why))); });
  }
}

void Executor::Run::await_calls() {
  absl::MutexLock lock(&calls_mu_);
  if (calls_ == 0) return;
  const Waiting waiting;
  const AddTime waited(peers_time());
  calls_mu_.Await(absl::Condition(+[](int* calls) { return *calls == 0; }, &calls_));
}

void Executor::Run::leave_if_failed() {
  const std::exception_ptr failure = first_failure();
  if (!failure) return;
  outer_.reset();
  if (links_.parts) links_.parts->abort(remote_options_.meeting, muster::status_of(failure));
  std::rethrow_exception(failure);
}

void Executor::Run::run_with_others() {
  join_others();
  run_lanes();
  await_calls();
  outer_.reset();
  leave_if_failed();
}

std::exception_ptr Executor::Run::first_failure() {
  absl::MutexLock lock(&failure_mu_);
  return failure_;
}

void Executor::Run::fail(std::exception_ptr failure) {
  const Status why = muster::status_of(failure);
  const bool consequence = why.code() == StatusCode::kCancelled;
  {
    absl::MutexLock lock(&failure_mu_);
    if (!failure_ || (failure_cancelled_ && !consequence)) {
      failure_ = std::move(failure);
      failure_cancelled_ = consequence;
    }
  }
  failed_.store(true, std::memory_order_release);
  if (others_) {
    others_->cancel(Status(StatusCode::kCancelled, "another part of the step has failed"));
    links_.rendezvous->abort(remote_options_.meeting, why);
  }
  for (auto& event : frame_.events) {
    event.store(frame_.epoch, std::memory_order_release);
    event.notify_all();
  }
}

void Executor::Run::run_lane(int lane) {
  std::vector<c10::IValue>& stack = frame_.stacks[lane];
  std::optional<c10::DeviceGuard> guard;
  if (!plan_.lane_torch_devices[lane].is_cpu()) guard.emplace(plan_.lane_torch_devices[lane]);
  const std::vector<Step>& steps = plan_.lanes[lane];
  size_t next = 0;
  // A body is part of the graph of its step, and a profile has its steps one by one.
  if (!frame_.part_of_stretch && options_.profile == nullptr) {
    for (size_t i = 0; i < plan_.stretches[lane].size(); ++i) {
      const Stretch& stretch = plan_.stretches[lane][i];
      if (!take_steps(steps, next, stretch.begin, stack)) return;
      if (!run_stretch(lane, stretch, *frame_.captured[lane][i], stack)) return;
      next = stretch.end;
    }
  }
  take_steps(steps, next, steps.size(), stack);
}

bool Executor::Run::take_steps(const std::vector<Step>& steps, size_t begin, size_t end,
                               std::vector<c10::IValue>& stack) {
  for (size_t i = begin; i < end; ++i) {
    const Step& step = steps[i];
    if (options_.cancellation != nullptr) options_.cancellation->throw_if_cancelled();
    for (int32_t event : step.awaits) await(event);
    if (failed_.load(std::memory_order_relaxed)) return false;
    Profile::Clock::time_point began;
    if (options_.profile != nullptr) began = Profile::Clock::now();
    try {
      perform(step, stack);
      // Or the time would be what it takes to tell a GPU.
      if (options_.profile != nullptr) wait_for_device(plan_.lane_torch_devices[step.lane]);
    } catch (...) {
      rethrow_with_place(step, std::exchange(stack, {}));
    }
    if (options_.profile != nullptr) {
      options_.profile->add({op_name(step), plan_.lane_devices[step.lane], began, Profile::Clock::now()});
    }
    if (step.signals >= 0 && !step.is_answered_later() && flags_of(step.lane) == nullptr) signal(step.signals);
    for (ValueId value : step.kills) frame_.values[value].reset();
  }
  return true;
}

bool Executor::Run::run_stretch(int lane, const Stretch& stretch, CapturedStretch& captured,
                                std::vector<c10::IValue>& stack) {
  const std::vector<Step>& steps = plan_.lanes[lane];
  for (int32_t event : steps[stretch.begin].awaits) await(event);
  if (failed_.load(std::memory_order_relaxed)) return false;
  std::vector<at::Generator> generators;
  if (plan_.random) generators.push_back(generators_[std::min<size_t>(lane, generators_.size() - 1)]);
  try {
    captured.run(frame_.values, generators, [&](DeviceFlags* flags) {
      flags_of(lane) = flags;
      frame_.in_stretch[lane] = !captured.given_up();
      const auto over = c10::make_scope_exit([&] {
        flags_of(lane) = nullptr;
        frame_.in_stretch[lane] = false;
      });
      take_steps(steps, stretch.begin, stretch.end, stack);
    });
  } catch (const Error& error) {
    throw Error(error.status().from(task_));
  }
  if (const int32_t event = steps[stretch.end - 1].signals; event >= 0) signal(event);
  return !failed_.load(std::memory_order_relaxed);
}

void Executor::Run::signal(int32_t event) {
  frame_.events[event].store(frame_.epoch, std::memory_order_release);
  frame_.events[event].notify_all();
}

void Executor::Run::await(int32_t event) const {
  std::atomic<uint64_t>& happened = frame_.events[event];
  for (uint64_t seen = happened.load(std::memory_order_acquire); seen != frame_.epoch;
       seen = happened.load(std::memory_order_acquire)) {
    const Waiting waiting;
    const AddTime waited(peers_time());
    happened.wait(seen, std::memory_order_acquire);
  }
}

const std::string& Executor::Run::op_name(const Step& step) const {
  return plan_.program.op_of(plan_.program.instructions[step.instruction]).name;
}

void Executor::Run::rethrow_with_place(const Step& step, const std::vector<c10::IValue>& stack) const {
  Status status = status_of_op_failure();
  const auto* op = step.as<Step::Op>();
  if (op == nullptr || status.code() == StatusCode::kCancelled) throw Error(status.from(task_));
  status = explained(status, plan_.program, plan_.program.instructions[step.instruction], op->op, stack);
  throw Error(Status(status.code(),
                     str_cat("op ", op_name(step), " (instruction ", step.instruction, " of program \"",
                             plan_.program.name, "\") on ", plan_.lane_devices[step.lane], ": ", status.message()),
                     task_, status.detail()));
}

namespace {

template <class... Visits>
struct ForEachKind : Visits... {
  using Visits::operator()...;
};

}  // namespace

void Executor::Run::perform(const Step& step, std::vector<c10::IValue>& stack) {
  if (const auto* op = step.as<Step::Op>()) return call(step, *op, stack);
  std::visit(ForEachKind{
                 [](const Step::Op&) {},       // above: nearly all of them are
                 [](const Step::Receive&) {},  // came before the first step: receive()
                 [&](const Step::Copy& kind) { copy(step, kind); },
                 [&](const Step::Element&) { element(step); },
                 [&](const Step::Next& kind) { take_next(step, kind); },
                 [&](const Step::Cond& kind) { choose(step, kind); },
                 [&](const Step::Loop& kind) { loop(step, kind); },
                 [&](const Step::LoopGradient& kind) { loop_gradient(step, kind); },
                 [&](const Step::Remote& kind) { begin_remote(step, kind); },
                 [&](const Step::Send& kind) { send(step, kind); },
                 [&](const Step::Collective& kind) { begin_collective(step, kind); },
             },
             step.action);
}

namespace {

// Without the elements at these places.
Step::ListSlot without(const Step::ListSlot& slot, const std::vector<int32_t>& places) {
  Step::ListSlot rest{slot.position, slot.optional, {}};
  for (size_t i = 0; i < slot.values.size(); ++i) {
    if (!std::binary_search(places.begin(), places.end(), static_cast<int32_t>(i)))
      rest.values.push_back(slot.values[i]);
  }
  return rest;
}

double rate_in(const at::Tensor& rate) {
  if (rate.numel() != 1) throw invalid_argument("the rate is ", spec_of(rate).to_string(), ", expected one number");
  return rate.item().toDouble();
}

}  // namespace

bool Executor::Run::leaves_factors(const Step::Op& op, std::vector<c10::IValue>& stack) {
  if (!adds_here(frame_.values[op.target], stack[0].toTensor(), stack[1].toTensor())) return false;
  frame_.factors[op.factors] = {std::move(stack[0]).toTensor(), std::move(stack[1]).toTensor()};
  stack.clear();
  return true;
}

std::vector<int32_t> Executor::Run::add_products(const Step& step, const Step::Op& op) {
  std::vector<int32_t> added;
  std::optional<double> rate;
  for (const Step::Term& term : op.terms) {
    const Frame::Factors factors = std::exchange(frame_.factors[term.factors], {});
    if (!factors.first.defined()) continue;
    if (!rate) {
      const auto tensor =
          std::find_if(step.slots.begin(), step.slots.end(), [](auto& slot) { return slot.position == 2; });
      rate = tensor == step.slots.end() ? op.stack[2].toScalar().toDouble() : rate_in(needed(step, tensor->value, 2));
    }
    add_product(frame_.values[term.target], factors.first, factors.second, op.subtracts ? -*rate : *rate);
    added.push_back(term.index);
  }
  return added;
}

void Executor::Run::call(const Step& step, const Step::Op& op, std::vector<c10::IValue>& stack) {
  std::vector<int32_t> added;
  if (!op.terms.empty()) added = add_products(step, op);
  if (!added.empty() && added.size() == (step.lists.empty() ? 1 : step.lists[0].values.size())) {
    if (step.lists.empty()) store_result(step.results[0], frame_.values[op.terms[0].target], frame_.values);
    return;
  }
  stack.assign(op.stack.begin(), op.stack.end());
  for (const Step::Slot& slot : step.slots) {
    at::Tensor& value = frame_.values[slot.value];
    if (slot.needed && !value.defined()) fail_undefined(step, slot.position);
    if (slot.last) {
      stack[slot.position] = std::move(value);
    } else {
      stack[slot.position] = value;
    }
  }
  for (const Step::ListSlot& slot : step.lists) {
    stack[slot.position] = list_operand(added.empty() ? slot : without(slot, added), frame_.values);
  }
  if (op.generator >= 0) stack[op.generator] = generators_[std::min<size_t>(step.lane, generators_.size() - 1)];
  for (int32_t position : step.unordered) put_in_usual_order(stack[position]);
  if (op.one_order) use_one_order(step, stack);
  if (DeviceFlags* flags = flags_of(step.lane)) {
    leave_to(*flags, step, op, stack);
  } else if (op.guard) {
    op.guard->check(stack);
  }
  if (trial_ != nullptr && op.second_factor >= 0) trial_->note(op, stack, frame_.values);
  if (op.factors >= 0 && leaves_factors(op, stack)) return;
  if (op.moves && move_into(stack[0].toTensor(), stack[1], step.slots[1].last)) {
    stack.resize(1);  // what copy_ returns
  } else if (const bool ours = op.in_place && nobody_else_sees(stack[0], step.slots[0].last);
             op.small != nullptr && op.small(stack, ours)) {
    // the result is on the stack
  } else if (ours && results_fit(stack)) {
    // Every form takes what its op takes, and if it has one argument more, that is where the result goes.
    if (op.in_place->schema().arguments().size() > stack.size()) stack.push_back(stack[0]);
    op.in_place->callBoxed(stack);
  } else if (op.one_pass != nullptr && op.one_pass(stack)) {
    // the result is on the stack
  } else if (op.choice) {
    op.choice->call(stack);
  } else if (op.target >= 0 && in_columns(frame_.values[op.target])) {
    multiply_into_columns(stack);
  } else if (op.second_factor >= 0 && multiply_here(op.second_factor, stack)) {
    // the result is on the stack
  } else if (op.gradients) {
    c10::AutoGradMode gradients(true);
    op.op.callBoxed(stack);
  } else {
    op.op.callBoxed(stack);
  }
  for (size_t i = 0; i < step.results.size(); ++i) store_result(step.results[i], std::move(stack[i]), frame_.values);
  stack.clear();
}

void Executor::Run::leave_to(DeviceFlags& flags, const Step& step, const Step::Op& op,
                             std::vector<c10::IValue>& stack) {
  if (op.guard) op.guard->check_later(stack, flags, op_name(step));
  const auto& arguments = op.op.schema().arguments();
  for (size_t i = 0; i < stack.size(); ++i) {
    const c10::AliasInfo* alias = arguments[i].alias_info();
    if (alias != nullptr && alias->isWrite() && stack[i].isTensor()) flags.forget(stack[i].toTensor());
  }
}

void Executor::Run::fail_undefined(const Step& step, int32_t position) const {
  throw invalid_argument(step.as<Step::Op>() ? "" : op_name(step) + ": ", "argument ", position,
                         " is a tensor that is not defined");
}

void Executor::Run::copy(const Step& step, const Step::Copy& copy) {
  at::Tensor source = needed(step, step.slots[0].value, 0);
  if (!step.unordered.empty()) source = in_usual_order(source);
  at::Tensor& target = frame_.values[step.results[0][0]];
  const bool shows = copy.share || source.device() != step.device;
  // What was transposed is put in rows by the one copy, not by another one when it is sent.
  target = shows ? source : source.clone(copy.sent ? at::MemoryFormat::Contiguous : at::MemoryFormat::Preserve);
  bring_to(step.device, target);
  if (trial_ != nullptr) trial_->note_copy(source, target);
}

void Executor::Run::element(const Step& step) {
  at::Tensor values = needed(step, step.slots[0].value, 0);
  if (!step.unordered.empty()) values = in_usual_order(values);
  const int64_t index = needed(step, step.slots[1].value, 1).item().toLong();
  frame_.values[step.results[0][0]] = element_of(values, index);
}

void Executor::Run::take_next(const Step& step, const Step::Next& next) {
  Element element = next.first >= 0
                        ? std::move(frame_.first_elements[next.first])
                        : frame_.taken->next(links_.source, needed(step, step.slots[0].value, 0), next.specs, options_);
  for (size_t i = 0; i < element.size(); ++i) {
    at::Tensor& tensor = element[i];
    bring_to(step.device, tensor);
    if (next.copies) tensor = tensor.clone(at::MemoryFormat::Contiguous);
    if (step.results[0][i] >= 0) frame_.values[step.results[0][i]] = std::move(tensor);
  }
}

}  // namespace muster

#include "muster/runtime/executor.h"

#include <ATen/ops/add.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/select.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "muster/base/blocking.h"
#include "muster/base/check.h"
#include "muster/base/status.h"
#include "muster/runtime/executor_frame.h"
#include "muster/runtime/held_variables.h"
#include "muster/runtime/op_failure.h"
#include "muster/runtime/operands.h"
#include "muster/runtime/order_trial.h"
#include "muster/runtime/plan.h"
#include "muster/runtime/tensors.h"

namespace muster {

// One run of a plan in a frame; bodies of control flow are runs of their own.
class Executor::Run {
 public:
  Run(Frame& frame, const std::string& task, const RunOptions& options, std::vector<at::Generator>& generators,
      const ExecutorLinks& links)
      : frame_(frame), plan_(frame.plan), task_(task), options_(options), generators_(generators), links_(links) {}

  // Waits for all that other parts have for this one. Before it takes a variable: a part that has one may be what they
  // wait for.
  void receive() {
    if (plan_.receives.empty()) return;
    join_others();
    for (const Step* step : plan_.receives) begin_receive(*step);
    await_calls();
    leave_if_failed();
  }

  // `trial`: null if nothing is to be measured. REQUIRES: receive() has returned.
  void execute(OrderTrial* trial) {
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

 private:
  void run_lanes() {
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

  // Other tasks take part from now on.
  void join_others() {
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

  // Nothing that they send may arrive after the frame is used for something else.
  void await_calls() {
    absl::MutexLock lock(&calls_mu_);
    if (calls_ == 0) return;
    const Waiting waiting;
    const AddTime waited(peers_time());
    calls_mu_.Await(absl::Condition(+[](int* calls) { return *calls == 0; }, &calls_));
  }

  void leave_if_failed() {
    const std::exception_ptr failure = first_failure();
    if (!failure) return;
    outer_.reset();
    if (links_.parts) links_.parts->abort(remote_options_.meeting, muster::status_of(failure));
    std::rethrow_exception(failure);
  }

  void run_with_others() {
    join_others();
    run_lanes();
    await_calls();
    outer_.reset();
    leave_if_failed();
  }

  std::exception_ptr first_failure() {
    absl::MutexLock lock(&failure_mu_);
    return failure_;
  }

  // The first failure is the one that counts, but what was only cancelled because of another one never does. Whoever
  // waits for an event is let go and stops at its next step.
  void fail(std::exception_ptr failure) {
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

  void run_lane(int lane) {
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

  // False if the run has failed.
  bool take_steps(const std::vector<Step>& steps, size_t begin, size_t end, std::vector<c10::IValue>& stack) {
    for (size_t i = begin; i < end; ++i) {
      const Step& step = steps[i];
      if (options_.cancellation != nullptr) options_.cancellation->throw_if_cancelled();
      for (int32_t event : step.awaits) await(event);
      if (failed_.load(std::memory_order_relaxed)) return false;
      Profile::Clock::time_point began;
      if (options_.profile != nullptr) began = Profile::Clock::now();
      try {
        perform(step, stack);
      } catch (...) {
        stack.clear();
        rethrow_with_place(step);
      }
      if (options_.profile != nullptr) {
        options_.profile->add({op_name(step), plan_.lane_devices[step.lane], began, Profile::Clock::now()});
      }
      if (step.signals >= 0 && !step.is_answered_later() && flags_of(step.lane) == nullptr) signal(step.signals);
      for (ValueId value : step.kills) frame_.values[value].reset();
    }
    return true;
  }

  bool run_stretch(int lane, const Stretch& stretch, CapturedStretch& captured, std::vector<c10::IValue>& stack) {
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

  void signal(int32_t event) {
    frame_.events[event].store(frame_.epoch, std::memory_order_release);
    frame_.events[event].notify_all();
  }

  void await(int32_t event) const {
    std::atomic<uint64_t>& happened = frame_.events[event];
    for (uint64_t seen = happened.load(std::memory_order_acquire); seen != frame_.epoch;
         seen = happened.load(std::memory_order_acquire)) {
      const Waiting waiting;
      const AddTime waited(peers_time());
      happened.wait(seen, std::memory_order_acquire);
    }
  }

  const std::string& op_name(const Step& step) const {
    return plan_.program.op_of(plan_.program.instructions[step.instruction]).name;
  }

  [[noreturn]] void rethrow_with_place(const Step& step) const {
    Status status = status_of_op_failure();
    if (step.kind != Step::Kind::kOp || status.code() == StatusCode::kCancelled) throw Error(status.from(task_));
    throw Error(Status(status.code(),
                       str_cat("op ", op_name(step), " (instruction ", step.instruction, " of program \"",
                               plan_.program.name, "\") on ", plan_.lane_devices[step.lane], ": ", status.message()),
                       task_));
  }

  void perform(const Step& step, std::vector<c10::IValue>& stack) {
    switch (step.kind) {
      case Step::Kind::kOp: return call(step, stack);
      case Step::Kind::kCopy: return copy(step);
      case Step::Kind::kElement: return element(step);
      case Step::Kind::kNext: return take_next(step);
      case Step::Kind::kCond: return choose(step);
      case Step::Kind::kLoop: return loop(step);
      case Step::Kind::kLoopGradient: return loop_gradient(step);
      case Step::Kind::kRemote: return begin_remote(step);
      case Step::Kind::kSend: return send(step);
      case Step::Kind::kReceive: return;  // came before the first step: receive()
      case Step::Kind::kCollective: return begin_collective(step);
    }
  }

  void call(const Step& step, std::vector<c10::IValue>& stack) {
    stack.assign(step.stack.begin(), step.stack.end());
    for (const Step::Slot& slot : step.slots) {
      stack[slot.position] = slot.needed ? needed(step, slot.value, slot.position) : frame_.values[slot.value];
    }
    for (const Step::ListSlot& slot : step.lists) stack[slot.position] = list_operand(slot, frame_.values);
    if (step.generator >= 0) stack[step.generator] = generators_[std::min<size_t>(step.lane, generators_.size() - 1)];
    for (int32_t position : step.unordered) put_in_usual_order(stack[position]);
    if (step.one_order) use_one_order(step, stack);
    if (DeviceFlags* flags = flags_of(step.lane)) {
      leave_to(*flags, step, stack);
    } else if (step.guard) {
      step.guard->check(stack);
    }
    if (trial_ != nullptr && step.second_factor >= 0) trial_->measure(step, stack, frame_.values);
    if (step.moves && move_into(stack[0].toTensor(), stack[1])) {
      stack.resize(1);  // what copy_ returns
    } else if (step.in_place && nobody_else_sees(stack[0])) {
      // Every form takes what its op takes, and if it has one argument more, that is where the result goes.
      if (step.in_place->schema().arguments().size() > stack.size()) stack.push_back(stack[0]);
      step.in_place->callBoxed(stack);
    } else if (step.choice) {
      step.choice->call(stack);
    } else if (step.target >= 0 && in_columns(frame_.values[step.target])) {
      multiply_into_columns(stack);
    } else if (step.gradients) {
      c10::AutoGradMode gradients(true);
      step.op->callBoxed(stack);
    } else {
      step.op->callBoxed(stack);
    }
    for (size_t i = 0; i < step.results.size(); ++i) store_result(step.results[i], std::move(stack[i]), frame_.values);
    stack.clear();
  }

  // Not null while the steps of a lane are recorded.
  DeviceFlags*& flags_of(int lane) { return frame_.flags[lane]; }
  void leave_to(DeviceFlags& flags, const Step& step, std::vector<c10::IValue>& stack) {
    if (step.guard) step.guard->check_later(stack, flags, op_name(step));
    const auto& arguments = step.op->schema().arguments();
    for (size_t i = 0; i < stack.size(); ++i) {
      const c10::AliasInfo* alias = arguments[i].alias_info();
      if (alias != nullptr && alias->isWrite() && stack[i].isTensor()) flags.forget(stack[i].toTensor());
    }
  }

  // A value may be there without a tensor: what an op has not computed. Neither our ops nor most of libtorch's look.
  const at::Tensor& needed(const Step& step, ValueId value, int32_t position) const {
    const at::Tensor& tensor = frame_.values[value];
    if (!tensor.defined()) fail_undefined(step, position);
    return tensor;
  }

  [[noreturn]] void fail_undefined(const Step& step, int32_t position) const {
    throw invalid_argument(step.kind == Step::Kind::kOp ? "" : op_name(step) + ": ", "argument ", position,
                           " is a tensor that is not defined");
  }

  void copy(const Step& step) {
    at::Tensor source = needed(step, step.slots[0].value, 0);
    if (!step.unordered.empty()) source = in_usual_order(source);
    at::Tensor& target = frame_.values[step.results[0][0]];
    if (step.share) {
      target = source;
    } else {
      target = source.device() == step.device ? source.clone() : source.to(step.device);
    }
  }

  void element(const Step& step) {
    at::Tensor values = needed(step, step.slots[0].value, 0);
    if (!step.unordered.empty()) values = in_usual_order(values);
    const int64_t index = needed(step, step.slots[1].value, 1).item().toLong();
    frame_.values[step.results[0][0]] = element_of(values, index);
  }

  std::atomic<int64_t>* peers_time() const {  // not of lanes that only wait for each other
    return options_.times != nullptr && plan_.communicates ? &options_.times->peers : nullptr;
  }

  void take_next(const Step& step) {
    Element element = step.first_element >= 0 ? std::move(frame_.first_elements[step.first_element])
                                              : frame_.taken->next(links_.source, needed(step, step.slots[0].value, 0),
                                                                   step.specs, options_);
    for (size_t i = 0; i < element.size(); ++i) {
      at::Tensor& tensor = element[i];
      bring_to(step.device, tensor);
      if (step.save) tensor = tensor.clone(at::MemoryFormat::Contiguous);
      if (step.results[0][i] >= 0) frame_.values[step.results[0][i]] = std::move(tensor);
    }
  }

  // ---- Other tasks
  // What comes from one is in memory of the CPU, or where it was there; here it is where its step is.
  void store_arrived(const Step& step, std::vector<at::Tensor> tensors) {
    for (at::Tensor& tensor : tensors) bring_to(step.device, tensor);
    store_all(step.results[0], std::move(tensors));
  }
  // The same for whoever has nobody to throw to.
  Status arrived(const Step& step, std::vector<at::Tensor> tensors) {
    try {
      store_arrived(step, std::move(tensors));
      return {};
    } catch (...) {
      return status_of_op_failure().from(task_);
    }
  }
  void begin_call() {
    absl::MutexLock lock(&calls_mu_);
    ++calls_;
  }
  // The last thing that touches the run: it may be gone as soon as the lock is.
  void end_call(const Step& step, const Status& status) {
    if (!status.ok()) fail(std::make_exception_ptr(Error(status)));
    signal(step.signals);
    absl::MutexLock lock(&calls_mu_);
    --calls_;
  }

  void begin_remote(const Step& step) {
    if (step.waits) {
      // An answer that is read by the thread that waits for it comes without a change of threads.
      const AddTime waited(peers_time());
      store_arrived(step, links_.parts->run(step.number, tensors_at(step, 1), remote_options_));
      return signal(step.signals);
    }
    begin_call();
    links_.parts->start(step.number, tensors_at(step, 1), remote_options_,
                        [this, &step](const Status& status, std::vector<at::Tensor> outputs) {
                          end_call(step, status.ok() ? arrived(step, std::move(outputs)) : status);
                        });
  }

  void begin_collective(const Step& step) {
    if (!links_.group) throw failed_precondition("there is no group number ", step.number, " at ", task_);
    const std::shared_ptr<Collectives> group = links_.group(static_cast<uint64_t>(step.number));
    if (step.waits) {
      const Waiting waiting;
      const AddTime waited(peers_time());
      store_arrived(step, group->run(step.collective, tensors_at(step, 0), remote_options_.cancellation));
      return signal(step.signals);
    }
    begin_call();
    group->start(step.collective, tensors_at(step, 0), remote_options_.cancellation,
                 [this, &step](const Status& status, std::vector<at::Tensor> outputs) {
                   end_call(step, status.ok() ? arrived(step, std::move(outputs)) : status);
                 });
  }

  void begin_receive(const Step& step) {
    begin_call();
    auto done = [this, &step](const Status& status, at::Tensor value) {
      end_call(step, status.ok() ? arrived(step, {std::move(value)}) : status);
    };
    if (step.task == task_) {
      // Left here by an earlier part; if it is not there yet, only a failed step keeps us waiting.
      links_.rendezvous->receive(remote_options_.meeting, step.number, std::move(done));
    } else if (!links_.parts) {
      done(Status(StatusCode::kFailedPrecondition, str_cat("there is no cluster to receive from ", step.task)), {});
    } else {
      links_.parts->receive(step.task, remote_options_.meeting, step.number, remote_options_, std::move(done));
    }
  }

  void send(const Step& step) {
    links_.rendezvous->send(remote_options_.meeting, step.number, needed(step, step.slots[0].value, 0), options_.owner);
  }

  // ---- Control flow
  std::vector<at::Tensor> tensors_at(const Step& step, int32_t position) const {
    std::vector<at::Tensor> tensors;
    for (const Step::ListSlot& slot : step.lists) {
      if (slot.position != position) continue;
      for (ValueId value : slot.values) tensors.push_back(needed(step, value, position));
    }
    if (std::find(step.unordered.begin(), step.unordered.end(), position) != step.unordered.end()) {
      for (at::Tensor& tensor : tensors) tensor = in_usual_order(tensor);
    }
    return tensors;
  }

  void store_all(const std::vector<ValueId>& values, std::vector<at::Tensor> tensors) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] >= 0) frame_.values[values[i]] = std::move(tensors[i]);
    }
  }

  template <class... Lists>
  std::vector<at::Tensor> run_body(const Step& step, int32_t body, const Lists&... lists) {
    const int32_t index = step.bodies[body];
    std::unique_ptr<Frame>& frame = frame_.bodies[index];
    if (!frame) frame = std::make_unique<Frame>(*plan_.bodies[index]);
    size_t next = 0;
    auto feed = [&](const at::Tensor& tensor) { frame->values[frame->plan.program.arguments[next++].value] = tensor; };
    (std::for_each(lists.begin(), lists.end(), feed), ...);
    // A body on one device, that of its step, continues the random stream of the step.
    std::vector<at::Generator> one;
    std::vector<at::Generator>* generators = &generators_;
    if (frame->plan.random && frame->plan.lanes.size() == 1 && frame->plan.lane_torch_devices[0] == step.device) {
      one.push_back(generators_[std::min<size_t>(step.lane, generators_.size() - 1)]);
      generators = &one;
    } else if (frame->plan.random) {
      at::Generator& mine = generators_[std::min<size_t>(step.lane, generators_.size() - 1)];
      for (size_t lane = 0; lane < frame->generators.size(); ++lane) {
        reseed(frame->generators[lane], step_seed(mine.current_seed(), ++body_runs_, 0, lane));
      }
      generators = &frame->generators;
    }
    frame->taken = frame_.taken;
    Run run(*frame, task_, options_, *generators, links_);
    frame->flags.assign(frame->flags.size(), flags_of(step.lane));
    frame->part_of_stretch = frame_.part_of_stretch || frame_.in_stretch[step.lane];
    run.receive();
    run.execute(trial_);
    std::vector<at::Tensor> outputs = frame->outputs();
    frame->clear();
    return outputs;
  }

  static at::Tensor trip_index(int64_t trip, at::Device device) {
    return at::scalar_tensor(trip, at::TensorOptions(at::kLong).device(device));
  }
  // That the body is given: where its program has it.
  at::Tensor trip_argument(const Step& step, int64_t trip) const {
    const Plan& body = *plan_.bodies[step.bodies[0]];
    return body.argument_used[0] ? trip_index(trip, body.argument_devices[0]) : at::Tensor();
  }

  void choose(const Step& step) {
    const bool yes = needed(step, step.slots[0].value, 0).item().toBool();
    store_all(step.results[0], run_body(step, yes ? 0 : 1, tensors_at(step, 1)));
  }

  bool goes_on(const Step& step, const at::Tensor& more) const {
    if (!more.defined()) fail_undefined(step, 0);
    return more.item().toBool();
  }

  void loop(const Step& step) {
    std::vector<at::Tensor> state = tensors_at(step, 1);
    const std::vector<at::Tensor> inputs = tensors_at(step, 2);
    std::vector<std::vector<at::Tensor>> saved(step.save ? state.size() : 0);
    const bool counted = step.stack[0].isInt();
    int64_t trip = 0;
    for (;; ++trip) {
      if (options_.cancellation != nullptr) options_.cancellation->throw_if_cancelled();
      if (counted ? trip >= step.stack[0].toInt() : !goes_on(step, run_body(step, 1, state, inputs)[0])) break;
      for (size_t i = 0; i < saved.size(); ++i) saved[i].push_back(state[i]);
      state = run_body(step, 0, std::vector{trip_argument(step, trip)}, state, inputs);
      if (!std::all_of(state.begin(), state.end(), [](const at::Tensor& each) { return each.defined(); })) {
        fail_undefined(step, 1);
      }
    }
    std::vector<at::Tensor> stacked;
    for (size_t i = 0; i < saved.size(); ++i) {
      stacked.push_back(saved[i].empty() ? at::zeros_like(state[i]).unsqueeze(0).slice(0, 0, 0) : at::stack(saved[i]));
    }
    if (!stacked.empty()) store_all(step.results[1], std::move(stacked));
    store_all(step.results[0], std::move(state));
    store_all(step.results[2], {trip_index(trip, step.device)});
  }

  void loop_gradient(const Step& step) {
    const std::vector<at::Tensor> saved = tensors_at(step, 1);
    std::vector<at::Tensor> gradients = tensors_at(step, 2);
    const std::vector<at::Tensor> inputs = tensors_at(step, 3);
    std::vector<at::Tensor> sums(inputs.size());
    for (int64_t trip = needed(step, step.slots[0].value, 0).item().toLong() - 1; trip >= 0; --trip) {
      if (options_.cancellation != nullptr) options_.cancellation->throw_if_cancelled();
      std::vector<at::Tensor> state;
      for (const at::Tensor& values : saved) state.push_back(values.select(0, trip));
      std::vector<at::Tensor> outputs =
          run_body(step, 0, std::vector{trip_argument(step, trip)}, state, gradients, inputs);
      for (size_t i = 0; i < sums.size(); ++i) {
        const at::Tensor& gradient = outputs[gradients.size() + i];
        if (!gradient.defined()) continue;
        sums[i] = sums[i].defined() ? sums[i].add(gradient) : gradient;
      }
      std::copy_n(outputs.begin(), gradients.size(), gradients.begin());
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      if (!sums[i].defined() && step.results[1][i] >= 0) sums[i] = at::zeros_like(inputs[i]);
    }
    store_all(step.results[0], std::move(gradients));
    store_all(step.results[1], std::move(sums));
  }

  Frame& frame_;
  const Plan& plan_;
  const std::string& task_;
  const RunOptions& options_;
  std::vector<at::Generator>& generators_;
  const ExecutorLinks& links_;
  OrderTrial* trial_ = nullptr;
  RunOptions remote_options_;
  std::optional<Cancellation> others_;
  absl::Mutex calls_mu_;
  int calls_ ABSL_GUARDED_BY(calls_mu_) = 0;
  uint64_t body_runs_ = 0;
  std::atomic<bool> failed_ = false;
  absl::Mutex failure_mu_;
  std::exception_ptr failure_ ABSL_GUARDED_BY(failure_mu_);
  bool failure_cancelled_ ABSL_GUARDED_BY(failure_mu_) = false;
  Cancellation::Registration outer_;  // last: it calls back
};

Executor::Executor(Program program, const LocalDevices& devices, const OpCatalog& catalog, VariableStore& variables,
                   KernelTable* kernels, ExecutorLinks links)
    : links_(std::move(links)),
      plan_(std::make_unique<Plan>(std::move(program), devices, catalog, kernels)),
      task_(devices.task()),
      orders_(plan_->program.variables.size()),
      orders_known_(!OrderTrial::worthwhile(*plan_)) {
  for (size_t i = 0; i < plan_->program.variables.size(); ++i) {
    const VariableRef& variable = plan_->program.variables[i];
    cells_.push_back(variables.declare(variable.name, variable.spec, plan_->variable_devices[i]));
  }
  cell_order_.resize(cells_.size());
  std::iota(cell_order_.begin(), cell_order_.end(), size_t{0});
  std::sort(cell_order_.begin(), cell_order_.end(),
            [&](size_t a, size_t b) { return cells_[a]->id() < cells_[b]->id(); });
}

Executor::~Executor() = default;

const Program& Executor::program() const { return plan_->program; }
const ElementSpecs& Executor::elements() const { return plan_->element_specs; }

std::unique_ptr<Executor::Frame> Executor::take_frame() {
  {
    absl::MutexLock lock(&mu_);
    if (!idle_frames_.empty()) {
      std::unique_ptr<Frame> frame = std::move(idle_frames_.back());
      idle_frames_.pop_back();
      return frame;
    }
  }
  return std::make_unique<Frame>(*plan_);
}

void Executor::return_frame(std::unique_ptr<Frame> frame) {
  absl::MutexLock lock(&mu_);
  idle_frames_.push_back(std::move(frame));
}

// The others of a group would take this task's next step for the one that has failed.
void Executor::fail_groups() const {
  for (int64_t group : plan_->groups) links_.group(static_cast<uint64_t>(group))->fail(status_of_op_failure());
}

std::vector<at::Tensor> Executor::run(std::vector<at::Tensor> arguments, const RunOptions& options) {
  const Program& program = plan_->program;
  check_arguments(program, arguments);
  const auto begin = std::chrono::steady_clock::now();
  PlainTensors plain;
  TakenElements elements;
  if (!plan_->first_elements.empty()) {
    try {
      elements.take(*plan_, arguments, links_.source, options);
    } catch (...) {
      throw Error(status_of_op_failure().from(task_));
    }
  }
  // A frame whose run failed is not used again: its lanes stopped in the middle.
  std::unique_ptr<Frame> frame = take_frame();
  const uint64_t step = options.step ? *options.step : next_step_.fetch_add(1, std::memory_order_relaxed);
  for (size_t lane = 0; lane < frame->generators.size(); ++lane)
    reseed(frame->generators[lane], step_seed(program.seed, step, options.replica, lane));
  for (size_t i = 0; i < arguments.size(); ++i) {
    at::Tensor& value = frame->values[program.arguments[i].value];
    value = arguments[i];
    bring_to(plan_->argument_devices[i], value);
    if (!plan_->argument_written[i] || value.is_same(arguments[i])) arguments[i].reset();
  }
  std::vector<at::Tensor> outputs;
  {
    frame->taken = &elements;
    Run run(*frame, task_, options, frame->generators, links_);
    run.receive();
    HeldVariables held(*plan_, cells_, orders_);
    held.take(cell_order_, frame->values, options.cancellation);
    frame->first_elements = elements.use();
    std::optional<OrderTrial> trial;
    if (!orders_known_.load(std::memory_order_acquire)) trial.emplace(*plan_, frame->values);
    try {
      run.execute(trial ? &*trial : nullptr);
    } catch (...) {
      fail_groups();
      throw;
    }
    // What the program has written to a copy on its device belongs to the caller's.
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].defined()) arguments[i].copy_(frame->values[program.arguments[i].value]);
    }
    outputs = frame->outputs();
    held.complete(frame->values);
    frame->clear();
    if (trial) {
      trial->decide(orders_);
      orders_known_.store(true, std::memory_order_release);
    }
  }
  return_frame(std::move(frame));
  const auto took = std::chrono::steady_clock::now() - begin;
  takes_long_.store(took > (plan_->communicates ? kLongRunWithOthers : kLongRun), std::memory_order_relaxed);
  return outputs;
}

}  // namespace muster

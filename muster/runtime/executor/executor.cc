#include "muster/runtime/executor/executor.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "muster/base/status.h"
#include "muster/runtime/executor/executor_frame.h"
#include "muster/runtime/executor/executor_run.h"
#include "muster/runtime/executor/held_variables.h"
#include "muster/runtime/executor/plan.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/ops/op_failure.h"
#include "muster/runtime/ops/operands.h"
#include "muster/runtime/tuning/order_trial.h"
#include "muster/runtime/worker/missing_program.h"
#include "muster/runtime/worker/restart.h"

namespace muster {

Executor::Executor(Program program, const LocalDevices& devices, const OpCatalog& catalog, VariableStore& variables,
                   Autotuner* tuner, ExecutorLinks links)
    : links_(std::move(links)),
      tuner_(tuner),
      plan_(std::make_unique<Plan>(std::move(program), devices, catalog, tuner)),
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
namespace {

// Whoever scheduled a run that has failed so runs it again, and it may begin with the same elements.
bool is_loss_of_others(const Status& status) {
  return status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kDeadlineExceeded ||
         is_restart(status) || is_missing_program(status);
}

}  // namespace

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
    frame->first_elements = elements.use(/*may_fail=*/plan_->needs_others);
    std::optional<OrderTrial> trial;
    if (!orders_known_.load(std::memory_order_acquire)) trial.emplace(*plan_, frame->values, *tuner_);
    try {
      run.execute(trial ? &*trial : nullptr);
    } catch (...) {
      fail_groups();
      if (is_loss_of_others(status_of_op_failure())) elements.give_back();
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

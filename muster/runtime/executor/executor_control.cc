// Conditions and loops of a run.
#include <ATen/ops/add.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/select.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "muster/runtime/executor/executor_run.h"
#include "muster/runtime/tuning/kernel_choice.h"

namespace muster {

std::vector<at::Tensor> Executor::Run::tensors_at(const Step& step, int32_t position) const {
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

void Executor::Run::store_all(const std::vector<ValueId>& values, std::vector<at::Tensor> tensors) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] >= 0) frame_.values[values[i]] = std::move(tensors[i]);
  }
}

template <class... Lists>
std::vector<at::Tensor> Executor::Run::run_body(const Step& step, int32_t index, const Lists&... lists) {
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

at::Tensor Executor::Run::trip_index(int64_t trip, at::Device device) {
  return at::scalar_tensor(trip, at::TensorOptions(at::kLong).device(device));
}

at::Tensor Executor::Run::trip_argument(int32_t body, int64_t trip) const {
  const Plan& plan = *plan_.bodies[body];
  return plan.argument_used[0] ? trip_index(trip, plan.argument_devices[0]) : at::Tensor();
}

void Executor::Run::choose(const Step& step, const Step::Cond& cond) {
  const bool yes = needed(step, step.slots[0].value, 0).item().toBool();
  store_all(step.results[0], run_body(step, cond.bodies[yes ? 0 : 1], tensors_at(step, 1)));
}

bool Executor::Run::goes_on(const Step& step, const at::Tensor& more) const {
  if (!more.defined()) fail_undefined(step, 0);
  return more.item().toBool();
}

void Executor::Run::loop(const Step& step, const Step::Loop& loop) {
  std::vector<at::Tensor> state = tensors_at(step, 1);
  const std::vector<at::Tensor> inputs = tensors_at(step, 2);
  std::vector<std::vector<at::Tensor>> saved(loop.save ? state.size() : 0);
  int64_t trip = 0;
  for (;; ++trip) {
    if (options_.cancellation != nullptr) options_.cancellation->throw_if_cancelled();
    if (loop.trips ? trip >= *loop.trips : !goes_on(step, run_body(step, loop.bodies[1], state, inputs)[0])) break;
    for (size_t i = 0; i < saved.size(); ++i) saved[i].push_back(state[i]);
    state = run_body(step, loop.bodies[0], std::vector{trip_argument(loop.bodies[0], trip)}, state, inputs);
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

void Executor::Run::loop_gradient(const Step& step, const Step::LoopGradient& gradient) {
  const int32_t body = gradient.bodies[0];
  const std::vector<at::Tensor> saved = tensors_at(step, 1);
  std::vector<at::Tensor> gradients = tensors_at(step, 2);
  const std::vector<at::Tensor> inputs = tensors_at(step, 3);
  std::vector<at::Tensor> sums(inputs.size());
  for (int64_t trip = needed(step, step.slots[0].value, 0).item().toLong() - 1; trip >= 0; --trip) {
    if (options_.cancellation != nullptr) options_.cancellation->throw_if_cancelled();
    std::vector<at::Tensor> state;
    for (const at::Tensor& values : saved) state.push_back(values.select(0, trip));
    std::vector<at::Tensor> outputs =
        run_body(step, body, std::vector{trip_argument(body, trip)}, state, gradients, inputs);
    for (size_t i = 0; i < sums.size(); ++i) {
      const at::Tensor& term = outputs[gradients.size() + i];
      if (!term.defined()) continue;
      sums[i] = sums[i].defined() ? sums[i].add(term) : term;
    }
    std::copy_n(outputs.begin(), gradients.size(), gradients.begin());
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    if (!sums[i].defined() && step.results[1][i] >= 0) sums[i] = at::zeros_like(inputs[i]);
  }
  store_all(step.results[0], std::move(gradients));
  store_all(step.results[1], std::move(sums));
}

}  // namespace muster

#pragma once

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "muster/runtime/executor/executor.h"
#include "muster/runtime/executor/lane_team.h"
#include "muster/runtime/executor/plan.h"
#include "muster/runtime/gpu/captured_stretch.h"
#include "muster/runtime/tuning/kernel_choice.h"
#include "muster/runtime/worker/element_source.h"

namespace muster {

inline void reseed(at::Generator& generator, uint64_t seed) {
  std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

// The values of one run of one plan; kept between runs, since its constants, stacks, random streams and threads are
// reused.
struct Executor::Frame {
  explicit Frame(const Plan& p)
      : plan(p), values(p.program.num_values), stacks(p.lanes.size()), bodies(p.bodies.size()) {
    put_constants();
    if (plan.random) {
      for (at::Device device : plan.lane_torch_devices) {
        generators.push_back(at::globalContext().defaultGenerator(device).clone());
      }
    }
    if (plan.lanes.size() > 1) {
      team.emplace(plan.lane_torch_devices);
    }
    factors.resize(plan.num_factors);
    events = std::vector<std::atomic<uint64_t>>(plan.num_events);
    flags.resize(plan.lanes.size());
    in_stretch.resize(plan.lanes.size());
    captured.resize(plan.lanes.size());
    for (size_t lane = 0; lane < plan.lanes.size(); ++lane) {
      for (const Stretch& stretch : plan.stretches[lane]) {
        captured[lane].push_back(
            std::make_unique<CapturedStretch>(stretch, plan.program.name, plan.lane_torch_devices[lane]));
      }
    }
  }

  // What is left of a run would keep memory alive, and writers from working in place.
  void clear() {
    std::fill(values.begin(), values.end(), at::Tensor());
    first_elements.clear();
    put_constants();
  }

  // Of the program, after its run.
  std::vector<at::Tensor> outputs() const {
    std::vector<at::Tensor> tensors;
    const std::vector<ValueId>& numbers = plan.program.outputs;
    for (size_t i = 0; i < numbers.size(); ++i) {
      tensors.push_back(numbers[i] == kNoValue ? at::Tensor() : values[numbers[i]]);
      if (plan.output_unordered[i]) tensors.back() = in_usual_order(tensors.back());
      if (plan.output_constant[i]) tensors.back() = tensors.back().clone();
    }
    return tensors;
  }

  // Those that the program writes to are copied for every run.
  void put_constants() {
    for (size_t i = 0; i < plan.constants.size(); ++i) {
      if (!plan.constant_written[i]) values[plan.program.constants[i].value] = plan.constants[i];
    }
  }

  struct Factors {
    at::Tensor first, second;  // undefined: the product was made
  };

  const Plan& plan;
  std::vector<at::Tensor> values;
  std::vector<Factors> factors{};                // by Step::Op::factors
  TakenElements* taken = nullptr;                // what this run takes
  std::vector<Element> first_elements{};         // of Plan::first_elements, until their steps come
  std::vector<std::vector<c10::IValue>> stacks;  // one per lane
  std::vector<at::Generator> generators{};       // one per lane
  std::vector<std::unique_ptr<Frame>> bodies;    // made when first used
  std::vector<std::vector<std::unique_ptr<CapturedStretch>>> captured{};  // as Plan::stretches
  std::vector<DeviceFlags*> flags{};  // one per lane: of the graph that its steps are being recorded for
  std::vector<char> in_stretch{};     // one per lane: whether its steps are part of one
  bool part_of_stretch = false;       // of a body: whether the step that it belongs to is
  std::optional<LaneTeam> team{};
  std::vector<std::atomic<uint64_t>> events{};  // equal to `epoch`: has happened in this run
  uint64_t epoch = 0;
};

}  // namespace muster

// A program made ready to run: everything that does not change from run to run is looked up once.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "muster/graph/aliases.h"
#include "muster/graph/elements.h"
#include "muster/graph/program.h"
#include "muster/runtime/devices.h"
#include "muster/runtime/executor/step.h"
#include "muster/runtime/executor/variable_uses.h"
#include "muster/runtime/ops/op_catalog.h"

namespace muster {

class Autotuner;

// Steps of a lane on a GPU that are recorded together and then told to it in one go (gpu/captured_stretch.h).
struct Stretch {
  size_t begin = 0, end = 0;       // steps
  std::vector<ValueId> fixed{};    // what it works on in place: must be in the same memory every time
  std::vector<ValueId> inputs{};   // what else comes from outside; no constants
  std::vector<ValueId> dropped{};  // of both, those whose last use is in it
  std::vector<ValueId> results{};  // what it makes that is used outside
};

// REQUIRES of the program: checked (checker.h) and placed (placer.h) on devices of `devices`.
struct Plan {
  // An element that a run takes before it begins: from the sequence whose number is an argument, or this one.
  struct First {
    std::optional<size_t> argument{};
    at::Tensor number{};
    int32_t lane = 0;
  };

  // Without `tuner` every op is called as it was recorded.
  // `parts` are those of the outermost program, if this is a body of it, and `argument_classes` say which arguments its
  // callers let share memory (aliases.h).
  Plan(Program program, const LocalDevices& devices, const OpCatalog& catalog, Autotuner* tuner,
       const std::vector<Program>* parts = nullptr, const std::vector<int>& argument_classes = {});

  Program program;
  std::vector<std::vector<Step>> lanes{};         // steps in program order, by device
  std::vector<std::vector<Stretch>> stretches{};  // by lane, in the order of their steps; none that overlap
  std::vector<std::string> lane_devices{};        // full names
  std::vector<at::Device> lane_torch_devices{};
  std::vector<at::Device> variable_devices{};
  std::vector<VariableUses> variable_uses{};
  std::vector<bool> variable_held{};  // large, and read by the run alone: writers wait for its end instead of copying
  std::vector<int>
      weight_products{};  // by variable: as products_in_any_order (tuning/weight_order.h); 0: always in rows
  std::vector<bool> constant_written{};
  std::vector<at::Device> argument_devices{};
  std::vector<bool> argument_written{};
  std::vector<bool> argument_used{};
  std::vector<at::Tensor> constants{};
  std::vector<std::unique_ptr<Plan>> bodies{};
  std::vector<First> first_elements{};
  ElementSpecs element_specs{};          // of first_elements
  std::vector<bool> output_unordered{};  // as Step::unordered, for outputs
  std::vector<bool> output_constant{};   // the receiver may write to it, so it gets a copy
  std::vector<const Step*> receives{};   // of all lanes, not counting bodies
  std::set<int64_t> groups{};            // that it computes with, bodies included
  int32_t num_events = 0;
  int32_t num_factors = 0;    // pairs that wait for an update (Step::Op::factors)
  bool random = false;        // has a random op, bodies included
  bool communicates = false;  // has something to do with other tasks, not counting bodies
  bool needs_others = false;  // the same, bodies included
};

}  // namespace muster

// A program made ready to run: everything that does not change from run to run is looked up once.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "muster/graph/aliases.h"
#include "muster/graph/elements.h"
#include "muster/graph/program.h"
#include "muster/runtime/collectives.h"
#include "muster/runtime/devices.h"
#include "muster/runtime/op_catalog.h"
#include "muster/runtime/op_guards.h"
#include "muster/runtime/tuning/kernel_choice.h"
#include "muster/runtime/variable_uses.h"

namespace muster {

// Stand in lists of values for an element that is None, and for a tensor that is not defined.
inline constexpr ValueId kNoneElement = -1;
inline constexpr ValueId kUndefinedElement = -2;

// One instruction: the op, the stack with all constant arguments in place, and where the tensors go.
struct Step {
  enum class Kind { kOp, kCopy, kElement, kNext, kCond, kLoop, kLoopGradient, kRemote, kSend, kReceive, kCollective };
  struct Slot {
    int32_t position;
    ValueId value;
    bool needed = false;  // the op is not to be called without it
  };
  struct ListSlot {
    int32_t position;
    bool optional;  // a Tensor?[]
    std::vector<ValueId> values;
  };

  Kind kind = Kind::kOp;
  std::optional<c10::OperatorHandle> op{};  // kOp only
  std::vector<c10::IValue> stack{};
  std::vector<Slot> slots{};
  std::vector<ListSlot> lists{};
  int32_t generator = -1;  // position on the stack
  std::vector<std::vector<ValueId>> results{};
  std::vector<ValueId> kills{};  // values whose last use this is
  at::Device device{at::kCPU};
  int32_t instruction = 0;  // index in the program, for messages
  int32_t lane = 0;
  std::vector<int32_t> awaits{};           // events that must have happened
  int32_t signals = -1;                    // event that this step makes happen
  std::shared_ptr<const OpGuard> guard{};  // kOp: null if its kernel looks at its operands itself
  std::shared_ptr<KernelChoice> choice{};  // kOp: null if there is only one way to call it
  std::vector<int32_t> unordered{};        // positions whose tensors a chosen kernel may have left in another order
  bool one_order = false;                  // kOp: operands in different orders of memory are brought to one
  std::optional<c10::OperatorHandle>
      in_place{};      // kOp: the form that overwrites its first operand, whose last use this is
  bool moves = false;  // kOp: copies a value, whose last use this is, into a variable that nothing else touches
  bool share = false;  // kCopy: nobody writes to either side and both are on one device
  bool save = false;   // kLoop: somebody wants the saved states; kNext: the element is copied, since it is written to
  bool gradients = false;       // kOp: what it returns for its backward pass is wanted
  int32_t second_factor = -1;   // kOp: a product of matrices; the position of the second one
  ValueId target = kNoValue;    // kOp: what the product is added to, and nothing else: it gets the order of that
  int64_t number = 0;           // kRemote: the part; kSend, kReceive: the edge; kCollective: the group
  CollectiveCall collective{};  // kCollective
  std::string task{};           // kReceive: who has it
  ElementSpec specs{};          // kNext: what an element looks like
  int32_t first_element = -1;   // kNext: which of Plan::first_elements; -1: it is taken when its turn comes
  bool waits = false;  // kRemote, kCollective: the next step of the lane needs it, so the lane may as well wait itself
  std::vector<int32_t> bodies{};  // indices into Plan::bodies

  // Whether another task makes what it returns, some time after it has begun; then that makes its event happen.
  bool is_answered_later() const {
    return kind == Kind::kRemote || kind == Kind::kReceive || kind == Kind::kCollective;
  }
};

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
  bool random = false;        // has a random op, bodies included
  bool communicates = false;  // has a kRemote, kSend, kReceive or kCollective, not counting bodies
};

}  // namespace muster

// One instruction of a plan: everything that does not change from run to run is looked up once.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "muster/graph/elements.h"
#include "muster/graph/program.h"
#include "muster/runtime/executor/one_pass.h"
#include "muster/runtime/ops/op_guards.h"
#include "muster/runtime/ops/small_ops.h"
#include "muster/runtime/tuning/kernel_choice.h"
#include "muster/runtime/worker/collectives.h"

namespace muster {

// Stand in lists of values for an element that is None, and for a tensor that is not defined.
inline constexpr ValueId kNoneElement = -1;
inline constexpr ValueId kUndefinedElement = -2;

// What to do, which tensors it is given, where its results go, and what it waits for.
struct Step {
  struct Slot {
    int32_t position;
    ValueId value;
    bool needed = false;  // the op is not to be called without it
    bool last = false;    // of an op: nobody uses the value afterwards, nor does the op twice, so it may have it
  };
  struct ListSlot {
    int32_t position;
    bool optional;  // a Tensor?[]
    std::vector<ValueId> values;
  };

  // Of an update: what is added to what, and where its factors are if it is a product that nobody has made yet.
  struct Term {
    int32_t index;  // in the lists of the update, if it has lists
    ValueId target, value;
    int32_t factors;
  };

  // An op of libtorch.
  struct Op {
    c10::OperatorHandle op;
    std::vector<c10::IValue> stack{};               // with all constant arguments in place
    int32_t generator = -1;                         // position on the stack
    std::shared_ptr<const OpGuard> guard{};         // null if its kernel looks at its operands itself
    std::shared_ptr<KernelChoice> choice{};         // null if there is only one way to call it
    bool one_order = false;                         // operands in different orders of memory are brought to one
    std::optional<c10::OperatorHandle> in_place{};  // the form that overwrites its first operand: this is its last use
    SmallOp small = nullptr;                        // does it with few numbers
    OnePass one_pass = nullptr;                     // does it with less traffic to memory
    bool moves = false;          // copies a value, whose last use this is, into a variable that nothing else touches
    bool gradients = false;      // what it returns for its backward pass is wanted
    int32_t second_factor = -1;  // a product of matrices: the position of the second one
    ValueId target = kNoValue;   // what the product is added to, and nothing else: it gets the order of that
    int32_t factors = -1;        // Frame::factors: where those of the product may wait for the update that adds it
    std::vector<Term> terms{};   // of an update: those that may wait as factors
    bool subtracts = false;      // of an update with such terms
  };
  struct Copy {
    bool share = false;  // nobody writes to either side and both are on one device
    bool sent = false;   // leaves a part for other tasks: messages have all tensors in rows
  };
  struct Element {};
  struct Next {
    ElementSpec specs{};  // what an element looks like
    int32_t first = -1;   // which of Plan::first_elements; -1: it is taken when its turn comes
    bool copies = false;  // the element is written to, and may be memory of its sequence
  };
  // Bodies are indices into Plan::bodies.
  struct Cond {
    std::vector<int32_t> bodies{};
  };
  struct Loop {
    std::vector<int32_t> bodies{};
    std::optional<int64_t> trips{};  // none: as long as its second body says so
    bool save = false;               // somebody wants the saved states
  };
  struct LoopGradient {
    std::vector<int32_t> bodies{};
  };
  // `waits`: the next step of the lane needs what comes back, so the lane may as well wait itself.
  struct Remote {
    int64_t part = 0;
    bool waits = false;
  };
  struct Send {
    int64_t edge = 0;
  };
  struct Receive {
    int64_t edge = 0;
    std::string task{};  // who has it
    WireForm form{};     // in which it comes
  };
  struct Collective {
    int64_t group = 0;
    CollectiveCall call{};
    bool waits = false;
  };
  using Action = std::variant<Op, Copy, Element, Next, Cond, Loop, LoopGradient, Remote, Send, Receive, Collective>;

  Action action;
  std::vector<Slot> slots{};
  std::vector<ListSlot> lists{};
  std::vector<std::vector<ValueId>> results{};
  std::vector<ValueId> kills{};  // values whose last use this is
  at::Device device{at::kCPU};
  int32_t instruction = 0;  // index in the program, for messages
  int32_t lane = 0;
  std::vector<int32_t> awaits{};     // events that must have happened
  int32_t signals = -1;              // event that this step makes happen
  std::vector<int32_t> unordered{};  // positions whose tensors a chosen kernel may have left in another order

  // Null if it is of another kind.
  template <class Kind>
  Kind* as() {
    return std::get_if<Kind>(&action);
  }
  template <class Kind>
  const Kind* as() const {
    return std::get_if<Kind>(&action);
  }

  std::span<const int32_t> bodies() const {
    return std::visit(
        [](const auto& kind) -> std::span<const int32_t> {
          if constexpr (requires { kind.bodies; }) return kind.bodies;
          return {};
        },
        action);
  }

  // Whether another task makes what it returns, some time after it has begun; then that makes its event happen.
  bool is_answered_later() const { return as<Remote>() || as<Receive>() || as<Collective>(); }
};

// `visit` gets each value that the step is given; of a step that may change, as a reference.
template <class AnyStep, class Visit>
void for_each_operand(AnyStep& step, const Visit& visit) {
  for (auto& slot : step.slots) visit(slot.value);
  for (auto& list : step.lists) {
    for (auto& value : list.values) {
      if (value >= 0) visit(value);
    }
  }
}

}  // namespace muster

// A program: what a traced function does, as plain data. It is made by trace/, changed by the passes, placed by the
// placer, sent over wires and run by runtime/. Nothing here knows libtorch; an op is a name and a schema.
#pragma once

#include <complex>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "muster/graph/dtype.h"
#include "muster/graph/wire_form.h"

namespace muster {

// Names one tensor of a program. Values are numbered from 0; kNoValue stands for a result that nobody can refer to.
using ValueId = int32_t;
inline constexpr ValueId kNoValue = -1;

struct TensorSpec {
  DType dtype = DType::kFloat;
  std::vector<int64_t> sizes{};

  int64_t elements() const;
  int64_t bytes() const { return elements() * bytes_per_element(dtype); }
  std::string to_string() const;  // "float32[64, 784]"
  bool operator==(const TensorSpec&) const = default;
};

struct None {
  bool operator==(const None&) const = default;
};
struct Undefined {  // a tensor that is not there, which libtorch tells apart from None
  bool operator==(const Undefined&) const = default;
};
struct ValueRef {
  ValueId id = kNoValue;
  bool operator==(const ValueRef&) const = default;
};
struct HereDevice {  // the device on which the instruction runs
  bool operator==(const HereDevice&) const = default;
};
struct HereGenerator {  // the random stream of the step
  bool operator==(const HereGenerator&) const = default;
};
struct Argument;
using ArgumentList = std::vector<Argument>;

struct Argument {
  std::variant<None, Undefined, ValueRef, int64_t, double, bool, std::complex<double>, std::string, HereDevice,
               HereGenerator, ArgumentList>
      value{};

  bool operator==(const Argument&) const;
};

// Calls `visit(ValueId&)` for every value that the argument refers to, lists included.
template <class Arg, class Visit>
void for_each_value(Arg& argument, const Visit& visit) {
  if (auto* ref = std::get_if<ValueRef>(&argument.value)) {
    visit(ref->id);
  } else if (auto* list = std::get_if<ArgumentList>(&argument.value)) {
    for (auto& element : *list) for_each_value(element, visit);
  }
}

struct Op {
  std::string name;    // "aten::add.Tensor"
  std::string schema;  // as libtorch prints it; checked against the libtorch that runs the program
  bool operator==(const Op&) const = default;
};

struct Instruction {
  int32_t op = 0;      // index into Program::ops
  int32_t device = 0;  // index into Program::devices
  std::vector<Argument> arguments{};
  std::vector<std::vector<ValueId>> results{};  // per schema result: one value, or the elements of a Tensor[]
  std::vector<int32_t> bodies{};                // indices into Program::bodies; control flow only
};

struct Constant {
  ValueId value = kNoValue;
  TensorSpec spec{};
  std::shared_ptr<const std::string> bytes{};  // contiguous, little-endian; shared because programs are copied
  bool is_number = false;                      // stands for a C++ number: takes part in type promotion as one
};

struct VariableRef {
  ValueId value = kNoValue;
  std::string name{};
  TensorSpec spec{};
  int32_t device = 0;  // where the variable lives; index into Program::devices
  WireForm wire{};     // of its value and of what is written to it, between machines
};

struct ProgramArgument {
  ValueId value = kNoValue;
  TensorSpec spec{};
  int32_t device = 0;
  bool any = false;  // of a part: whatever the task that sends it has made; `spec` says nothing
};

// Invariants (see checker.h): every value has one definition, by an argument, a variable, a constant or an instruction,
// and it stands before its uses; devices[0] is "", the device of whatever has no wish. A body sees nothing of the
// program around it: what it needs arrives through its arguments, and it writes to them in place.
struct Program {
  std::string name{};
  uint64_t seed = 0;  // of its random ops, mixed with step and replica
  int32_t num_values = 0;
  std::vector<std::string> devices{""};
  std::vector<Op> ops{};
  std::vector<ProgramArgument> arguments{};
  std::vector<VariableRef> variables{};
  std::vector<Constant> constants{};
  std::vector<Instruction> instructions{};
  std::vector<ValueId> outputs{};
  std::vector<Program> bodies{};
  // After the split over tasks (split.h), in the outermost program only: what other tasks do for it. `task` says which.
  std::string task{};
  std::vector<Program> parts{};

  int32_t intern_device(const std::string& device);
  int32_t intern_op(const std::string& name, const std::string& schema);
  ValueId new_value() { return num_values++; }
  const Op& op_of(const Instruction& instruction) const { return ops[instruction.op]; }
};

// The ops that libtorch does not have. Bodies write to the inputs in place, as any in-place op would.
//   cond           bodies then(inputs…), else(inputs…); both return the outputs.
//   loop           bodies body(index, state…, inputs…) -> state…
//                  and, when trips is None, more(state…, inputs…) -> bool.
//                  `saved` is, per state tensor, its value before each trip, stacked: what loop_gradient needs. Whoever
//                  needs no gradient leaves those results kNoValue, and nothing is saved.
//   loop_gradient  body(index, state…, gradients…, inputs…) -> gradients of state…, then of inputs…,
//                  run from the last trip to the first; the gradients of the inputs are summed over the trips.
//   element        values[index] along the first dimension, without a copy; libtorch would have to know the index.
//   next           takes the next element of a sequence of examples that the worker has opened; `specs` is what it must
//                  look like, per tensor: type, number of sizes, sizes.
//   copy           brings a value to the device of the instruction.
//   remote         has another task run a part of the program. Begins at once; whoever uses a result waits for it.
//   send, receive  between parts: `send` leaves a value with its own task under a number, `receive` fetches it there,
//                  in the WireForm of that number.
//   collective     makes the values of all tasks of a group one, together with them (runtime/worker/collectives.h).
//   Begins at
//                  once, one after the other; whoever uses a result waits for it.
struct ControlOp {
  const char* name;
  const char* schema;
};
inline constexpr ControlOp kCond{"muster::cond", "muster::cond(Tensor predicate, Tensor[] inputs) -> Tensor[]"};
inline constexpr ControlOp kLoop{
    "muster::loop",
    "muster::loop(int? trips, Tensor[] state, Tensor[] inputs) -> (Tensor[] state, Tensor[] saved, Tensor trips)"};
inline constexpr ControlOp kLoopGradient{
    "muster::loop_gradient",
    "muster::loop_gradient(Tensor trips, Tensor[] saved, Tensor[] gradients, Tensor[] inputs) -> "
    "(Tensor[] state_gradients, Tensor[] input_gradients)"};
inline constexpr ControlOp kElement{"muster::element", "muster::element(Tensor(a) values, Tensor index) -> Tensor(a)"};
inline constexpr ControlOp kNext{"muster::next", "muster::next(Tensor iterator, int[] specs) -> Tensor[]"};
inline constexpr ControlOp kCopy{"muster::copy", "muster::copy(Tensor value) -> Tensor"};
inline constexpr ControlOp kRemote{"muster::remote", "muster::remote(int part, Tensor[] inputs) -> Tensor[]"};
inline constexpr ControlOp kSend{"muster::send", "muster::send(Tensor value, int edge) -> ()"};
inline constexpr ControlOp kReceive{"muster::receive", "muster::receive(int edge, str task, int form) -> Tensor"};
inline constexpr ControlOp kCollective{
    "muster::collective",
    "muster::collective(Tensor[] values, int group, int kind, int reduction, int root, str purpose) -> Tensor[]"};

}  // namespace muster

// Records what a C++ function does with tensors as a program. The only code that touches the dispatcher's tracing.
//
// Every op of libtorch passes its dispatcher. While a Tracer is active, a key below Autograd is switched on for the
// thread; its fallback sees every op after autograd has turned it into plain ops (so the backward pass is recorded like
// the forward pass), writes it down and runs it for real on the example input.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/graph/op_schema.h"
#include "muster/graph/program.h"
#include "muster/trace/tracer/trace.h"
#include "muster/trace/tracer/value_table.h"

namespace muster {

// A body of control flow: what it uses of the outer trace became arguments that follow its own.
struct TracedBody {
  Program program{};
  std::vector<at::Tensor> captures{};  // tensors of the outer trace, in the order of those arguments
  std::vector<at::Tensor> outputs{};
  std::vector<at::Tensor> differentiable{};  // tensors of the outer trace that the body used and that need gradients
};

// Rows of a variable that a trace has looked up.
struct RowLookup {
  std::shared_ptr<Variable::State> table{};
  at::Tensor ids{};     // all of them, in a row
  at::Tensor places{};  // of their rows among those of the parts
  std::vector<at::Tensor> part_ids{};
  at::Tensor leaf{};
};

class Tracer {
 public:
  // The innermost active tracer of this thread, or null.
  static Tracer* current();

  // The tensor that stands for a variable in this trace.
  at::Tensor stand_in(const std::shared_ptr<Variable::State>& variable);
  // The same if the trace has come to the variable before, and an undefined tensor if it has not.
  at::Tensor known_stand_in(const Variable::State& variable) const;
  // The variable that this tensor stands for in this trace; null if it does not.
  std::shared_ptr<Variable::State> variable_of(const at::Tensor& stand_in);
  void device_changed(const std::string& device);

  std::vector<RowLookup> lookups{};  // so far, in the program or body that this traces

  // All replicas of a step have the same elements in this tensor, for it was made of what each of them gave.
  void note_alike(const at::Tensor& tensor);
  bool known_alike(const at::Tensor& tensor) { return alike(tensor); }
  // Of the bodies that are traced from now on: whether all replicas run them alike. Returns what held before.
  bool bodies_run_alike(bool alike) { return std::exchange(bodies_alike_, alike); }
  // From now on the modules of mirrored variables show the memory of the copy of this replica.
  void show_copies(int replica);

  // ---- For control flow. Own ops are recorded with tensors that this trace knows.
  TracedBody trace_body(const std::string& name, const TensorFunction& function,
                        const std::vector<at::Tensor>& arguments);
  ValueId value_of(const at::Tensor& tensor);
  int32_t add_body(Program body);
  // What the next element that the program takes looks like; null: as its sequence says.
  const ElementSpec* next_element();
  // Adds the instruction and makes `results` (fresh tensors, undefined where nobody wants one) its results.
  void add_instruction(const ControlOp& op, std::vector<Argument> arguments,
                       const std::vector<std::vector<at::Tensor>>& results, std::vector<int32_t> bodies);

 private:
  friend TracedProgram trace(const TensorFunction&, const std::vector<at::Tensor>&, const TraceOptions&);
  friend class DispatcherHook;
  friend class ReadCheck;
  class Active;
  // What data-dependent reads are answered with: all of them, or only the one with this number.
  struct Probe {
    enum Way { kNone, kPlusOne, kMinusOne, kFarUp, kFarDown } way = kNone;
    std::optional<size_t> only{};
  };
  // What is asked of an op again and again.
  struct KnownOp {
    std::shared_ptr<const OpSchema> schema;
    std::string name;
    bool random;
  };

  Tracer(const TraceOptions& options, Tracer* outer, Probe probe);
  friend bool is_probing();

  // Calls `function` on copies of `examples` and returns what it did; once.
  Program trace_function(const TensorFunction& function, const std::vector<at::Tensor>& examples);
  void record(const c10::OperatorHandle& op, c10::DispatchKeySet below, std::vector<c10::IValue>& stack);
  const KnownOp& known(const c10::OperatorHandle& op);
  void answer_read(const std::string& op, c10::IValue& answer);
  void refuse_new_shape(const std::string& op, const c10::IValue& changed);
  void check_replayable(const KnownOp& op, const c10::OperatorHandle& handle, at::ArrayRef<c10::IValue> inputs) const;
  bool constant(const at::Tensor& tensor) const;
  bool constant(at::ArrayRef<c10::IValue> inputs) const;
  std::string op_device() const;

  Argument argument(const c10::IValue& value, bool reads);
  ValueId lookup(const at::Tensor& tensor, bool reads);
  void note_differentiable(const at::Tensor& tensor);
  void note_offset(const at::Tensor& tensor);
  bool known_outside(const at::Tensor& tensor) const;
  ValueId view_of(const ValueTable::Sharing& other, const at::Tensor& tensor);
  ValueId capture(const at::Tensor& tensor);
  ValueId add_constant(const at::Tensor& tensor);
  ValueId add_variable(const std::shared_ptr<Variable::State>& variable, const at::Tensor& stand_in);
  at::Tensor memory_of_copy(const Variable::State& whole, const std::shared_ptr<Variable::State>& copy);
  std::shared_ptr<Variable::State> copy_with_memory(const at::Tensor& tensor);  // null if it is not that of one
  void before_write(const std::string& op, const at::Tensor& tensor);
  // ---- Copies of a variable stay alike if all of them are written to, with what all replicas have alike.
  bool alike(const at::Tensor& tensor);
  bool runs_alike() const;                           // this body, and those around it
  bool is_own_of_process(const at::Tensor& tensor);  // in a step of several: a variable that the others do not know
  std::shared_ptr<Variable::State> variable_with_memory(const at::Tensor& tensor);  // a copy, if there are several
  void note_written(const std::string& op, const at::Tensor& tensor, bool alike);
  void check_copies_are_written_alike() const;
  Program finish(const std::vector<at::Tensor>& outputs);
  void restore_variables();
  std::string kept_outside();
  Tracer& root() { return outer_ == nullptr ? *this : outer_->root(); }
  size_t instruction_count() const;

  const TraceOptions options_;
  Tracer* const outer_;
  const Probe probe_;
  Program program_;
  ValueTable values_;
  ValueTable finished_bodies_;  // tensors that belong to a body that has ended: nobody may use them any more
  absl::flat_hash_set<const void*> unwritten_;  // storages made by empty() that no op has written to
  absl::flat_hash_set<const void*> outside_;    // storages of constants that existed before the trace
  std::map<uint64_t, std::string> device_at_sequence_number_;
  std::vector<at::Tensor> captures_;  // of a body
  std::vector<at::Tensor> differentiable_;
  uint64_t first_sequence_number_ = 0;  // of autograd nodes made since this trace began
  ValueId own_arguments_ = 0;           // of a body: its first values, the others are captures
  std::vector<std::string> reads_;      // data-dependent reads, "aten::_local_scalar_dense at main"
  std::vector<const void*> argument_storages_, argument_handles_;  // of the outermost trace
  std::vector<size_t> compact_arguments_;
  std::vector<CapturedTensor> captured_;
  std::vector<uintptr_t> first_write_;  // the stack of the first op that wrote to a variable: an optimizer of libtorch?
  absl::flat_hash_map<c10::OperatorName, KnownOp> known_ops_;
  absl::flat_hash_map<std::string, ValueId> numbers_;
  std::vector<std::shared_ptr<Variable::State>> variables_;
  absl::flat_hash_map<Variable::State*, at::Tensor> stand_ins_;
  absl::flat_hash_map<const void*, std::shared_ptr<Variable::State>> copy_memories_;      // by storage
  absl::flat_hash_map<const void*, std::shared_ptr<Variable::State>> stand_in_memories_;  // likewise, of all variables
  absl::flat_hash_map<const Variable::State*, std::vector<std::string>> copy_writes_;     // ops, by copy
  absl::flat_hash_map<Variable::State*, at::Tensor> before_;  // values of adopted tensors that were written
  size_t elements_ = 0;                                       // of the outermost trace, taken so far
  size_t limit_ = 0;                                          // instructions, while probing
  bool bodies_alike_ = true;                                  // those of bodies_run_alike()
  // Of the outermost trace: whether large ops may go without their values, one did, and one was needed after all.
  bool may_leave_values_out_ = false, left_values_out_ = false, needs_values_ = false;
};

}  // namespace muster

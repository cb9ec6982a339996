#include "muster/trace/tracer/tracer.h"

#include <ATen/SequenceNumber.h>
#include <ATen/ops/as_strided.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <cmath>

#include "muster/base/status.h"
#include "muster/graph/op_traits.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/ops/op_catalog.h"
#include "muster/trace/caller.h"
#include "muster/trace/device_scope.h"
#include "muster/trace/thread_state.h"
#include "muster/trace/tracer/dispatcher_hook.h"
#include "muster/trace/tracer/unneeded_values.h"

namespace muster {
namespace {

constexpr int64_t kLargestConstant = int64_t{256} << 20;
constexpr size_t kReadsToName = 16;  // looking for symbols takes milliseconds
constexpr std::string_view kPack = "aten::_pack_padded_sequence";

template <class Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) for_each_tensor(element, visit);
  }
}

bool shows_whole_storage(const at::Tensor& tensor) {
  return !tensor.has_storage() ||
         (tensor.storage_offset() == 0 && tensor.is_contiguous() && tensor.storage().nbytes() == tensor.nbytes());
}

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.is_same(b) ||
         (a.has_storage() && b.has_storage() && a.is_alias_of(b) && a.scalar_type() == b.scalar_type() &&
          a.sizes() == b.sizes() && a.strides() == b.strides() && a.storage_offset() == b.storage_offset());
}

// All elements of the tensor's storage, in a row.
at::Tensor whole_storage(const at::Tensor& tensor) {
  Untraced untraced;
  PlainTensors plain;
  const int64_t elements = static_cast<int64_t>(tensor.storage().nbytes() / tensor.itemsize());
  return at::as_strided(tensor.detach(), {elements}, {1}, 0);
}

Argument integers(at::IntArrayRef values) {
  ArgumentList list;
  for (int64_t value : values) list.push_back({value});
  return {std::move(list)};
}

// empty() and its kin return memory that is written later: by ops, or by C++ through a pointer.
bool makes_unwritten_memory(const std::string& op) {
  return op.starts_with("aten::empty") || op.starts_with("aten::new_empty");
}

// Looks at the shape of its argument only.
bool reads_no_elements(const std::string& op) {
  return op.find("_like") != std::string::npos || op.starts_with("aten::new_");
}

}  // namespace

// Makes a tracer the current one of this thread and switches the dispatcher's hook on.
class Tracer::Active {
 public:
  explicit Active(Tracer& tracer) : outer_(std::exchange(ThreadState::here().tracer, &tracer)) {}
  ~Active() { ThreadState::here().tracer = outer_; }
  Active(const Active&) = delete;
  Active& operator=(const Active&) = delete;

 private:
  Tracer* const outer_;
  Traced traced_;
};

Tracer* Tracer::current() { return ThreadState::here().tracer; }

bool tracing() { return Tracer::current() != nullptr; }

Tracer::Tracer(const TraceOptions& options, Tracer* outer, Probe probe)
    : options_(options), outer_(outer), probe_(probe) {
  program_.name = options.name;
  program_.seed = options.seed;
  if (outer != nullptr) limit_ = outer->limit_;
  device_at_sequence_number_ = outer ? outer->device_at_sequence_number_ : decltype(device_at_sequence_number_){};
  first_sequence_number_ = at::sequence_number::peek();
  device_at_sequence_number_[outer ? at::sequence_number::peek() : 0] = DeviceScope::current();
}

void Tracer::device_changed(const std::string& device) {
  device_at_sequence_number_[at::sequence_number::peek()] = device;
}

// A backward op belongs to the autograd node that a forward op has made; nodes are numbered in the order of their
// making.
std::string Tracer::op_device() const {
  auto node = torch::autograd::get_current_node();
  if (!node) return DeviceScope::current();
  if (node->sequence_nr() == UINT64_MAX) return "";  // the accumulation of a gradient, which follows its operands
  auto after = device_at_sequence_number_.upper_bound(node->sequence_nr());
  return after == device_at_sequence_number_.begin() ? DeviceScope::current() : std::prev(after)->second;
}

// ---- Tensors to values
ValueId Tracer::value_of(const at::Tensor& tensor) { return lookup(tensor, /*reads=*/true); }

ValueId Tracer::lookup(const at::Tensor& tensor, bool reads) {
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return add_constant(tensor);
  // C++ has filled what empty() returned (torch::tensor({1, 2}) does): its elements are part of the program.
  if (reads && unwritten_.erase(ValueTable::storage_of(tensor)) > 0) {
    const at::Tensor whole = shows_whole_storage(tensor) ? tensor : whole_storage(tensor);
    values_.bind(whole, add_constant(whole));
    if (whole.is_same(tensor)) return *values_.find(tensor);
    return view_of({*values_.find(whole), 0}, tensor);
  }
  if (auto known = values_.find(tensor)) return *known;
  if (known_outside(tensor)) return capture(tensor);
  if (auto sharing = values_.find_sharing(tensor)) return view_of(*sharing, tensor);
  if (values_.knows_storage(tensor)) {
    throw invalid_argument(options_.name, ": a tensor of type ", c10::toString(tensor.scalar_type()),
                           " shares the memory of a tensor of another type in a way that libtorch does not tell; use "
                           "view(dtype) for that");
  }
  return capture(tensor);
}

// A body is differentiable by what it used from outside: variables, and results of ops before it began.
void Tracer::note_differentiable(const at::Tensor& tensor) {
  if (outer_ == nullptr || !tensor.requires_grad()) return;
  // Without gradients libtorch refuses to say how a view was made whose memory was written since.
  if (tensor.is_view() && !c10::GradMode::is_enabled()) return;
  const auto& made_by = tensor.grad_fn();
  if (made_by && made_by->sequence_nr() >= first_sequence_number_) return;
  if (auto value = values_.find(tensor); value && *value < own_arguments_) return;
  // A leaf that the body has made itself: rows that it has looked up. What those are rows of is what it used.
  auto same_storage = [&](const at::Tensor& capture) {
    return ValueTable::storage_of(capture) == ValueTable::storage_of(tensor);
  };
  if (!made_by && values_.knows_storage(tensor) && std::none_of(captures_.begin(), captures_.end(), same_storage))
    return;
  for (const at::Tensor& known : differentiable_) {
    if (known.is_same(tensor)) return;
  }
  differentiable_.push_back(tensor);
}

// An offset into the storage of an argument is right only for arguments that begin where their storage begins.
void Tracer::note_offset(const at::Tensor& tensor) {
  if (outer_ != nullptr) return outer_->note_offset(tensor);
  for (size_t i = 0; i < argument_storages_.size(); ++i) {
    if (argument_storages_[i] == ValueTable::storage_of(tensor)) compact_arguments_.push_back(i);
  }
}

ValueId Tracer::view_of(const ValueTable::Sharing& other, const at::Tensor& tensor) {
  const ValueId value = program_.new_value();
  Instruction view{.op = program_.intern_op("muster_views::strided", *schema_of("muster_views::strided")),
                   .device = program_.intern_device(DeviceScope::current())};
  view.arguments = {{ValueRef{other.value}},
                    integers(tensor.sizes()),
                    integers(tensor.strides()),
                    {tensor.storage_offset() - other.offset}};
  view.results = {{value}};
  program_.instructions.push_back(std::move(view));
  values_.bind(tensor, value);
  return value;
}

// Whether a trace around this one has a value for the tensor as it is. Then a body gets that, not all the memory that
// it shows: an argument of the program may arrive as memory of its own, or in another order.
bool Tracer::known_outside(const at::Tensor& tensor) const {
  return outer_ != nullptr && (outer_->values_.find(tensor) || outer_->known_outside(tensor));
}

ValueId Tracer::capture(const at::Tensor& tensor) {
  if (finished_bodies_.knows_storage(tensor)) {
    throw invalid_argument(options_.name,
                           ": a tensor made inside the body of cond, while_loop or repeat is used outside "
                           "of it; let the body return it");
  }
  if (outer_ != nullptr) {  // a body: the outer trace hands the tensor in
    at::Tensor whole = shows_whole_storage(tensor) || known_outside(tensor) ? tensor : whole_storage(tensor);
    // What the module shows by then may be another copy.
    if (const auto copy = copy_with_memory(tensor)) whole = root().stand_ins_[copy.get()];
    const ValueId value = program_.new_value();
    program_.arguments.push_back({value, spec_of(whole), program_.intern_device("")});
    captures_.push_back(whole);
    values_.bind(whole, value);  // never constant: another trip may have written to it
    if (const auto variable = variable_with_memory(whole)) values_.set_alike(whole, !variable->own_by_replica());
    return values_.find(tensor) ? value : view_of({value, 0}, tensor);  // what shows the same elements is that value
  }
  if (tensor.has_storage()) {
    if (const auto copy = copy_with_memory(tensor)) {
      add_variable(copy, stand_ins_[copy.get()]);
      return lookup(tensor, /*reads=*/true);
    }
    if (auto variable = Variable::State::find(tensor)) {
      // Of several copies it is the first whose memory the module has.
      add_variable(variable->copies.empty() ? variable : variable->copies[0].state(), variable->adopted);
      return lookup(tensor, /*reads=*/true);
    }
  } else {
    throw invalid_argument(options_.name,
                           ": a sparse tensor from outside cannot be part of a program; pass a dense one");
  }
  if (const auto shown = Variable::State::find_shown(tensor)) {
    throw failed_precondition(options_.name, ": the tensor by which a module shows variable \"", shown->options.name,
                              "\" has no values; use the variable, or the module's forward()");
  }
  const at::Tensor whole = shows_whole_storage(tensor) ? tensor : whole_storage(tensor);
  const ValueId value = add_constant(whole);
  values_.bind(whole, value);
  values_.set_constant(whole, true);
  outside_.insert(ValueTable::storage_of(tensor));
  captured_.emplace_back(tensor);
  return whole.is_same(tensor) ? value : view_of({value, 0}, tensor);
}

ValueId Tracer::add_constant(const at::Tensor& tensor) {
  if (static_cast<int64_t>(tensor.nbytes()) > kLargestConstant) {
    throw invalid_argument(
        options_.name, ": a tensor of ", tensor.nbytes(),
        " bytes from outside would become a constant of the program; pass it as an argument or make it "
        "a muster::Variable");
  }
  Untraced untraced;
  Constant constant = constant_of(tensor);
  if (constant.is_number) {
    auto [it, is_new] =
        numbers_.try_emplace(str_cat(static_cast<int>(constant.spec.dtype), ":", *constant.bytes), program_.num_values);
    if (!is_new) return it->second;
  }
  constant.value = program_.new_value();
  program_.constants.push_back(std::move(constant));
  return program_.constants.back().value;
}

void Tracer::before_write(const std::string& op, const at::Tensor& tensor) {
  unwritten_.erase(ValueTable::storage_of(tensor));
  if (outer_ != nullptr && !values_.find_sharing(tensor)) return outer_->before_write(op, tensor);
  if (outer_ != nullptr) {
    for (const at::Tensor& captured : captures_) {
      if (ValueTable::storage_of(captured) == ValueTable::storage_of(tensor)) return outer_->before_write(op, tensor);
    }
    return;
  }
  if (!tensor.has_storage() || copy_with_memory(tensor)) return;
  if (auto variable = Variable::State::find(tensor)) {
    if (before_.empty()) first_write_ = stack_addresses();
    at::Tensor& before = before_[variable.get()];
    if (!before.defined()) {
      Untraced untraced;
      PlainTensors plain;
      before = variable->adopted.clone();
    }
  } else if (outside_.contains(ValueTable::storage_of(tensor)) ||
             (!values_.knows_storage(tensor) && !finished_bodies_.knows_storage(tensor))) {
    throw invalid_argument(options_.name, ": op ", op, " writes to a tensor (", spec_of(tensor).to_string(),
                           ") that is neither an argument nor a variable, so the write would be lost; make it a "
                           "muster::Variable, or muster::adopt the module that it belongs to");
  }
}

void Tracer::restore_variables() {
  Untraced untraced;
  PlainTensors plain;
  for (auto& [variable, value] : before_) variable->adopted.copy_(value);
}

// Whoever gets a tensor out of the trace by another way than its results has it from this call alone.
std::string Tracer::kept_outside() {
  lookups.clear();
  const auto held = values_.still_held([&](const c10::StorageImpl* storage) {
    if (outside_.contains(storage) || Variable::State::is_adopted(storage)) return false;
    return std::none_of(stand_ins_.begin(), stand_ins_.end(),
                        [&](const auto& entry) { return ValueTable::storage_of(entry.second) == storage; });
  });
  if (!held) return "";
  const std::string optimizer = libtorch_function("torch::optim::", first_write_);
  const std::string who = optimizer.empty() ? "" : str_cat(" (the state of ", optimizer, ")");
  return str_cat("a tensor (", held->to_string(), ") that it made is still held by somebody", who);
}

// ---- Instructions
Argument Tracer::argument(const c10::IValue& value, bool reads) {
  if (value.isNone()) return {None{}};
  if (value.isTensor()) {
    if (!value.toTensor().defined()) return {Undefined{}};
    note_differentiable(value.toTensor());
    return {ValueRef{lookup(value.toTensor(), reads)}};
  }
  if (value.isInt()) return {value.toInt()};
  if (value.isDouble()) return {value.toDouble()};
  if (value.isBool()) return {value.toBool()};
  if (value.isString()) return {value.toStringRef()};
  if (value.isDevice()) return {HereDevice{}};
  if (value.isGenerator()) return {HereGenerator{}};
  if (value.isSymInt()) return {value.toSymInt().expect_int()};
  if (value.isComplexDouble()) {
    return {std::complex<double>(value.toComplexDouble().real(), value.toComplexDouble().imag())};
  }
  if (value.isList()) {
    ArgumentList list;
    for (const c10::IValue& element : value.toListRef()) list.push_back(argument(element, reads));
    return {std::move(list)};
  }
  throw invalid_argument("an argument of kind ", value.tagKind(), " cannot be part of a program");
}

// Whether the elements are the same in every run, so that C++ may read them.
bool Tracer::constant(const at::Tensor& tensor) const {
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return true;
  if (values_.knows_storage(tensor)) return values_.constant(tensor);
  if (outer_ != nullptr || !tensor.has_storage()) return false;
  return Variable::State::find(tensor) == nullptr;  // else it will be a constant
}

bool Tracer::constant(at::ArrayRef<c10::IValue> inputs) const {
  bool all = true;
  for (const c10::IValue& input : inputs) {
    for_each_tensor(input, [&](const at::Tensor& tensor) { all = all && constant(tensor); });
  }
  return all;
}

void Tracer::check_replayable(const KnownOp& op, const c10::OperatorHandle& handle,
                              at::ArrayRef<c10::IValue> inputs) const {
  const bool packs = op.name == kPack;  // into as many rows as the lengths add up to, though libtorch does not say so
  const bool untold = packs || op.name == "aten::_unique";
  if (!untold && !handle.hasTag(at::Tag::dynamic_output_shape)) return;
  if (packs ? constant(inputs[1].toTensor()) : constant(inputs)) return;
  if (op.name == "aten::_ctc_loss") return;  // its lengths are plain numbers
  if (op.name == "aten::index.Tensor") {     // by integers it has a fixed shape; only a mask depends on its elements
    bool masked = false;
    for_each_tensor(inputs[1], [&](const at::Tensor& index) {
      masked = masked || index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
    });
    if (!masked) return;
  }
  const std::string caller = caller_outside_libraries();
  throw invalid_argument(options_.name, ": the shape of the result of ", op.name,
                         " depends on the data, so it cannot be part of a program",
                         caller.empty() ? "" : str_cat(" (called in ", caller, ")"),
                         "; use an op with a fixed shape, such as torch::where or a mask that multiplies");
}

// The caller has another handle of the same memory, which keeps its shape.
void Tracer::refuse_new_shape(const std::string& op, const c10::IValue& changed) {
  if (!changed.isTensor() || !changes_shape_in_place(op)) return;
  if (op.find("resize") != std::string::npos || op == "aten::detach_") return;  // the caller sees that, or need not
  const auto& arguments = root().argument_handles_;
  const auto found = std::find(arguments.begin(), arguments.end(), changed.toTensor().unsafeGetTensorImpl());
  if (found == arguments.end()) return;
  throw invalid_argument(options_.name, ": op ", op, " changes the shape of argument ", found - arguments.begin(),
                         " in place, which its caller would not see; use the op without the underscore");
}

// A value that C++ has read from a tensor is fixed in the program. That is harmless only if it does not change the
// program, which trace() finds out by answering with other values.
void Tracer::answer_read(const std::string& op, c10::IValue& answer) {
  Tracer& top = root();
  const size_t number = top.reads_.size();
  const bool converts = op == "aten::_local_scalar_dense";
  const bool named = top.probe_.way == Probe::kNone && number < kReadsToName;
  const std::string caller = named ? caller_outside_libraries() : "";
  top.reads_.push_back(str_cat(converts ? "item(), or a tensor taken for a number or a bool (" : "", op,
                               converts ? ")" : "", caller.empty() ? "" : " in ", caller));
  if (top.probe_.way == Probe::kNone) return;
  if (top.limit_ != 0 && top.reads_.size() > top.limit_) throw cancelled("probe");
  if (top.probe_.only && *top.probe_.only != number) return;
  auto other = [&](auto value) {
    switch (top.probe_.way) {
      case Probe::kPlusOne: return value + 1;
      case Probe::kMinusOne: return value - 1;
      case Probe::kFarUp: return value + 3 * std::abs(value) + 1000;
      case Probe::kFarDown: return value - 3 * std::abs(value) - 1000;
      case Probe::kNone: break;
    }
    return value;
  };
  if (answer.isBool()) {
    answer = !answer.toBool();
  } else if (answer.isInt()) {
    answer = other(answer.toInt());
  } else if (answer.isDouble()) {
    answer = other(answer.toDouble());
  }
}

const Tracer::KnownOp& Tracer::known(const c10::OperatorHandle& op) {
  auto it = known_ops_.find(op.operator_name());
  if (it == known_ops_.end()) {
    KnownOp known{shared_schema(schema_text(op)), qualified_name(op.operator_name()), false};
    known.random = known.schema->random() || op.hasTag(at::Tag::nondeterministic_seeded);
    it = known_ops_.emplace(op.operator_name(), std::move(known)).first;
  }
  return it->second;
}

size_t Tracer::instruction_count() const {
  return program_.instructions.size() + (outer_ ? outer_->instruction_count() : 0);
}

void Tracer::record(const c10::OperatorHandle& handle, c10::DispatchKeySet below, std::vector<c10::IValue>& stack) {
  if (limit_ != 0 && instruction_count() > limit_) throw cancelled("probe");
  const KnownOp& op = known(handle);
  const std::string& name = handle.schema().name();
  const size_t first = stack.size() - op.schema->arguments.size();
  const at::ArrayRef<c10::IValue> inputs(stack.data() + first, op.schema->arguments.size());
  const bool from_constants = !op.random && constant(inputs);
  bool alike = !op.random && runs_alike();
  for (const c10::IValue& input : inputs) {
    for_each_tensor(input, [&](const at::Tensor& tensor) { alike = alike && this->alike(tensor); });
  }
  if (name == "aten::equal" || handle.hasTag(at::Tag::data_dependent_output)) {
    const bool compares = name == "aten::equal";
    const bool same = compares && same_memory(inputs[0].toTensor(), inputs[1].toTensor());
    Untraced untraced;
    handle.redispatchBoxed(below, &stack);
    if (same || from_constants) return;
    if (root().left_values_out_) {
      root().needs_values_ = true;
      throw cancelled(options_.name, ": is traced again with all its values");
    }
    if (compares && !libtorch_function("MultiheadAttentionImpl::forward").empty()) {
      stack.back() = false;  // it computes the same in another way when they are equal
      return;
    }
    return answer_read(name, stack.back());
  }
  check_replayable(op, handle, inputs);

  Instruction instruction{.device = program_.intern_device(op_device())};
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool written = op.schema->arguments[i].written;
    if (written && i == 0) refuse_new_shape(op.name, inputs[i]);
    if (written) for_each_tensor(inputs[i], [&](const at::Tensor& tensor) { before_write(op.name, tensor); });
    const bool reads = !written && op.schema->arguments[i].aliases.empty() && !reads_no_elements(name);
    instruction.arguments.push_back(argument(inputs[i], reads));
    if (written) for_each_tensor(inputs[i], [&](const at::Tensor& tensor) { note_written(op.name, tensor, alike); });
    if (!written || (from_constants && outer_ == nullptr)) continue;
    for_each_tensor(inputs[i], [&](const at::Tensor& tensor) {
      for (Tracer* tracer = this; tracer != nullptr; tracer = tracer->outer_) {
        if (tracer->values_.knows_storage(tensor)) tracer->values_.set_constant(tensor, false);
      }
    });
  }
  if (name.starts_with("aten::as_strided")) note_offset(inputs[0].toTensor());
  if (root().may_leave_values_out_ && !from_constants &&
      leave_values_out(handle, *op.schema, options_.values_below, stack)) {
    root().left_values_out_ = true;
  } else {
    Untraced untraced;
    handle.redispatchBoxed(below, &stack);
  }
  const size_t outputs = op.schema->results.size();
  bool has_tensors = false;
  for (size_t i = 0; i < outputs; ++i) {
    std::vector<ValueId>& values = instruction.results.emplace_back();
    auto add = [&](const at::Tensor& tensor) {
      values.push_back(tensor.defined() ? program_.new_value() : kNoValue);
      if (!tensor.defined()) return;
      const bool is_new = !values_.knows_storage(tensor);
      values_.bind(tensor, values.back());
      // The sizes of packed batches depend on the lengths alone, which are constant.
      if (is_new) values_.set_constant(tensor, from_constants || (op.name == kPack && i == 1));
      if (is_new) values_.set_alike(tensor, alike);
      if (makes_unwritten_memory(name) && tensor.numel() > 0) unwritten_.insert(ValueTable::storage_of(tensor));
    };
    const c10::IValue& result = stack[stack.size() - outputs + i];
    has_tensors = has_tensors || result.isTensor() || result.isTensorList();
    if (result.isTensor()) add(result.toTensor());
    if (!result.isTensorList()) continue;
    for (const at::Tensor& tensor : result.toTensorVector()) add(tensor);
  }
  // What has neither tensors nor effects was a question; what returns nothing at all is a check.
  if (!has_tensors && !op.schema->writes() && outputs > 0) return;
  if (const auto view = view_like(op.name)) {
    const std::string schema = *schema_of(*view);
    instruction.arguments.resize(shared_schema(schema)->arguments.size());
    instruction.op = program_.intern_op(*view, schema);
  } else {
    instruction.op = program_.intern_op(op.name, schema_text(handle));
  }
  program_.instructions.push_back(std::move(instruction));
}

Program Tracer::trace_function(const TensorFunction& function, const std::vector<at::Tensor>& examples) {
  std::vector<at::Tensor> arguments;
  for (const at::Tensor& example : examples) {
    at::Tensor argument;
    {
      PlainTensors plain;
      // A copy with the same strides, from the start of its own storage; element by element would not do, since those
      // of an expanded tensor share memory.
      int64_t elements = example.numel() == 0 ? 0 : 1;
      for (int64_t i = 0; i < example.dim() && elements > 0; ++i) elements += (example.size(i) - 1) * example.stride(i);
      const at::Tensor memory = at::as_strided(example, {elements}, {1}, example.storage_offset());
      argument = at::as_strided(memory.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true), example.sizes(),
                                example.strides(), 0);
    }
    argument.set_requires_grad(example.requires_grad());
    program_.arguments.push_back({program_.new_value(), spec_of(argument), 0});
    values_.bind(argument, program_.arguments.back().value);
    argument_storages_.push_back(ValueTable::storage_of(argument));
    argument_handles_.push_back(argument.unsafeGetTensorImpl());
    arguments.push_back(std::move(argument));
  }
  c10::AutoGradMode gradients(true);
  struct Restore {
    Tracer& tracer;
    ~Restore() { tracer.restore_variables(); }
  } restore{*this};
  Active active(*this);
  const std::vector<at::Tensor> outputs = function(arguments);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].defined()) continue;
    throw invalid_argument(options_.name, ": result ", i,
                           " is an undefined tensor; a gradient by what the loss does not ",
                           "depend on is one: return zeros in its place");
  }
  check_copies_are_written_alike();
  return finish(outputs);
}

Program Tracer::finish(const std::vector<at::Tensor>& outputs) {
  for (const at::Tensor& output : outputs) {
    program_.outputs.push_back(output.defined() ? lookup(output, /*reads=*/true) : kNoValue);
  }
  return std::move(program_);
}

// ---- Control flow
TracedBody Tracer::trace_body(const std::string& name, const TensorFunction& function,
                              const std::vector<at::Tensor>& arguments) {
  TraceOptions options = options_;
  options.name = str_cat(options_.name, "/", name);
  Tracer body(options, this, root().probe_);
  for (const at::Tensor& argument : arguments) {
    body.program_.arguments.push_back({body.program_.new_value(), spec_of(argument), body.program_.intern_device("")});
    body.values_.bind(argument, body.program_.arguments.back().value);
  }
  body.own_arguments_ = body.program_.num_values;
  TracedBody traced;
  {
    Active active(body);
    traced.outputs = function(arguments);
    for (const at::Tensor& output : traced.outputs) {
      if (!output.defined()) throw invalid_argument(options.name, ": returned an undefined tensor");
    }
    traced.program = body.finish(traced.outputs);
  }
  traced.captures = std::move(body.captures_);
  traced.differentiable = std::move(body.differentiable_);
  for (const at::Tensor& tensor : traced.differentiable) note_differentiable(tensor);
  // Whatever the body has made is of no use outside of it, but for what it got from there.
  for (const at::Tensor& tensor : traced.captures) value_of(tensor);
  body.values_.forget(traced.captures);
  body.values_.forget(arguments);
  finished_bodies_.absorb_storages(std::move(body.values_));
  finished_bodies_.absorb_storages(std::move(body.finished_bodies_));
  return traced;
}

const ElementSpec* Tracer::next_element() {
  if (outer_ != nullptr || elements_ >= options_.elements.size()) return nullptr;
  return &options_.elements[elements_++];
}

int32_t Tracer::add_body(Program body) {
  program_.bodies.push_back(std::move(body));
  return static_cast<int32_t>(program_.bodies.size() - 1);
}

void Tracer::add_instruction(const ControlOp& op, std::vector<Argument> arguments,
                             const std::vector<std::vector<at::Tensor>>& results, std::vector<int32_t> bodies) {
  Instruction instruction{.op = program_.intern_op(op.name, op.schema), .device = program_.intern_device(op_device())};
  instruction.arguments = std::move(arguments);
  instruction.bodies = std::move(bodies);
  for (const auto& tensors : results) {
    auto& values = instruction.results.emplace_back();
    for (const at::Tensor& tensor : tensors) {
      values.push_back(tensor.defined() ? program_.new_value() : kNoValue);
      if (tensor.defined()) values_.bind(tensor, values.back());
    }
  }
  program_.instructions.push_back(std::move(instruction));
}

}  // namespace muster

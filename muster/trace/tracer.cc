#include "muster/trace/tracer.h"

#include <ATen/Context.h>
#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <absl/strings/str_join.h>
#include <torch/csrc/autograd/function.h>

#include <mutex>

#include "muster/base/check.h"
#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/graph/op_schema.h"
#include "muster/graph/serialize.h"
#include "muster/runtime/op_catalog.h"
#include "muster/runtime/tensors.h"
#include "muster/trace/caller.h"
#include "muster/trace/device_scope.h"
#include "muster/trace/dispatcher_hook.h"

namespace muster {
namespace {

constexpr int64_t kLargestConstant = int64_t{256} << 20;

thread_local Tracer* current_tracer = nullptr;

std::recursive_mutex& trace_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

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
  explicit Active(Tracer& tracer) : outer_(std::exchange(current_tracer, &tracer)) {}
  ~Active() { current_tracer = outer_; }
  Active(const Active&) = delete;
  Active& operator=(const Active&) = delete;

 private:
  Tracer* const outer_;
  Traced traced_;
};

Tracer* Tracer::current() { return current_tracer; }

bool tracing() { return current_tracer != nullptr; }

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
// --------------------------------------------------------------------------------------------------
ValueId Tracer::value_of(const at::Tensor& tensor) { return lookup(tensor, /*reads=*/true); }

ValueId Tracer::lookup(const at::Tensor& tensor, bool reads) {
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return add_constant(tensor);
  // C++ has filled what empty() returned (torch::tensor({1, 2}) does): its elements are part of the program.
  if (reads && unwritten_.erase(ValueTable::storage_of(tensor)) > 0) {
    const at::Tensor whole = shows_whole_storage(tensor) ? tensor : whole_storage(tensor);
    values_.bind(whole, add_constant(whole));
    if (whole.is_same(tensor)) return *values_.find(tensor);
    return view_of(*values_.find(whole), tensor);
  }
  if (auto known = values_.find(tensor)) return *known;
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
  const auto& made_by = tensor.grad_fn();
  if (made_by && made_by->sequence_nr() >= first_sequence_number_) return;
  if (auto value = values_.find(tensor); value && *value < own_arguments_) return;
  for (const at::Tensor& known : differentiable_) {
    if (known.is_same(tensor)) return;
  }
  differentiable_.push_back(tensor);
}

ValueId Tracer::view_of(ValueId whole, const at::Tensor& tensor) {
  for (size_t i = 0; i < program_.arguments.size(); ++i) {
    if (program_.arguments[i].value == whole) compact_arguments_.push_back(i);
  }
  const ValueId value = program_.new_value();
  Instruction view{.op = program_.intern_op("aten::as_strided", *schema_of("aten::as_strided")),
                   .device = program_.intern_device(DeviceScope::current())};
  view.arguments = {{ValueRef{whole}}, integers(tensor.sizes()), integers(tensor.strides()), {tensor.storage_offset()}};
  view.results = {{value}};
  program_.instructions.push_back(std::move(view));
  values_.bind(tensor, value);
  return value;
}

ValueId Tracer::capture(const at::Tensor& tensor) {
  if (finished_bodies_.knows_storage(tensor)) {
    throw invalid_argument(options_.name,
                           ": a tensor made inside the body of cond, while_loop or repeat is used outside "
                           "of it; let the body return it");
  }
  if (outer_ != nullptr) {  // a body: the outer trace hands the tensor in
    const at::Tensor whole = shows_whole_storage(tensor) ? tensor : whole_storage(tensor);
    const ValueId value = program_.new_value();
    program_.arguments.push_back({value, spec_of(whole), program_.intern_device("")});
    captures_.push_back(whole);
    values_.bind(whole, value);
    return whole.is_same(tensor) ? value : view_of(value, tensor);
  }
  if (tensor.has_storage()) {
    if (auto variable = Variable::State::find(tensor.storage().unsafeGetStorageImpl())) {
      add_variable(variable, variable->adopted);
      return lookup(tensor, /*reads=*/true);
    }
  } else {
    throw invalid_argument(options_.name,
                           ": a sparse tensor from outside cannot be part of a program; pass a dense one");
  }
  const at::Tensor whole = shows_whole_storage(tensor) ? tensor : whole_storage(tensor);
  const ValueId value = add_constant(whole);
  values_.bind(whole, value);
  outside_.insert(ValueTable::storage_of(tensor));
  return whole.is_same(tensor) ? value : view_of(value, tensor);
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

// ---- Variables
// ----------------------------------------------------------------------------------------------------------
ValueId Tracer::add_variable(const std::shared_ptr<Variable::State>& variable, const at::Tensor& stand_in) {
  const ValueId value = program_.new_value();
  program_.variables.push_back(
      {value, variable->options.name, variable->spec, program_.intern_device(variable->options.device)});
  variables_.push_back(variable);
  values_.bind(stand_in, value);
  return value;
}

at::Tensor Tracer::stand_in(const std::shared_ptr<Variable::State>& variable) {
  if (outer_ != nullptr) return root().stand_in(variable);
  if (variable->adopted.defined()) return variable->adopted;
  at::Tensor& stand_in = stand_ins_[variable.get()];
  if (!stand_in.defined()) {
    Untraced untraced;
    c10::AutoGradMode no_gradients(false);
    at::Tensor value = variable->cell->read();
    stand_in = value.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
    if (variable->options.trainable && stand_in.is_floating_point()) stand_in.requires_grad_();
    add_variable(variable, stand_in);
  }
  return stand_in;
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
  if (!tensor.has_storage()) return;
  if (auto variable = Variable::State::find(tensor.storage().unsafeGetStorageImpl())) {
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

// ---- Instructions
// -------------------------------------------------------------------------------------------------------
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

void Tracer::check_replayable(const c10::OperatorHandle& op, const std::vector<c10::IValue>& stack,
                              size_t first) const {
  if (!op.hasTag(at::Tag::dynamic_output_shape)) return;
  if (op.schema().name() == "aten::index") {  // by integers it has a fixed shape; only a mask depends on its elements
    bool masked = false;
    for_each_tensor(stack[first + 1], [&](const at::Tensor& index) {
      masked = masked || index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
    });
    if (!masked) return;
  }
  throw invalid_argument(options_.name, ": the shape of the result of ", qualified_name(op.operator_name()),
                         " depends on the data, so it cannot be part of a program (called by ",
                         caller_outside_libraries(),
                         "); use an op with a fixed shape, such as torch::where or a mask that multiplies");
}

// A value that C++ has read from a tensor is fixed in the program. That is harmless only if it does not change the
// program, which trace() finds out by answering with other values.
void Tracer::answer_read(const std::string& op, c10::IValue& answer) {
  Tracer& top = root();
  top.reads_.push_back(str_cat(op, " called by ", caller_outside_libraries()));
  if (top.probe_ == Probe::kNone) return;
  if (top.limit_ != 0 && top.reads_.size() > top.limit_) throw cancelled("probe");
  if (answer.isBool()) {
    answer = !answer.toBool();
  } else if (answer.isInt()) {
    const int64_t value = answer.toInt();
    answer = top.probe_ == Probe::kPlusOne ? value + 1 : top.probe_ == Probe::kMinusOne ? value - 1 : -3 * value - 1000;
  } else if (answer.isDouble()) {
    const double value = answer.toDouble();
    answer = top.probe_ == Probe::kPlusOne ? value + 1 : top.probe_ == Probe::kMinusOne ? value - 1 : -3 * value - 1000;
  }
}

size_t Tracer::instruction_count() const {
  return program_.instructions.size() + (outer_ ? outer_->instruction_count() : 0);
}

void Tracer::record(const c10::OperatorHandle& op, c10::DispatchKeySet below, std::vector<c10::IValue>& stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string& name = schema.name();
  const size_t inputs = schema.arguments().size();
  const size_t first = stack.size() - inputs;
  if (limit_ != 0 && instruction_count() > limit_) throw cancelled("probe");
  if (op.hasTag(at::Tag::data_dependent_output) || name == "aten::equal") {
    Untraced untraced;
    op.redispatchBoxed(below, &stack);
    return answer_read(name, stack.back());
  }
  check_replayable(op, stack, first);

  const std::string qualified = qualified_name(op.operator_name());
  auto [known, is_new] = op_index_.try_emplace(qualified, 0);
  if (is_new) known->second = program_.intern_op(qualified, schema_text(schema));
  Instruction instruction{.op = known->second, .device = program_.intern_device(op_device())};
  const OpSchema memory = parse_schema(program_.ops[instruction.op].schema);
  instruction.arguments.reserve(inputs);
  for (size_t i = 0; i < inputs; ++i) {
    const c10::IValue& value = stack[first + i];
    const bool written = memory.arguments[i].written;
    if (written) for_each_tensor(value, [&](const at::Tensor& tensor) { before_write(qualified, tensor); });
    const bool reads = !written && memory.arguments[i].aliases.empty() && !reads_no_elements(name);
    instruction.arguments.push_back(argument(value, reads));
  }
  {
    Untraced untraced;
    op.redispatchBoxed(below, &stack);
  }
  const size_t outputs = schema.returns().size();
  bool has_tensors = false;
  for (size_t i = 0; i < outputs; ++i) {
    std::vector<ValueId>& values = instruction.results.emplace_back();
    auto add = [&](const at::Tensor& tensor) {
      has_tensors = true;
      values.push_back(tensor.defined() ? program_.new_value() : kNoValue);
      if (!tensor.defined()) return;
      values_.bind(tensor, values.back());
      if (makes_unwritten_memory(name) && tensor.numel() > 0) unwritten_.insert(ValueTable::storage_of(tensor));
    };
    const c10::IValue& result = stack[stack.size() - outputs + i];
    if (result.isTensor()) {
      add(result.toTensor());
    } else if (result.isTensorList()) {
      for (const at::Tensor& tensor : result.toTensorVector()) add(tensor);
      has_tensors = true;
    }
  }
  if (has_tensors || memory.writes())
    program_.instructions.push_back(std::move(instruction));  // else it was a question
}

Program Tracer::finish(const std::vector<at::Tensor>& outputs) {
  for (const at::Tensor& output : outputs) {
    program_.outputs.push_back(output.defined() ? lookup(output, /*reads=*/true) : kNoValue);
  }
  return std::move(program_);
}

// ---- Control flow
// -------------------------------------------------------------------------------------------------------
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
  // Whatever the body has made is of no use outside of it, but for what it got from there.
  for (const at::Tensor& tensor : traced.captures) value_of(tensor);
  body.values_.forget(traced.captures);
  body.values_.forget(arguments);
  finished_bodies_.absorb_storages(std::move(body.values_));
  finished_bodies_.absorb_storages(std::move(body.finished_bodies_));
  return traced;
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

// ---- trace()
// ------------------------------------------------------------------------------------------------------------
namespace {

// While tracing, random numbers come from the global stream, gradients gather in the modules and autocast remembers
// what it cast: all of that belongs to the caller and is put back.
class CallersState {
 public:
  CallersState() : generator_(at::globalContext().defaultGenerator(at::kCPU).clone()) {
    at::autocast::clear_cache();
    for (auto& variable : Variable::State::all_adopted()) {
      if (!variable->adopted.grad().defined()) continue;
      gradients_.emplace_back(variable, variable->adopted.grad());
      variable->adopted.mutable_grad().reset();
    }
  }
  ~CallersState() {
    at::autocast::clear_cache();
    for (auto& variable : Variable::State::all_adopted()) {
      if (variable->adopted.grad().defined()) variable->adopted.mutable_grad().reset();
    }
    for (auto& [variable, gradient] : gradients_) variable->adopted.mutable_grad() = gradient;
    at::Generator global = at::globalContext().defaultGenerator(at::kCPU);
    std::lock_guard lock(global.mutex());
    global.set_state(generator_.get_state());
  }
  CallersState(const CallersState&) = delete;
  CallersState& operator=(const CallersState&) = delete;

 private:
  at::Generator generator_;
  std::vector<std::pair<std::shared_ptr<Variable::State>, at::Tensor>> gradients_;
};

}  // namespace

TracedProgram trace(const TensorFunction& function, const std::vector<at::Tensor>& examples,
                    const TraceOptions& options) {
  std::lock_guard one_at_a_time(trace_mutex());
  install_dispatcher_hook();

  auto trace_once = [&](Tracer& tracer) {
    CallersState callers_state;
    std::vector<at::Tensor> arguments;
    for (const at::Tensor& example : examples) {
      at::Tensor argument;
      {
        PlainTensors plain;
        // A copy with the same strides, from the start of its own storage.
        argument = at::empty_strided(example.sizes(), example.strides(), example.options().device(at::kCPU));
        argument.copy_(example);
      }
      argument.set_requires_grad(example.requires_grad());
      tracer.program_.arguments.push_back({tracer.program_.new_value(), spec_of(argument), 0});
      tracer.values_.bind(argument, tracer.program_.arguments.back().value);
      arguments.push_back(std::move(argument));
    }
    c10::AutoGradMode gradients(true);
    struct Restore {
      Tracer& tracer;
      ~Restore() { tracer.restore_variables(); }
    } restore{tracer};
    Tracer::Active active(tracer);
    return tracer.finish(function(arguments));
  };

  Tracer tracer(options, nullptr, Tracer::Probe::kNone);
  TracedProgram traced;
  traced.program = trace_once(tracer);
  traced.variables = tracer.variables_;
  traced.compact.assign(examples.size(), false);
  for (size_t argument : tracer.compact_arguments_) traced.compact[argument] = true;
  if (tracer.reads_.empty()) return traced;

  const std::string recorded = serialize(traced.program);
  for (Tracer::Probe probe : {Tracer::Probe::kPlusOne, Tracer::Probe::kMinusOne, Tracer::Probe::kFar}) {
    Tracer other(options, nullptr, probe);
    other.limit_ = 2 * (traced.program.instructions.size() + tracer.reads_.size()) + 1000;
    bool same = false;
    try {
      same = serialize(trace_once(other)) == recorded;
    } catch (const std::exception&) {  // the function minds the value so much that it fails
    }
    if (!same) {
      throw invalid_argument(options.name, options.place.empty() ? "" : str_cat(" (", options.place, ")"),
                             ": the value of a tensor decides what the function does, which a program cannot do: ",
                             tracer.reads_.front(), "; use muster::cond, muster::while_loop or torch::where");
    }
  }
  MUSTER_LOG(warning)
      << options.name << (options.place.empty() ? "" : str_cat(" (", options.place, ")"))
      << ": reads the value of a tensor while it is traced (" << tracer.reads_.front()
      << "); the program does not depend on it, but later calls will not read it again: return the tensor";
  return traced;
}

}  // namespace muster

#include "muster/graph/serialize.h"

#include <limits>

#include "muster/base/status.h"
#include "muster/graph/graph.pb.h"

namespace muster {
namespace {

void write(const TensorSpec& spec, proto::TensorSpec& out) {
  out.set_dtype(static_cast<int>(spec.dtype));
  out.mutable_sizes()->Add(spec.sizes.begin(), spec.sizes.end());
}

TensorSpec read(const proto::TensorSpec& in, const std::string& owner) {
  auto dtype = dtype_from_number(in.dtype());
  if (!dtype) throw data_loss("program: ", owner, " has the element type ", in.dtype(), ", which does not exist");
  return {*dtype, {in.sizes().begin(), in.sizes().end()}};
}

template <class T>
bool all_are(const ArgumentList& list) {
  for (const Argument& element : list) {
    if (!std::holds_alternative<T>(element.value)) return false;
  }
  return !list.empty();
}

void write(const Argument& argument, proto::Argument& out);

void write_list(const ArgumentList& list, proto::Argument& out) {
  if (all_are<int64_t>(list)) {
    for (const Argument& element : list) out.mutable_integers()->add_elements(std::get<int64_t>(element.value));
  } else if (all_are<ValueRef>(list)) {
    for (const Argument& element : list) out.mutable_values()->add_elements(std::get<ValueRef>(element.value).id);
  } else {
    auto* elements = out.mutable_list();
    for (const Argument& element : list) write(element, *elements->add_elements());
  }
}

void write(const Argument& argument, proto::Argument& out) {
  struct Writer {
    proto::Argument& out;
    void operator()(None) const { out.set_none(true); }
    void operator()(Undefined) const { out.set_undefined(true); }
    void operator()(ValueRef ref) const { out.set_value(ref.id); }
    void operator()(int64_t value) const { out.set_integer(value); }
    void operator()(double value) const { out.set_real(value); }
    void operator()(bool value) const { out.set_boolean(value); }
    void operator()(std::complex<double> value) const {
      out.mutable_complex()->set_real(value.real());
      out.mutable_complex()->set_imaginary(value.imag());
    }
    void operator()(const std::string& value) const { out.set_text(value); }
    void operator()(HereDevice) const { out.set_device(true); }
    void operator()(HereGenerator) const { out.set_generator(true); }
    void operator()(const ArgumentList& list) const { write_list(list, out); }
  };
  std::visit(Writer{out}, argument.value);
}

Argument read(const proto::Argument& in) {
  switch (in.kind_case()) {
    case proto::Argument::kNone: return {None{}};
    case proto::Argument::kUndefined: return {Undefined{}};
    case proto::Argument::kValue: return {ValueRef{in.value()}};
    case proto::Argument::kInteger: return {in.integer()};
    case proto::Argument::kReal: return {in.real()};
    case proto::Argument::kBoolean: return {in.boolean()};
    case proto::Argument::kComplex: return {std::complex<double>(in.complex().real(), in.complex().imaginary())};
    case proto::Argument::kText: return {in.text()};
    case proto::Argument::kDevice: return {HereDevice{}};
    case proto::Argument::kGenerator: return {HereGenerator{}};
    case proto::Argument::kIntegers: {
      ArgumentList list;
      for (int64_t element : in.integers().elements()) list.push_back({element});
      return {std::move(list)};
    }
    case proto::Argument::kValues: {
      ArgumentList list;
      for (int32_t element : in.values().elements()) list.push_back({ValueRef{element}});
      return {std::move(list)};
    }
    case proto::Argument::kList: {
      ArgumentList list;
      for (const auto& element : in.list().elements()) list.push_back(read(element));
      return {std::move(list)};
    }
    case proto::Argument::KIND_NOT_SET: break;
  }
  throw data_loss("program: an argument has no kind; it was written by a newer Muster or is damaged");
}

void write(const Instruction& instruction, proto::Instruction& out) {
  out.set_op(instruction.op);
  out.set_device(instruction.device);
  for (const Argument& argument : instruction.arguments) write(argument, *out.add_arguments());
  for (const auto& values : instruction.results) {
    out.add_results()->mutable_values()->Add(values.begin(), values.end());
  }
  out.mutable_bodies()->Add(instruction.bodies.begin(), instruction.bodies.end());
}

Instruction read(const proto::Instruction& in) {
  Instruction instruction{.op = in.op(), .device = in.device()};
  for (const auto& argument : in.arguments()) instruction.arguments.push_back(read(argument));
  for (const auto& result : in.results()) {
    instruction.results.emplace_back(result.values().begin(), result.values().end());
  }
  instruction.bodies.assign(in.bodies().begin(), in.bodies().end());
  return instruction;
}

void write(const Program& program, proto::Program& out) {
  out.set_name(program.name);
  out.set_seed(program.seed);
  out.set_num_values(program.num_values);
  for (const std::string& device : program.devices) out.add_devices(device);
  for (const Op& op : program.ops) {
    auto* written = out.add_ops();
    written->set_name(op.name);
    written->set_schema(op.schema);
  }
  for (const ProgramArgument& argument : program.arguments) {
    auto* written = out.add_arguments();
    written->set_value(argument.value);
    write(argument.spec, *written->mutable_spec());
    written->set_device(argument.device);
    written->set_any(argument.any);
  }
  for (const VariableRef& variable : program.variables) {
    auto* written = out.add_variables();
    written->set_value(variable.value);
    written->set_name(variable.name);
    write(variable.spec, *written->mutable_spec());
    written->set_device(variable.device);
    written->set_wire(variable.wire.number());
  }
  for (const Constant& constant : program.constants) {
    auto* written = out.add_constants();
    written->set_value(constant.value);
    write(constant.spec, *written->mutable_spec());
    written->set_data(*constant.bytes);
    written->set_is_number(constant.is_number);
  }
  for (const Instruction& instruction : program.instructions) write(instruction, *out.add_instructions());
  out.mutable_outputs()->Add(program.outputs.begin(), program.outputs.end());
  for (const Program& body : program.bodies) write(body, *out.add_bodies());
  out.set_task(program.task);
  for (const Program& part : program.parts) write(part, *out.add_parts());
}

Program read(proto::Program& in) {
  Program program{.name = in.name(), .seed = in.seed(), .num_values = in.num_values()};
  program.devices.assign(in.devices().begin(), in.devices().end());
  for (const auto& op : in.ops()) program.ops.push_back({op.name(), op.schema()});
  for (const auto& argument : in.arguments()) {
    program.arguments.push_back(
        {argument.value(), read(argument.spec(), "an argument"), argument.device(), argument.any()});
  }
  for (const auto& variable : in.variables()) {
    const std::optional<WireForm> wire = WireForm::from_number(variable.wire());
    if (!wire) throw data_loss("program: variable \"", variable.name(), "\" has no known form on the wire");
    program.variables.push_back({variable.value(), variable.name(),
                                 read(variable.spec(), "variable \"" + variable.name() + "\""), variable.device(),
                                 *wire});
  }
  for (auto& constant : *in.mutable_constants()) {
    program.constants.push_back({constant.value(), read(constant.spec(), "a constant"),
                                 std::make_shared<const std::string>(std::move(*constant.mutable_data())),
                                 constant.is_number()});
  }
  for (const auto& instruction : in.instructions()) program.instructions.push_back(read(instruction));
  program.outputs.assign(in.outputs().begin(), in.outputs().end());
  for (auto& body : *in.mutable_bodies()) program.bodies.push_back(read(body));
  program.task = in.task();
  for (auto& part : *in.mutable_parts()) program.parts.push_back(read(part));
  return program;
}

}  // namespace

std::string serialize(const Program& program) {
  proto::Program message;
  write(program, message);
  message.set_version(kProgramVersion);
  return message.SerializeAsString();
}

Program parse_program(std::string_view bytes) {
  proto::Program message;
  if (bytes.size() > static_cast<size_t>(std::numeric_limits<int>::max())) {
    throw data_loss("program: ", bytes.size(), " bytes, but a program has at most 2 GiB");
  }
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    throw data_loss("program: ", bytes.size(), " bytes that are not a program (damaged or cut short)");
  }
  if (message.version() != kProgramVersion) {
    throw failed_precondition("program: format version ", message.version(), ", but this Muster reads version ",
                              kProgramVersion);
  }
  return read(message);
}

}  // namespace muster

#include "muster/graph/checker.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>

#include "muster/base/status.h"
#include "muster/graph/describe.h"
#include "muster/graph/device_spec.h"
#include "muster/graph/op_schema.h"
#include "muster/graph/op_traits.h"

namespace muster {
namespace {

// "Tensor?[]" is {"Tensor", element_optional, list}, "int[2]?" is {"int", list, optional}.
struct Type {
  std::string_view base;
  bool element_optional = false;
  bool list = false;
  bool optional = false;
};

Type parse_type(std::string_view text) {
  Type type;
  if (text.ends_with('?')) {
    type.optional = true;
    text.remove_suffix(1);
  }
  if (size_t open = text.find('['); open != std::string_view::npos) {
    type.list = true;
    text = text.substr(0, open);
    if (text.ends_with('?')) {
      type.element_optional = true;
      text.remove_suffix(1);
    }
  }
  type.base = text;
  return type;
}

std::string_view kind_of(const Argument& argument) {
  static constexpr std::array<std::string_view, 11> kNames = {
      "None",     "an undefined tensor", "a tensor",      "an integer", "a number", "a bool", "a complex number",
      "a string", "the device",          "the generator", "a list"};
  static_assert(std::variant_size_v<decltype(Argument::value)> == kNames.size());
  return kNames[argument.value.index()];
}

template <class... Kinds>
bool is_one_of(const Argument& argument) {
  return (std::holds_alternative<Kinds>(argument.value) || ...);
}

constexpr int64_t kFormats = 4;  // contiguous, as it is, channels last, and that in three dimensions

// Whether one argument, or one element of a list, is of this type.
bool fits(const Argument& argument, std::string_view base, bool optional) {
  if (is_one_of<None>(argument)) return optional;
  if (base == "Tensor") return is_one_of<ValueRef, Undefined>(argument);
  if (base == "int" || base == "SymInt" || base == "DeviceIndex") return is_one_of<int64_t>(argument);
  // libtorch takes these numbers for what they stand for without looking.
  const auto* number = std::get_if<int64_t>(&argument.value);
  if (base == "ScalarType") return number && dtype_from_number(*number).has_value();
  if (base == "Layout") return number && *number == 0;  // strided
  if (base == "MemoryFormat") return number && *number >= 0 && *number < kFormats;
  if (base == "float" || base == "SymFloat") return is_one_of<double>(argument);
  if (base == "bool" || base == "SymBool") return is_one_of<bool>(argument);
  if (base == "Scalar" || base == "number") return is_one_of<int64_t, double, bool, std::complex<double>>(argument);
  if (base == "complex") return is_one_of<std::complex<double>>(argument);
  if (base == "str") return is_one_of<std::string>(argument);
  if (base == "Device") return is_one_of<HereDevice>(argument);
  if (base == "Generator") return is_one_of<HereGenerator>(argument);
  return false;
}

size_t list_size(const Argument& argument) { return std::get<ArgumentList>(argument.value).size(); }

// What all bodies share.
struct Totals {
  int64_t instructions = 0;
  int64_t values = 0;
  int64_t bodies = 0;
  int64_t constant_bytes = 0;
  const std::vector<Program>* parts = nullptr;  // of the outermost program
};

// Checks one program, and its bodies after it.
class Checker {
 public:
  Checker(const Program& program, const Limits& limits, Totals& totals, std::string where, int depth, bool holes)
      : program_(program), limits_(limits), totals_(totals), where_(std::move(where)), depth_(depth), holes_(holes) {}

  void run() {
    check_totals();
    check_tables();
    defined_.assign(program_.num_values, false);
    for (size_t i = 0; i < program_.arguments.size(); ++i) {
      const ProgramArgument& argument = program_.arguments[i];
      context_ = str_cat("argument ", i);
      check_device(argument.device);
      check_spec(argument.spec, limits_.tensor_bytes);
      define(argument.value);
    }
    check_variables();
    check_constants();
    for (size_t i = 0; i < program_.instructions.size(); ++i) check_instruction(i);
    context_ = "outputs";
    for (ValueId output : program_.outputs) {
      if (output == kNoValue && holes_) continue;
      if (!is_defined(output)) fail("value ", output, " is not defined");
    }
    check_bodies();
    check_parts();
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw invalid_argument(where_, ": ", context_, context_.empty() ? "" : ": ", parts...);
  }

  void limit(std::string_view what, int64_t number, int64_t most) const {
    if (number <= most) return;
    throw resource_exhausted(where_, ": ", context_, context_.empty() ? "" : ": ", what, " ", number,
                             " is over the limit of ", most);
  }
  void limit(std::string_view what, size_t number, int64_t most) const {
    limit(what, static_cast<int64_t>(number), most);
  }

  // So that a message about it is one readable line.
  void check_text(std::string_view what, std::string_view text, int64_t most) const {
    limit(str_cat("length of the ", what), text.size(), most);
    for (char c : text) {
      if (c < 0x20 || c > 0x7e)
        fail("the ", what, " ", in_quotes(text), " has a character that is not printable ASCII");
    }
  }

  void check_totals() {
    limit("length of the name", program_.name.size(), limits_.name_length);
    if (program_.num_values < 0) fail("number of values ", program_.num_values, " is negative");
    limit("number of values", totals_.values += program_.num_values, limits_.values);
    limit("number of instructions", totals_.instructions += static_cast<int64_t>(program_.instructions.size()),
          limits_.instructions);
    limit("number of bodies", totals_.bodies += static_cast<int64_t>(program_.bodies.size()), limits_.bodies);
    limit("number of ops", program_.ops.size(), limits_.ops);
    limit("number of devices", program_.devices.size(), limits_.devices);
    limit("number of outputs", program_.outputs.size(), limits_.list_length);
  }

  void check_tables() {
    if (program_.devices.empty() || !program_.devices[0].empty()) fail("device 0 is not \"\", the device of no wish");
    for (size_t i = 1; i < program_.devices.size(); ++i) {
      context_ = str_cat("device ", i);
      check_text("name", program_.devices[i], limits_.name_length);
      try {
        DeviceSpec::parse(program_.devices[i]);
      } catch (const Error& error) {
        fail(error.status().message());
      }
    }
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      const Op& op = program_.ops[i];
      context_ = str_cat("op ", i);
      check_text("name", op.name, limits_.name_length);
      check_text("schema", op.schema, limits_.schema_length);
      try {
        schemas_.push_back(shared_schema(op.schema));
      } catch (const Error& error) {
        fail(error.status().message());
      }
      if (schemas_.back()->name != op.name) fail("\"", op.name, "\" has the schema of \"", schemas_.back()->name, "\"");
      const ControlOp* own = own_op(op.name);
      if (own != nullptr && op.schema != own->schema) fail("the schema of ", op.name, " is not ours");
    }
    context_.clear();
  }

  void check_variables() {
    if (depth_ > 0 && !program_.variables.empty()) fail("a body has variables; they must arrive as arguments");
    std::set<std::string_view> names;
    for (size_t i = 0; i < program_.variables.size(); ++i) {
      const VariableRef& variable = program_.variables[i];
      context_ = str_cat("variable ", i);
      limit("length of the name", variable.name.size(), limits_.name_length);
      if (variable.name.empty()) fail("it has no name");
      // Two values for one memory would make every question about who writes to it wrong.
      if (!names.insert(variable.name).second) fail(in_quotes(variable.name), " is there twice");
      check_device(variable.device);
      check_spec(variable.spec, limits_.tensor_bytes);
      if (variable.wire.type != WireType::kAsIs && variable.spec.dtype != DType::kFloat) {
        fail(in_quotes(variable.name), " is ", variable.spec.to_string(), ", of which nothing can be sent as ",
             variable.wire.to_string());
      }
      define(variable.value);
    }
  }

  void check_constants() {
    for (size_t i = 0; i < program_.constants.size(); ++i) {
      const Constant& constant = program_.constants[i];
      context_ = str_cat("constant ", i);
      const int64_t bytes = check_spec(constant.spec, limits_.constant_bytes);
      const int64_t given = constant.bytes ? static_cast<int64_t>(constant.bytes->size()) : 0;
      if (!constant.bytes || given != bytes) {
        fail("it has ", given, " bytes, but ", constant.spec.to_string(), " needs ", bytes);
      }
      limit("bytes of all constants", totals_.constant_bytes += bytes, limits_.constant_bytes);
      if (constant.is_number && !constant.spec.sizes.empty()) fail("it is a number, but not of 0 dimensions");
      define(constant.value);
    }
    context_.clear();
  }

  // Returns the bytes of the tensor; in int64, since the limit is checked before each product.
  int64_t check_spec(const TensorSpec& spec, int64_t most) const {
    if (dtype_from_number(static_cast<int64_t>(spec.dtype)) != spec.dtype) fail("its element type does not exist");
    limit("number of dimensions", spec.sizes.size(), limits_.dims);
    bool empty = false;
    for (int64_t size : spec.sizes) {
      if (size < 0) fail("size ", size, " is negative");
      empty = empty || size == 0;
    }
    if (empty) return 0;
    int64_t bytes = bytes_per_element(spec.dtype);
    for (int64_t size : spec.sizes) {
      if (size > most / bytes) {
        throw resource_exhausted(where_, ": ", context_, ": ", spec.to_string(), " is over the limit of ", most,
                                 " bytes");
      }
      bytes *= size;
    }
    return bytes;
  }

  void check_device(int32_t device) const {
    if (device < 0 || static_cast<size_t>(device) >= program_.devices.size()) {
      fail("device number ", device, ", but there are ", program_.devices.size());
    }
  }

  bool is_defined(ValueId value) const { return value >= 0 && value < program_.num_values && defined_[value]; }

  void define(ValueId value) {
    if (value < 0 || value >= program_.num_values) {
      fail("defines value ", value, ", but there are ", program_.num_values, " values");
    }
    if (defined_[value]) fail("value ", value, " is defined twice");
    defined_[value] = true;
  }

  void check_instruction(size_t number) {
    const Instruction& instruction = program_.instructions[number];
    context_ = str_cat("instruction ", number);
    if (instruction.op < 0 || static_cast<size_t>(instruction.op) >= program_.ops.size()) {
      fail("op number ", instruction.op, ", but there are ", program_.ops.size());
    }
    const OpSchema& schema = *schemas_[instruction.op];
    context_ = str_cat("instruction ", number, " (", schema.name, ")");
    check_device(instruction.device);
    limit("number of arguments", instruction.arguments.size(), limits_.arguments);
    if (instruction.arguments.size() != schema.arguments.size()) {
      fail("has ", instruction.arguments.size(), " arguments, but its schema has ", schema.arguments.size());
    }
    for (size_t i = 0; i < instruction.arguments.size(); ++i) {
      check_argument(i, instruction.arguments[i], schema.arguments[i]);
    }
    check_results(instruction, schema);
    if (own_op(schema.name) != nullptr) check_own(instruction, schema);
    check_control(instruction, schema.name);
    if (schema.name == kRemote.name) check_remote(instruction);
    if (schema.name == kReceive.name) check_receive(instruction);
    if (schema.name == kCollective.name) check_length(instruction, 0, list_size(instruction.arguments[0]));
  }

  // Where libtorch's ops may know what to do without a tensor, ours have no use for one that is not there, and whoever
  // walks a program may take it for granted.
  void check_own(const Instruction& instruction, const OpSchema& schema) const {
    for (size_t i = 0; i < instruction.arguments.size(); ++i) {
      const Argument& argument = instruction.arguments[i];
      const auto* list = std::get_if<ArgumentList>(&argument.value);
      const bool missing =
          list ? std::any_of(list->begin(), list->end(), is_one_of<Undefined>) : is_one_of<Undefined>(argument);
      if (missing) fail("argument ", i, " (", schema.arguments[i].name, ") has an undefined tensor");
    }
    const bool one_result = schema.name == kCopy.name || schema.name == kElement.name || schema.name == kReceive.name;
    if (one_result && instruction.results[0][0] == kNoValue) fail("its result has no value");
  }

  void check_receive(const Instruction& instruction) const {
    const int64_t form = std::get<int64_t>(instruction.arguments[2].value);
    if (form < 0 || form > UINT32_MAX || !WireForm::from_number(static_cast<uint32_t>(form))) {
      fail("no form on the wire has the number ", form);
    }
  }

  void check_remote(const Instruction& instruction) const {
    const int64_t number = std::get<int64_t>(instruction.arguments[0].value);
    if (number < 0 || static_cast<size_t>(number) >= totals_.parts->size()) {
      fail("part number ", number, ", but there are ", totals_.parts->size());
    }
    const Program& part = (*totals_.parts)[number];
    if (list_size(instruction.arguments[1]) != part.arguments.size()) {
      fail("part ", number, " has ", part.arguments.size(), " arguments, but is given ",
           list_size(instruction.arguments[1]));
    }
    check_length(instruction, 0, part.outputs.size());
  }

  void check_argument(size_t number, const Argument& argument, const SchemaArgument& expected) const {
    const Type type = parse_type(expected.type);
    auto* list = std::get_if<ArgumentList>(&argument.value);
    if (list && type.list) {
      limit(str_cat("length of argument ", number), list->size(), limits_.list_length);
      for (size_t i = 0; i < list->size(); ++i) {
        if (!fits((*list)[i], type.base, type.element_optional)) {
          fail("argument ", number, " (", expected.name, "): element ", i, " is ", kind_of((*list)[i]), ", not of ",
               expected.type);
        }
        check_leaf(number, (*list)[i]);
      }
      return;
    }
    bool none = std::holds_alternative<None>(argument.value);
    if (none ? !type.optional : type.list || !fits(argument, type.base, false)) {
      fail("argument ", number, " (", expected.name, ") is ", kind_of(argument), ", not ", expected.type);
    }
    check_leaf(number, argument);
  }

  void check_leaf(size_t number, const Argument& argument) const {
    if (auto* ref = std::get_if<ValueRef>(&argument.value)) {
      if (!is_defined(ref->id)) {
        fail("argument ", number, " refers to value ", ref->id, ", which is not defined before it");
      }
    } else if (auto* text = std::get_if<std::string>(&argument.value)) {
      limit(str_cat("length of argument ", number), text->size(), limits_.text_length);
    }
  }

  void check_results(const Instruction& instruction, const OpSchema& schema) {
    if (instruction.results.size() != schema.results.size()) {
      fail("has ", instruction.results.size(), " results, but its schema has ", schema.results.size());
    }
    for (size_t i = 0; i < instruction.results.size(); ++i) {
      const std::vector<ValueId>& values = instruction.results[i];
      const SchemaArgument& expected = schema.results[i];
      limit(str_cat("length of result ", i), values.size(), limits_.list_length);
      if (expected.is_tensor() && !expected.is_list() && values.size() != 1) {
        fail("result ", i, " is one tensor, but has ", values.size(), " values");
      }
      for (ValueId value : values) {
        if (value == kNoValue) continue;
        if (!expected.is_tensor()) fail("result ", i, " is ", expected.type, " and cannot be a value");
        define(value);
      }
    }
  }

  // The rules of program.h for the ops with bodies.
  void check_control(const Instruction& instruction, std::string_view name) const {
    if (!is_control(name)) {
      if (!instruction.bodies.empty()) fail("has bodies, but is not control flow");
      return;
    }
    for (int32_t body : instruction.bodies) {
      if (body < 0 || static_cast<size_t>(body) >= program_.bodies.size()) {
        fail("body number ", body, ", but there are ", program_.bodies.size());
      }
    }
    const std::vector<Argument>& arguments = instruction.arguments;
    if (name == kCond.name) {
      check_bodies_of(instruction, 2);
      for (size_t b : {0, 1}) check_arity(instruction, b, list_size(arguments[1]), instruction.results[0].size());
    } else if (name == kLoop.name) {
      const bool counted = !std::holds_alternative<None>(arguments[0].value);
      const size_t state = list_size(arguments[1]), inputs = list_size(arguments[2]);
      if (counted && std::get<int64_t>(arguments[0].value) < 0) fail("the number of trips is negative");
      check_bodies_of(instruction, counted ? 1 : 2);
      check_arity(instruction, 0, 1 + state + inputs, state);
      if (!counted) check_arity(instruction, 1, state + inputs, 1);
      check_length(instruction, 0, state);
      check_length(instruction, 1, state);
    } else {
      const size_t saved = list_size(arguments[1]), state = list_size(arguments[2]), inputs = list_size(arguments[3]);
      if (saved != state) fail("has ", saved, " saved tensors and ", state, " gradients");
      check_bodies_of(instruction, 1);
      check_arity(instruction, 0, 1 + 2 * state + inputs, state + inputs);
      check_length(instruction, 0, state);
      check_length(instruction, 1, inputs);
    }
  }

  void check_bodies_of(const Instruction& instruction, size_t expected) const {
    if (instruction.bodies.size() != expected) {
      fail("has ", instruction.bodies.size(), " bodies, but needs ", expected);
    }
  }

  void check_arity(const Instruction& instruction, size_t body, size_t arguments, size_t outputs) const {
    const Program& program = program_.bodies[instruction.bodies[body]];
    if (program.arguments.size() != arguments) {
      fail("body ", body, " has ", program.arguments.size(), " arguments, but is given ", arguments);
    }
    if (program.outputs.size() != outputs) {
      fail("body ", body, " has ", program.outputs.size(), " outputs, but ", outputs, " are expected of it");
    }
  }

  void check_length(const Instruction& instruction, size_t result, size_t expected) const {
    if (instruction.results[result].size() != expected) {
      fail("result ", result, " has ", instruction.results[result].size(), " values, but needs ", expected);
    }
  }

  void check_bodies() const {
    if (program_.bodies.empty()) return;
    if (depth_ >= limits_.nesting) {
      throw resource_exhausted(where_, ": bodies are nested deeper than ", limits_.nesting);
    }
    // A missing output is a gradient that is not there, which only loop_gradient knows how to take.
    std::vector<bool> gradient_only(program_.bodies.size(), true), used(program_.bodies.size(), false);
    for (const Instruction& instruction : program_.instructions) {
      for (int32_t body : instruction.bodies) {
        used[body] = true;
        if (program_.op_of(instruction).name != kLoopGradient.name) gradient_only[body] = false;
      }
    }
    for (size_t i = 0; i < program_.bodies.size(); ++i) {
      Checker(program_.bodies[i], limits_, totals_, str_cat(where_, ", body ", i), depth_ + 1,
              used[i] && gradient_only[i])
          .run();
    }
  }

  void check_parts() const {
    if (program_.parts.empty()) return;
    if (&program_.parts != totals_.parts) fail("a body or a part has parts of its own");
    limit("number of parts", program_.parts.size(), limits_.bodies);
    for (size_t i = 0; i < program_.parts.size(); ++i) {
      Checker(program_.parts[i], limits_, totals_, str_cat(where_, ", part ", i), 0, false).run();
    }
  }

  const Program& program_;
  const Limits& limits_;
  Totals& totals_;
  const std::string where_;
  const int depth_;
  const bool holes_;  // whether an output may be kNoValue
  std::string context_;
  std::vector<std::shared_ptr<const OpSchema>> schemas_;
  std::vector<bool> defined_;
};

}  // namespace

void check(const Program& program, const Limits& limits) {
  Totals totals{.parts = &program.parts};
  Checker(program, limits, totals, str_cat("program ", in_quotes(program.name)), 0, false).run();
}

}  // namespace muster

#include "muster/graph/dump.h"

#include <vector>

#include "muster/base/strings.h"
#include "muster/graph/describe.h"
#include "muster/graph/op_schema.h"

namespace muster {
namespace {

void write(const Program& program, const std::string& indent, std::string& out) {
  auto at = [&](int32_t device) { return device == 0 ? "" : str_cat("  @ ", program.devices[device]); };
  str_append(out, indent, "program ", in_quotes(program.name), " (");
  str_append(out, program.arguments.size(), " arguments, ", program.variables.size(), " variables, ",
             program.constants.size(), " constants, ", program.instructions.size(), " instructions)\n");
  for (const ProgramArgument& argument : program.arguments) {
    str_append(out, indent, "  %", argument.value, " = argument ", argument.spec.to_string(), at(argument.device),
               "\n");
  }
  for (const VariableRef& variable : program.variables) {
    str_append(out, indent, "  %", variable.value, " = variable ", in_quotes(variable.name), " ",
               variable.spec.to_string(), at(variable.device),
               variable.wire.plain() ? "" : str_cat("  on the wire: ", variable.wire.to_string()), "\n");
  }
  for (const Constant& constant : program.constants) {
    str_append(out, indent, "  %", constant.value, " = constant ", describe(constant), "\n");
  }
  std::vector<OpSchema> schemas;
  for (const Op& op : program.ops) schemas.push_back(parse_schema(op.schema));
  std::vector<bool> shown(program.bodies.size());
  for (const Instruction& instruction : program.instructions) {
    std::string results = describe_results(instruction);
    str_append(out, indent, "  ", results, results.empty() ? "" : " = ", program.op_of(instruction).name, "(",
               describe_arguments(instruction, schemas[instruction.op]), ")", at(instruction.device), "\n");
    // Once, however many callers it has: bodies with shared bodies would grow beyond all bounds.
    for (int32_t body : instruction.bodies) {
      if (shown[body]) {
        str_append(out, indent, "    program ", in_quotes(program.bodies[body].name), " as above\n");
      } else {
        write(program.bodies[body], indent + "    ", out);
      }
      shown[body] = true;
    }
  }
  str_append(out, indent, "  return ");
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    str_append(out, i ? ", " : "", value_name(program.outputs[i]));
  }
  out += program.outputs.empty() ? "nothing\n" : "\n";
}

}  // namespace

std::string dump(const Program& program) {
  std::string out;
  write(program, "", out);
  return out;
}

}  // namespace muster

#include <map>
#include <vector>

#include "muster/base/strings.h"
#include "muster/graph/describe.h"
#include "muster/graph/dump.h"
#include "muster/graph/op_schema.h"

namespace muster {
namespace {

// For a label in double quotes.
std::string escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  }
  return out;
}

std::string shortened(std::string text, size_t most) {
  // Not inside of a character of several bytes.
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0) == 0x80) --most;
  return text.substr(0, most) + "…";
}

// "aten::add_.Tensor" is long for a box; the namespace is nearly always the same.
std::string short_op(const std::string& name) { return name.starts_with("aten::") ? name.substr(6) : name; }

// Draws one program; a body is a box inside of the box of its device.
class Drawing {
 public:
  Drawing(const Program& program, std::string prefix, std::string& out)
      : program_(program), prefix_(std::move(prefix)), out_(out), makers_(program.num_values) {}

  void draw() {
    for (const ProgramArgument& argument : program_.arguments) {
      std::string name = str_cat(prefix_, "a", argument.value);
      makers_[argument.value] = name;
      add(argument.device, str_cat(name, " [shape=house, style=filled, fillcolor=\"#dbe9f6\", label=\"%",
                                   argument.value, "\\n", argument.spec.to_string(), "\"]"));
    }
    for (const VariableRef& variable : program_.variables) {
      std::string name = str_cat(prefix_, "v", variable.value);
      makers_[variable.value] = name;
      add(variable.device, str_cat(name, " [shape=cylinder, style=filled, fillcolor=\"#fde9c9\", label=\"",
                                   escaped(shortened(variable.name, 60)), "\\n", variable.spec.to_string(), "\"]"));
    }
    for (const Constant& constant : program_.constants) {
      std::string name = str_cat(prefix_, "c", constant.value);
      makers_[constant.value] = name;
      add(0, str_cat(name, " [shape=note, style=filled, fillcolor=\"#eeeeee\", label=\"",
                     escaped(shortened(describe(constant), 80)), "\"]"));
    }
    std::vector<OpSchema> schemas;
    for (const Op& op : program_.ops) schemas.push_back(parse_schema(op.schema));
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      add_instruction(i, schemas[program_.instructions[i].op]);
    }
    for (size_t i = 0; i < program_.outputs.size(); ++i) {
      if (program_.outputs[i] == kNoValue) continue;
      std::string name = str_cat(prefix_, "out", i);
      add(0, str_cat(name, " [shape=invhouse, style=filled, fillcolor=\"#d9ead3\", label=\"output ", i, "\"]"));
      edge(program_.outputs[i], name, "");
    }
    write();
  }

 private:
  void add(int32_t device, std::string node) { nodes_[device].push_back(std::move(node)); }

  void edge(ValueId from, const std::string& to, std::string_view style) {
    str_append(edges_, "  ", makers_[from], " -> ", to, " [label=\"%", from, "\"", style, "]\n");
  }

  void add_instruction(size_t number, const OpSchema& schema) {
    const Instruction& instruction = program_.instructions[number];
    const std::string name = str_cat(prefix_, "i", number);
    const std::string more = shortened(describe_settings(instruction, schema), 60);
    const bool copy = schema.name == kCopy.name;
    const char* look = copy                          ? "shape=cds, style=filled, fillcolor=\"#f4cccc\""
                       : !instruction.bodies.empty() ? "shape=box3d"
                                                     : "shape=box, style=\"rounded,filled\", fillcolor=white";
    add(instruction.device, str_cat(name, " [", look, ", label=\"", escaped(shortened(short_op(schema.name), 60)),
                                    more.empty() ? "" : "\\n", escaped(more), "\"]"));
    for (size_t i = 0; i < instruction.arguments.size(); ++i) {
      // What is written is what one looks for in such a picture.
      const char* style = schema.arguments[i].written ? ", color=\"#cc0000\", fontcolor=\"#cc0000\", penwidth=2" : "";
      for_each_value(instruction.arguments[i], [&](ValueId id) { edge(id, name, style); });
    }
    for (const auto& result : instruction.results) {
      for (ValueId value : result) {
        if (value != kNoValue) makers_[value] = name;
      }
    }
    for (size_t b = 0; b < instruction.bodies.size(); ++b) {
      const Program& body = program_.bodies[instruction.bodies[b]];
      // Drawn once, however many callers it has.
      std::string& inside = entries_[instruction.bodies[b]];
      const bool drawn = !inside.empty();
      if (!drawn) inside = str_cat(name, "b", b, "_");
      str_append(edges_, "  ", name, " -> ", inside, "entry [style=dashed, arrowhead=open]\n");
      if (drawn) continue;
      std::string text;
      Drawing(body, inside, text).draw();
      str_append(bodies_, "subgraph cluster_", inside, " {\n  style=dashed\n  label=\"body ", b, " of ",
                 escaped(shortened(schema.name, 60)), ": ", escaped(shortened(body.name, 60)), "\"\n  ", inside,
                 "entry [shape=point]\n", text, "}\n");
    }
  }

  void write() {
    for (const auto& [device, nodes] : nodes_) {
      if (device != 0) {
        str_append(out_, "  subgraph cluster_", prefix_, "d", device,
                   " {\n  style=\"rounded,filled\"\n  fillcolor=\"#f7f7f7\"\n", "  label=\"",
                   escaped(program_.devices[device]), "\"\n");
      }
      for (const std::string& node : nodes) str_append(out_, "  ", node, "\n");
      if (device != 0) out_ += "  }\n";
    }
    out_ += bodies_;
    out_ += edges_;
  }

  const Program& program_;
  const std::string prefix_;
  std::string& out_;
  std::vector<std::string> makers_;                    // by value: the node that it comes from
  std::map<int32_t, std::vector<std::string>> nodes_;  // by device
  std::map<int32_t, std::string> entries_;             // by body: the prefix of its nodes
  std::string bodies_;
  std::string edges_;
};

}  // namespace

std::string dot(const Program& program) {
  std::string out = str_cat("digraph {\n  label=\"", escaped(shortened(program.name, 200)), "\"\n",
                            "  fontname=\"Helvetica\"\n  node [fontname=\"Helvetica\", fontsize=11]\n",
                            "  edge [fontname=\"Helvetica\", fontsize=9, color=\"#666666\", fontcolor=\"#666666\"]\n");
  Drawing(program, "n", out).draw();
  return out + "}\n";
}

}  // namespace muster

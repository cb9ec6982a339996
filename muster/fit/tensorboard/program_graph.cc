#include "muster/fit/tensorboard/program_graph.h"

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "muster/base/strings.h"
#include "muster/fit/event.pb.h"
#include "muster/graph/describe.h"
#include "muster/graph/op_schema.h"

namespace muster {
namespace {

// What TensorFlow allows in the name of a node, and TensorBoard takes apart at '/'.
std::string node_name(std::string_view name) {
  std::string allowed;
  for (const char c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
                       c == '/' || c == '-' || c == '_';
    allowed += plain ? c : '_';
  }
  return allowed;
}

// "aten::add_.Tensor" is "add_": the whole name is the op of the node.
std::string short_name(const std::string& op) {
  const size_t begin = op.find("::") == std::string::npos ? 0 : op.find("::") + 2;
  return node_name(op.substr(begin, op.find('.', begin) - begin));
}

proto::EventTensor::Type type_of(DType dtype) {
  switch (dtype) {
    case DType::kByte: return proto::EventTensor::UINT8;
    case DType::kChar: return proto::EventTensor::INT8;
    case DType::kShort: return proto::EventTensor::INT16;
    case DType::kInt: return proto::EventTensor::INT32;
    case DType::kLong: return proto::EventTensor::INT64;
    case DType::kHalf: return proto::EventTensor::FLOAT16;
    case DType::kFloat: return proto::EventTensor::FLOAT32;
    case DType::kDouble: return proto::EventTensor::FLOAT64;
    case DType::kComplexFloat: return proto::EventTensor::COMPLEX64;
    case DType::kComplexDouble: return proto::EventTensor::COMPLEX128;
    case DType::kBool: return proto::EventTensor::BOOLEAN;
    case DType::kBFloat16: return proto::EventTensor::BFLOAT16;
    case DType::kComplexHalf: return proto::EventTensor::NONE;  // TensorFlow has none
  }
  return proto::EventTensor::NONE;
}

void set_shape(const TensorSpec& spec, proto::EventShape& shape) {
  for (const int64_t size : spec.sizes) shape.add_dimension()->set_size(size);
}

// Adds the nodes of one program; those of a body have names of their own scope.
class GraphWriter {
 public:
  GraphWriter(const Program& program, std::string scope, proto::EventGraph& graph)
      : program_(program), scope_(std::move(scope)), graph_(graph), makers_(program.num_values) {}

  // Returns the nodes of the arguments, which an instruction that has this for its body goes before.
  std::vector<proto::EventGraph::Node*> write() {
    std::vector<proto::EventGraph::Node*> arguments;
    for (size_t i = 0; i < program_.arguments.size(); ++i) {
      const ProgramArgument& argument = program_.arguments[i];
      arguments.push_back(
          &add_value(str_cat("arguments/", i), "Placeholder", argument.value, argument.spec, argument.device));
    }
    for (const VariableRef& variable : program_.variables) {
      add_value("variables/" + node_name(variable.name), "VariableV2", variable.value, variable.spec, variable.device);
    }
    for (const Constant& constant : program_.constants) {
      proto::EventGraph::Node& node = add_value("constant", "Const", constant.value, constant.spec, 0);
      (*node.mutable_attributes())["value"].set_text(describe(constant));
    }
    std::vector<OpSchema> schemas;
    for (const Op& op : program_.ops) schemas.push_back(parse_schema(op.schema));
    for (const Instruction& instruction : program_.instructions) add_instruction(instruction, schemas[instruction.op]);
    for (size_t i = 0; i < program_.outputs.size(); ++i) {
      if (program_.outputs[i] == kNoValue) continue;
      add(str_cat("outputs/", i), "Identity", 0).add_inputs(makers_[program_.outputs[i]]);
    }
    return arguments;
  }

 private:
  proto::EventGraph::Node& add(const std::string& wish, const std::string& op, int32_t device) {
    std::string name = wish;
    for (int& taken = counts_[wish]; !names_.insert(name).second;) name = str_cat(wish, "_", ++taken);
    proto::EventGraph::Node& node = *graph_.add_nodes();
    node.set_name(scope_ + name);
    node.set_op(op);
    node.set_device(program_.devices[device]);
    return node;
  }

  // A value that no instruction makes; only of these the program knows what they look like.
  proto::EventGraph::Node& add_value(const std::string& wish, const std::string& op, ValueId value,
                                     const TensorSpec& spec, int32_t device) {
    proto::EventGraph::Node& node = add(wish, op, device);
    makers_[value] = node.name();
    auto& attributes = *node.mutable_attributes();
    attributes["dtype"].set_type(type_of(spec.dtype));
    set_shape(spec, *attributes["shape"].mutable_shape());
    set_shape(spec, *attributes["_output_shapes"].mutable_list()->add_shapes());  // what stands at the edges
    return node;
  }

  void add_instruction(const Instruction& instruction, const OpSchema& schema) {
    proto::EventGraph::Node& node = add(short_name(schema.name), schema.name, instruction.device);
    for (const Argument& argument : instruction.arguments) {
      for_each_value(argument, [&](ValueId value) { node.add_inputs(makers_[value]); });
    }
    const std::string settings = describe_settings(instruction, schema);
    if (!settings.empty()) (*node.mutable_attributes())["settings"].set_text(settings);
    int number = 0;
    for (const auto& result : instruction.results) {
      for (const ValueId value : result) {
        if (value != kNoValue) makers_[value] = number == 0 ? node.name() : str_cat(node.name(), ":", number);
        ++number;
      }
    }
    for (size_t b = 0; b < instruction.bodies.size(); ++b) {
      const auto [found, is_new] = bodies_.try_emplace(instruction.bodies[b]);  // drawn once, for all that have it
      if (is_new) {
        found->second =
            GraphWriter(program_.bodies[instruction.bodies[b]], str_cat(node.name(), "/body_", b, "/"), graph_).write();
      }
      for (proto::EventGraph::Node* argument : found->second) argument->add_inputs("^" + node.name());
    }
  }

  const Program& program_;
  const std::string scope_;
  proto::EventGraph& graph_;
  std::vector<std::string> makers_;    // by value: the node that it comes from, and as which of its results
  std::set<std::string> names_;        // within the scope
  std::map<std::string, int> counts_;  // by wish: the number that its last name has
  std::map<int32_t, std::vector<proto::EventGraph::Node*>> bodies_;  // by number: the nodes of its arguments
};

}  // namespace

proto::EventGraph graph_of(const Program& program) {
  proto::EventGraph graph;
  constexpr int kProducer = 22;  // a version of TensorFlow's graphs in which nodes mean what they mean today
  graph.mutable_versions()->set_producer(kProducer);
  GraphWriter(program, "", graph).write();
  return graph;
}

}  // namespace muster

#include "muster/fit/layer_shapes.h"

#include <absl/container/flat_hash_map.h>
#include <absl/strings/str_join.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "muster/base/status.h"
#include "muster/trace/tracer/tracer.h"

namespace muster {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;

using Sizes = std::vector<int64_t>;

// The ops of a forward pass, each by the node that will make its gradient.
struct ForwardGraph {
  std::map<const Node*, std::set<const Node*>> users;             // of what an op gives
  absl::flat_hash_map<const c10::TensorImpl*, Node*> parameters;  // the nodes of leaves
};

ForwardGraph forward_graph_of(const Features& outputs) {
  ForwardGraph graph;
  std::vector<Node*> left;
  std::set<const Node*> seen;
  const auto visit = [&](Node* node) {
    if (node == nullptr || !seen.insert(node).second) return;
    left.push_back(node);
    if (const auto* leaf = dynamic_cast<const AccumulateGrad*>(node)) {
      graph.parameters.emplace(leaf->variable.unsafeGetTensorImpl(), node);
    }
  };
  for (const at::Tensor& output : outputs.tensors()) {
    if (output.defined()) visit(output.grad_fn().get());
  }
  while (!left.empty()) {
    const Node* node = left.back();
    left.pop_back();
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      if (!edge.function) continue;
      graph.users[edge.function.get()].insert(node);
      visit(edge.function.get());
    }
  }
  return graph;
}

bool is_one_of(const Node& node, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, std::string_view(node.name())) != names.end();
}

// The ops that take what `node` gives, which is a parameter: as it is, or turned or converted for the op.
void add_ops(const ForwardGraph& graph, const Node* node, std::set<const Node*>& ops) {
  const auto users = graph.users.find(node);
  if (users == graph.users.end()) return;
  for (const Node* user : users->second) {
    const bool is_form = is_one_of(*user, {"TBackward0", "TransposeBackward0", "PermuteBackward0", "ViewBackward0",
                                           "ToCopyBackward0", "UnsqueezeBackward0", "ExpandBackward0"});
    if (is_form) {
      add_ops(graph, user, ops);
    } else {
      ops.insert(user);
    }
  }
}

std::optional<Sizes> sizes_of(const Node& op) {
  if (op.num_inputs() == 0 || op.input_metadata(0).is_nested_tensor()) return std::nullopt;
  Sizes sizes;
  for (const c10::SymInt& size : op.input_metadata(0).shape_as_dim_vector()) {
    if (!size.maybe_as_int()) return std::nullopt;
    sizes.push_back(*size.maybe_as_int());
  }
  return sizes;
}

std::optional<Sizes> sizes_given_by(const ForwardGraph& graph, const Node& op) {
  // What all steps of a recurrent layer give in one op may begin with the time.
  if (op.name().find("Rnn") != std::string::npos) return std::nullopt;
  const std::optional<Sizes> own = sizes_of(op);
  // A product of more than two dimensions is made as one of two, and then seen with its own sizes.
  const auto users = graph.users.find(&op);
  if (!own || !is_one_of(op, {"AddmmBackward0", "MmBackward0"}) || users == graph.users.end()) return own;
  const Node& only = **users->second.begin();
  if (users->second.size() != 1 || !is_one_of(only, {"ViewBackward0", "UnsafeViewBackward0"})) return own;
  const std::optional<Sizes> seen = sizes_of(only);
  return seen && seen->size() > 2 && seen->back() == own->back() ? seen : own;
}

// The ops that take a variable.
std::set<const Node*> ops_of(const ForwardGraph& graph, const Variable& variable) {
  std::set<const Node*> ops;
  const auto node_of = [&](const at::Tensor& leaf) -> const Node* {
    const auto found = graph.parameters.find(leaf.unsafeGetTensorImpl());
    return found == graph.parameters.end() ? nullptr : found->second;
  };
  if (const at::Tensor& parameter = variable.state()->adopted; parameter.defined()) {
    add_ops(graph, node_of(parameter), ops);
    return ops;
  }
  if (Tracer::current() == nullptr) return ops;
  for (const RowLookup& rows : Tracer::current()->lookups) {
    const auto users = rows.table == variable.state() ? graph.users.find(node_of(rows.leaf)) : graph.users.end();
    if (users != graph.users.end()) ops.insert(users->second.begin(), users->second.end());
  }
  return ops;
}

bool has_layers_inside(const std::string& layer, const std::map<std::string, std::vector<Variable>>& layers) {
  const std::string begin = layer.empty() ? "" : str_cat(layer, ".");
  return std::ranges::any_of(layers,
                             [&](const auto& other) { return other.first != layer && other.first.starts_with(begin); });
}

// Whether `sum` adds something, such as a bias, to what `product` gives.
bool adds_to(const ForwardGraph& graph, const Node* sum, const Node* product) {
  if (!is_one_of(*sum, {"AddBackward0"})) return false;
  const auto users = graph.users.find(product);
  if (users == graph.users.end()) return false;
  return std::ranges::any_of(users->second, [&](const Node* user) {
    if (user == sum) return true;
    const auto next = graph.users.find(user);
    return is_one_of(*user, {"ViewBackward0", "UnsafeViewBackward0"}) && next != graph.users.end() &&
           next->second.contains(sum);
  });
}

// What the one op gives that takes all variables of the layer that are trained, or a product and the sum with the bias.
std::optional<Sizes> sizes_given_by_layer(const ForwardGraph& graph, const std::vector<Variable>& variables) {
  std::optional<std::set<const Node*>> ops;
  for (const Variable& variable : variables) {
    std::set<const Node*> own = ops_of(graph, variable);
    if (own.empty()) continue;
    if (ops && *ops != own) {
      if (ops->size() != 1 || own.size() != 1) return std::nullopt;
      if (adds_to(graph, *ops->begin(), *own.begin())) continue;
      if (!adds_to(graph, *own.begin(), *ops->begin())) return std::nullopt;
    }
    ops = std::move(own);
  }
  if (!ops) return std::nullopt;
  const std::optional<Sizes> sizes = sizes_given_by(graph, **ops->begin());
  const bool same = std::ranges::all_of(*ops, [&](const Node* op) { return sizes_given_by(graph, *op) == sizes; });
  return same ? sizes : std::nullopt;
}

}  // namespace

std::string layer_of(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

std::map<std::string, std::string> shapes_of_layers(const ModuleVariables& variables, const Features& inputs,
                                                    const Features& outputs) {
  std::map<std::string, std::vector<Variable>> layers;
  for (const auto& [name, variable] : variables.named()) layers[layer_of(name)].push_back(variable);
  const ForwardGraph graph = forward_graph_of(outputs);
  const auto is_batch = [&](int64_t size) {
    return std::ranges::any_of(inputs.tensors(),
                               [&](const at::Tensor& input) { return input.dim() > 0 && input.size(0) == size; });
  };
  std::map<std::string, std::string> shapes;
  for (const auto& [layer, own] : layers) {
    if (has_layers_inside(layer, layers)) continue;
    const std::optional<Sizes> sizes = sizes_given_by_layer(graph, own);
    if (!sizes) continue;
    std::vector<std::string> words;
    for (const int64_t size : *sizes) {
      words.push_back(words.empty() && is_batch(size) ? "batch" : std::to_string(size));
    }
    shapes.emplace(layer, str_cat("[", absl::StrJoin(words, ", "), "]"));
  }
  return shapes;
}

}  // namespace muster

#include "muster/fit/tensorboard/program_graph.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <map>

#include "muster/fit/event.pb.h"
#include "muster/trace/control_flow.h"
#include "muster/trace/device_scope.h"
#include "muster/trace/function.h"
#include "muster/trace/variable.h"

namespace muster::program_graph_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Node = proto::EventGraph::Node;

std::map<std::string, Node> nodes_of(const Program& program) {
  const proto::EventGraph graph = graph_of(program);
  std::map<std::string, Node> nodes;
  for (const Node& node : graph.nodes()) EXPECT_TRUE(nodes.emplace(node.name(), node).second) << node.name();
  for (const auto& [name, node] : nodes) {
    for (const std::string& input : node.inputs()) {
      const size_t begin = input.starts_with("^") ? 1 : 0;
      EXPECT_TRUE(nodes.contains(input.substr(begin, input.find(':') - begin))) << name << " has input " << input;
    }
  }
  return nodes;
}

TEST(ProgramGraph, HasANodeForEachInstructionWithItsInputsAndDevice) {
  const Variable w(torch::ones({2, 3}), {.name = "layer weight"});
  auto step = function([&](const at::Tensor& x) {
    const DeviceScope there("/job:worker/task:1");
    return (x.mm(w) * 2).topk(2);
  });

  std::map<std::string, Node> nodes = nodes_of(step.program(torch::ones({4, 2})));

  EXPECT_EQ(nodes["arguments/0"].op(), "Placeholder");
  const auto& shape = nodes["arguments/0"].attributes().at("_output_shapes").list().shapes(0);
  EXPECT_EQ(shape.dimension(0).size(), 4);
  EXPECT_EQ(nodes["arguments/0"].attributes().at("dtype").type(), proto::EventTensor::FLOAT32);
  EXPECT_EQ(nodes["variables/layer_weight"].op(), "VariableV2");
  EXPECT_EQ(nodes["mm"].op(), "aten::mm");
  EXPECT_THAT(nodes["mm"].inputs(), ElementsAre("arguments/0", "variables/layer_weight"));
  EXPECT_THAT(nodes["mm"].device(), HasSubstr("/job:worker"));
  EXPECT_THAT(nodes["topk"].attributes().at("settings").text(), HasSubstr("k=2"));
  EXPECT_THAT(nodes["outputs/0"].inputs(), ElementsAre("topk"));
  EXPECT_THAT(nodes["outputs/1"].inputs(), ElementsAre("topk:1"));
}

TEST(ProgramGraph, PutsTheBodiesOfAnInstructionUnderItsName) {
  auto step = function(
      [](const at::Tensor& x) { return cond(x.sum() > 0, [&] { return x.relu(); }, [&] { return x.neg(); }); });

  std::map<std::string, Node> nodes = nodes_of(step.program(torch::ones({2})));

  EXPECT_EQ(nodes["cond"].op(), "muster::cond");
  EXPECT_EQ(nodes["cond/body_0/relu"].op(), "aten::relu");
  EXPECT_EQ(nodes["cond/body_1/neg"].op(), "aten::neg");
  EXPECT_THAT(nodes["cond/body_1/arguments/0"].inputs(), Contains("^cond"));
}

}  // namespace
}  // namespace muster::program_graph_test

// What a step of each rule asks of parameter servers, before its gradients are there and with them.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "muster/cluster/in_process_cluster.h"
#include "muster/distribute/coordinator/cluster_coordinator.h"
#include "muster/distribute/servers/parameter_server_strategy.h"
#include "muster/graph/aliases.h"
#include "muster/graph/program.h"
#include "muster/session/step_program.h"
#include "muster/trace/function.h"
#include "muster/train/adaptive_optimizers.h"
#include "muster/train/optimizers.h"

namespace muster::optimizer_requests_test {
namespace {

struct Rule {
  std::string name;
  std::function<std::shared_ptr<Optimizer>(const std::vector<Variable>&)> make;
};

template <class Kind, class Options>
Rule rule(std::string name, Options options) {
  return {std::move(name), [options](const auto& variables) { return std::make_shared<Kind>(variables, options); }};
}

std::vector<Rule> rules() {
  const UpdateOptions all{.groups = {{.names = "^w", .rate_factor = 0.5, .weight_decay = 0.02}}, .average = 0.9};
  return {
      rule<Sgd>("Sgd", SgdOptions{.learning_rate = 0.1}),
      rule<Sgd>("Momentum", SgdOptions{.learning_rate = 0.01, .momentum = 0.9, .weight_decay = 0.1}),
      rule<Sgd>("Dampening", SgdOptions{.learning_rate = 0.01, .momentum = 0.9, .dampening = 0.5}),
      rule<Sgd>("Nesterov", SgdOptions{.learning_rate = 0.01, .momentum = 0.9, .nesterov = true}),
      rule<Adagrad>("Adagrad", AdagradOptions{.learning_rate = 0.1}),
      rule<Adam>("Adam", AdamOptions{.learning_rate = 0.1}),
      rule<Adam>("AdamWithAmsgrad", AdamOptions{.learning_rate = 0.1, .weight_decay = 0.1, .amsgrad = true}),
      rule<Adam>("AdamWithASchedule", AdamOptions{.learning_rate = exponential_decay(0.1, 10, 0.9)}),
      rule<Adam>("AdamWithGroupsAndAverages", AdamOptions{.learning_rate = 0.1, .all = all}),
      rule<AdamW>("AdamW", AdamWOptions{.learning_rate = 0.1, .weight_decay = 0.1}),
      rule<RmsProp>("RmsProp", RmsPropOptions{.learning_rate = 0.1}),
      rule<RmsProp>("RmsPropWithAll", RmsPropOptions{.learning_rate = 0.01, .momentum = 0.5, .centered = true}),
      rule<Adadelta>("Adadelta", AdadeltaOptions{.learning_rate = 0.5}),
      rule<Adamax>("Adamax", AdamaxOptions{.learning_rate = 0.1}),
      rule<Nadam>("Nadam", NadamOptions{.learning_rate = 0.1}),
      rule<Ftrl>("Ftrl", FtrlOptions{.learning_rate = 0.2, .l1 = 0.05, .l2 = 0.1, .l2_shrinkage = 0.01, .beta = 0.3}),
      rule<Lamb>("Lamb", LambOptions{.learning_rate = 0.01, .weight_decay = 0.1}),
      rule<Lion>("Lion", LionOptions{.learning_rate = 0.01, .weight_decay = 0.1}),
  };
}

class RuleOnParameterServers : public ::testing::TestWithParam<Rule> {};
INSTANTIATE_TEST_SUITE_P(Rules, RuleOnParameterServers, ::testing::ValuesIn(rules()),
                         [](const auto& info) { return info.param.name; });

size_t count_of(const Program& program, const std::string& op) {
  size_t count = 0;
  for (const Instruction& instruction : program.instructions) count += program.op_of(instruction).name == op ? 1 : 0;
  return count;
}

std::vector<std::string> written_variables(const Program& program) {
  const Aliases aliases(program);
  std::vector<std::string> names;
  for (const VariableRef& variable : program.variables) {
    if (aliases.written(aliases.group(variable.value))) names.push_back(variable.name);
  }
  return names;
}

// A request that only reads is repeated, shared and made ahead; and what it kept of a variable for the one that writes,
// others would have changed meanwhile.
TEST_P(RuleOnParameterServers, OnlyReadsBeforeTheGradientsAreThere) {
  const InProcessCluster cluster({.workers = 1, .ps = 1});
  const ParameterServerStrategy strategy(cluster.resolver());
  const auto table = strategy.make<Variable>(torch::ones({4, 8}), VariableOptions{.name = "table"}),
             w = strategy.make<Variable>(torch::ones({8}), VariableOptions{.name = "w"});
  const std::shared_ptr<Optimizer> optimizer = GetParam().make({table, w});
  auto step = function([&](at::Tensor ids) { optimizer->minimize((lookup(table, ids) * w.value()).sum()); });
  const std::string worker = "/job:worker/replica:0/task:0", cpu = "/device:CPU:0";
  const PlacerOptions devices{.devices = {worker + cpu, "/job:ps/replica:0/task:0" + cpu},
                              .default_device = worker + cpu};

  const Program program = make_step(step.program(torch::tensor({2})), "", devices, worker);

  ASSERT_EQ(program.parts.size(), 2U);
  EXPECT_EQ(written_variables(program.parts[0]), std::vector<std::string>{});
  EXPECT_EQ(count_of(program.parts[0], kSend.name), 1U) << "the ids, and nothing that is of a variable";
  EXPECT_EQ(written_variables(program.parts[1]).size(), program.parts[1].variables.size() - 1) << "all but the rate";
  for (const Program& part : program.parts) EXPECT_EQ(count_of(part, "muster_step::wait_for_"), 0U);
}

// The gradients are the same in all steps, so it does not matter which values a worker has made them of: the steps of
// two workers at the same time are those of one.
TEST_P(RuleOnParameterServers, LosesNothingOfWhatWorkersDoAtTheSameTime) {
  constexpr int kSteps = 60;
  const at::Tensor slopes = torch::linspace(-1, 2, 8), ids = torch::tensor({2, 0});
  auto make_step_of = [&](const Variable& table, const Variable& w, const std::shared_ptr<Optimizer>& optimizer) {
    return function([=](at::Tensor rows) {
      const at::Tensor loss = (lookup(table, rows) * slopes).sum() + (w.value() * slopes).sum();
      optimizer->minimize(loss);
      return loss;
    });
  };
  const Variable table(torch::ones({4, 8}), {.name = "table"}), w(torch::ones({8}), {.name = "w"});
  const std::shared_ptr<Optimizer> optimizer = GetParam().make({table, w});
  auto step = make_step_of(table, w, optimizer);
  for (int i = 0; i < kSteps; ++i) step(ids);

  const InProcessCluster cluster({.workers = 2, .ps = 1});
  const ParameterServerStrategy strategy(cluster.resolver());
  const auto table_there = strategy.make<Variable>(torch::ones({4, 8}), VariableOptions{.name = "table"}),
             w_there = strategy.make<Variable>(torch::ones({8}), VariableOptions{.name = "w"});
  const std::shared_ptr<Optimizer> optimizer_there = GetParam().make({table_there, w_there});
  auto step_there = make_step_of(table_there, w_there, optimizer_there);
  ClusterCoordinator coordinator(strategy);
  for (int i = 0; i < kSteps; ++i) coordinator.schedule(step_there, ids);
  coordinator.join();

  EXPECT_EQ(optimizer_there->iterations(), kSteps);
  EXPECT_TRUE(torch::allclose(w_there.value(), w.value(), 1e-4, 1e-5)) << w_there.value() << "\nnot\n" << w.value();
  EXPECT_TRUE(torch::allclose(table_there.value(), table.value(), 1e-4, 1e-5)) << table_there.value() << "\nnot\n"
                                                                               << table.value();
}

}  // namespace
}  // namespace muster::optimizer_requests_test

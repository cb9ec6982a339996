// One model under several strategies.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>

#include "muster/distribute/local_strategies.h"
#include "muster/runtime/local_worker.h"
#include "muster/trace/control_flow.h"
#include "muster/trace/device_scope.h"
#include "muster/train/embedding.h"
#include "muster/train/optimizers.h"

namespace muster {
namespace {

// Before anybody uses the devices of this process.
[[maybe_unused]] const bool four_devices_to_train_on = [] {
  set_local_options({.devices = {.cpus = 4, .gpus = false}});
  return true;
}();

struct NetImpl : torch::nn::Module {
  NetImpl() { register_module("layers", layers); }
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers{torch::nn::Linear(4, 8), torch::nn::Tanh(), torch::nn::Linear(8, 1)};
};
TORCH_MODULE(Net);

using MakeOptimizer = std::function<std::shared_ptr<Optimizer>(const Net&)>;

const MakeOptimizer kMomentum = [](const Net& net) {
  return std::make_shared<Sgd>(net, SgdOptions{.learning_rate = 0.05, .momentum = 0.9});
};
const MakeOptimizer kAdam = [](const Net& net) {
  return std::make_shared<Adam>(net, AdamOptions{.learning_rate = 0.01});
};

// The variables of a net after some steps on the same batches.
std::vector<Variable> trained(const Strategy& strategy, const MakeOptimizer& make, int steps, int at_once = 1) {
  torch::manual_seed(7);
  const at::Tensor x = torch::randn({64, 4}), y = x.sum(1, true).sin();
  auto net = strategy.make<Net>();
  const auto optimizer = make(net);
  auto step = function([&](Iterator& it) {
    auto [inputs, targets] = it.next();
    at::Tensor loss = torch::mse_loss(net->forward(inputs), targets);
    optimizer->minimize(loss);
    return loss;
  });
  Iterator batches = strategy.distribute(Dataset::tensors({x, y}).batch(16).repeat());
  auto several = function([&](Iterator& it) { repeat(at_once, [&](at::Tensor) { strategy.run(step, it); }); });
  for (int i = 0; i < steps; i += at_once) at_once == 1 ? (void)strategy.run(step, batches) : several(batches);
  return adopted(net).all();
}

class StrategyTraining : public ::testing::TestWithParam<const MakeOptimizer*> {
 protected:
  void expect_as_alone(const std::vector<Variable>& variables, double tolerance = 1e-5) {
    const std::vector<Variable> alone = trained(Strategy(), *GetParam(), 100);
    ASSERT_EQ(variables.size(), alone.size());
    for (size_t i = 0; i < alone.size(); ++i) {
      EXPECT_TRUE(torch::allclose(variables[i].value(), alone[i].value(), tolerance, tolerance)) << i;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Optimizers, StrategyTraining, ::testing::Values(&kMomentum, &kAdam),
                         [](const auto& info) { return info.index == 0 ? "Momentum" : "Adam"; });

TEST_P(StrategyTraining, LearnsTheSameOnOneDevice) {
  expect_as_alone(trained(OneDeviceStrategy("/device:CPU:1"), *GetParam(), 100));
}

TEST_P(StrategyTraining, LearnsTheSameMirroredOnTwoAndOnFourDevices) {
  expect_as_alone(trained(MirroredStrategy({"/device:CPU:0", "/device:CPU:1"}), *GetParam(), 100), 1e-3);
  expect_as_alone(trained(MirroredStrategy(), *GetParam(), 100), 1e-3);
}

TEST_P(StrategyTraining, LearnsTheSameWithCentralStorage) {
  expect_as_alone(trained(CentralStorageStrategy({"/device:CPU:1", "/device:CPU:2"}), *GetParam(), 100), 1e-3);
}

TEST_P(StrategyTraining, KeepsMirroredCopiesEqualBitForBit) {
  for (const Variable& variable : trained(MirroredStrategy(), *GetParam(), 100)) {
    ASSERT_EQ(variable.copies().size(), 4);
    for (const Variable& copy : variable.copies()) {
      EXPECT_TRUE(torch::equal(copy.value(), variable.copies()[0].value())) << copy.name();
    }
  }
}

TEST_P(StrategyTraining, TakesManyStepsInOneExecution) {
  const std::vector<Variable> one = trained(MirroredStrategy(), *GetParam(), 20),
                              ten = trained(MirroredStrategy(), *GetParam(), 20, 10);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(torch::equal(one[i].value(), ten[i].value())) << one[i].name();
}

// Two layers on two devices, or on one: the weights after some steps.
std::vector<at::Tensor> trained_on(const std::vector<std::string>& devices) {
  const MirroredStrategy strategy({"/device:CPU:0"});
  torch::manual_seed(3);
  std::vector<torch::nn::Linear> layers;
  std::vector<Variable> variables;
  for (const std::string& device : devices) {
    DeviceScope on(device);
    layers.push_back(strategy.make<torch::nn::Linear>(2, 2));
    for (const Variable& variable : adopted(layers.back()).trainable()) {
      EXPECT_TRUE(variable.device().ends_with(device)) << variable.device();
      variables.push_back(variable);
    }
  }
  const Adam adam(variables, {.learning_rate = 0.1});
  auto step = function([&](at::Tensor h) {
    for (size_t i = 0; i < layers.size(); ++i) {
      DeviceScope on(devices[i]);
      h = layers[i]->forward(h);
    }
    adam.minimize(h.square().sum());
  });
  for (int i = 0; i < 5; ++i) strategy.run(step, torch::tensor({{1.0F, 2.0F}}));
  const Program program = function([&](at::Tensor x) { strategy.run(step, x); }).program(torch::ones({1, 2}));
  std::set<std::string> used;  // by what is computed; what many read alike, such as the rate, is on the first one
  for (const Instruction& instruction : program.instructions) {
    const std::string& device = program.devices[instruction.device];
    used.insert(device.substr(device.rfind('/') + 1));
  }
  for (const std::string& device : devices) EXPECT_TRUE(used.contains(device.substr(1))) << device;
  std::vector<at::Tensor> weights;
  for (const Variable& variable : variables) weights.push_back(variable.value());
  return weights;
}

TEST(StrategyTrainingOfLayers, LearnsTheSameWithTheLayersOfAReplicaOnTwoDevices) {
  const std::vector<at::Tensor> on_two = trained_on({"/device:CPU:1", "/device:CPU:2"}),
                                on_one = trained_on({"/device:CPU:0", "/device:CPU:0"});

  for (size_t i = 0; i < on_two.size(); ++i) EXPECT_TRUE(on_two[i].equal(on_one[i])) << i;
}

TEST(StrategyTrainingByRows, KeepsMirroredTablesEqual) {
  torch::manual_seed(3);
  const MirroredStrategy mirrored({"/device:CPU:0", "/device:CPU:1"});
  const Strategy none;
  const at::Tensor start = torch::randn({10, 3});
  auto table = mirrored.make<Variable>(start), alone = none.make<Variable>(start);
  const Adam adam({table}, {.learning_rate = 0.1}), adam_alone({alone}, {.learning_rate = 0.1});
  auto step = function([&](at::Tensor ids) { adam.minimize(lookup(table, ids).square().mean()); });
  auto step_alone = function([&](at::Tensor ids) { adam_alone.minimize(lookup(alone, ids).square().mean()); });

  for (int i = 0; i < 5; ++i) {
    const at::Tensor ids = torch::randint(10, {8});
    mirrored.run(step, PerReplica<at::Tensor>{{ids.narrow(0, 0, 4), ids.narrow(0, 4, 4)}});
    none.run(step_alone, ids);
  }

  EXPECT_TRUE(torch::allclose(table.value(), alone.value(), 1e-4, 1e-5));
  EXPECT_TRUE(torch::equal(table.copies()[0].value(), table.copies()[1].value()));
}

TEST(StrategyTrainingOfBatchNorm, KeepsTheStatisticsOfEachReplica) {
  const MirroredStrategy mirrored({"/device:CPU:0", "/device:CPU:1"});
  auto norm = mirrored.make<torch::nn::BatchNorm1d>(2);
  auto forward = function([&](at::Tensor x) { return norm->forward(x); });

  mirrored.run(forward, PerReplica<at::Tensor>{{torch::full({4, 2}, 10.0F), torch::full({4, 2}, 20.0F)}});

  const Variable mean = adopted(norm).at("running_mean");
  EXPECT_TRUE(torch::allclose(mean.copies()[0].value(), torch::full({2}, 1.0F)));
  EXPECT_TRUE(torch::allclose(mean.copies()[1].value(), torch::full({2}, 2.0F)));
}

}  // namespace
}  // namespace muster

// One model under several strategies.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>

#include "muster/cluster/in_process_cluster.h"
#include "muster/distribute/coordinator/cluster_coordinator.h"
#include "muster/distribute/local_strategies.h"
#include "muster/distribute/servers/parameter_server_strategy.h"
#include "muster/runtime/worker/local_worker.h"
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

// How steps of a table, by rows, and of a matrix differ from the usual.
struct Unusual {
  Clipping clipping{};
  int64_t losses = 1;  // that each replica takes the mean of
};

// A table and a matrix after some steps, each down the gradient of a batch, of which the second half weighs more.
class Steps {
 public:
  using RunStep = std::function<void(const Function<std::function<void(at::Tensor)>>& step, const at::Tensor& ids)>;

  Steps(const Strategy& strategy, int64_t replicas, const Unusual& unusual, const RunStep& run) {
    torch::manual_seed(11);
    const auto table = strategy.make<Variable>(torch::randn({6, 3})), w = strategy.make<Variable>(torch::randn({3, 2}));
    const Sgd sgd({table, w}, {.learning_rate = 0.1, .momentum = 0.9, .all = {.clipping = unusual.clipping}});
    auto replica = function([&](at::Tensor ids, at::Tensor weights) {
      const int64_t each = ids.size(0) / unusual.losses;
      auto loss = [&](int64_t i) {
        const at::Tensor outputs = torch::matmul(lookup(table, ids.narrow(0, i * each, each)), w.value());
        return (outputs.square() * weights.narrow(0, i * each, each)).mean();
      };
      unusual.losses == 1 ? sgd.minimize(loss(0)) : sgd.minimize_mean(unusual.losses, loss);
    });
    const at::Tensor weights = torch::tensor({1, 1, 1, 1, 8, 8, 8, 8}, torch::kFloat).unsqueeze(1);
    auto step = function(std::function<void(at::Tensor)>([&](const at::Tensor& ids) {
      PerReplica<at::Tensor> some_ids, some_weights;
      for (int64_t r = 0; r < replicas; ++r) {
        some_ids.values.push_back(ids.narrow(0, r * 8 / replicas, 8 / replicas));
        some_weights.values.push_back(weights.narrow(0, r * 8 / replicas, 8 / replicas));
      }
      strategy.run(replica, some_ids, some_weights);
    }));
    for (int i = 0; i < 4; ++i) run(step, torch::randint(6, {8}));
    values_ = {table.value().clone(), w.value().clone()};
    steps_ = sgd.iterations();
  }

  bool are_as(const Steps& other) const {
    return steps_ == other.steps_ && torch::allclose(values_[0], other.values_[0], 1e-4, 1e-5) &&
           torch::allclose(values_[1], other.values_[1], 1e-4, 1e-5);
  }

 private:
  std::vector<at::Tensor> values_;
  int64_t steps_;
};

Steps steps_alone(const Unusual& unusual) {
  return {Strategy(), 1, unusual, [](const auto& step, const at::Tensor& ids) { step(ids); }};
}
Steps steps_mirrored(const Unusual& unusual) {
  return {MirroredStrategy({"/device:CPU:0", "/device:CPU:1"}), 2, unusual,
          [](const auto& step, const at::Tensor& ids) { step(ids); }};
}
Steps steps_on_parameter_servers(const Unusual& unusual) {
  const InProcessCluster cluster({.workers = 1, .ps = 2, .devices_per_task = 2});
  const ParameterServerStrategy strategy(cluster.resolver(), {.partitioner = FixedShardsPartitioner{2},
                                                              .replica_devices = {"/device:CPU:0", "/device:CPU:1"}});
  ClusterCoordinator coordinator(strategy);
  return {strategy, 2, unusual, [&](const auto& step, const at::Tensor& ids) {
            coordinator.schedule(step, ids);
            coordinator.join();
          }};
}

// Of replicas that clip for themselves only the second one would, and of parts of a variable each by another norm.
class StrategyClipping : public ::testing::TestWithParam<Clipping> {};
std::string name_of_clipping(const testing::TestParamInfo<Clipping>& info) {
  return info.param.value ? "Value" : (info.param.norm ? "Norm" : "GlobalNorm");
}
INSTANTIATE_TEST_SUITE_P(Kinds, StrategyClipping,
                         ::testing::Values(Clipping{.value = 0.3}, Clipping{.norm = 0.5}, Clipping{.global_norm = 0.8}),
                         name_of_clipping);

TEST_P(StrategyClipping, IsOfTheGradientsOfAllReplicas) {
  const Unusual clipped{.clipping = GetParam()};
  const Steps alone = steps_alone(clipped);

  EXPECT_FALSE(alone.are_as(steps_alone({}))) << "nothing is clipped";
  EXPECT_TRUE(steps_mirrored(clipped).are_as(alone));
  EXPECT_TRUE(steps_on_parameter_servers(clipped).are_as(alone)) << "in parts";
}

TEST(StrategyAccumulation, TakesOneStepForTheLossesOfAllReplicas) {
  for (const Clipping& clipping : {Clipping{}, Clipping{.global_norm = 0.8}}) {
    const Steps alone = steps_alone({.clipping = clipping});
    const Unusual in_two{.clipping = clipping, .losses = 2};

    EXPECT_TRUE(steps_alone(in_two).are_as(alone));
    EXPECT_TRUE(steps_mirrored(in_two).are_as(alone));
    EXPECT_TRUE(steps_on_parameter_servers(in_two).are_as(alone));
  }
}

}  // namespace
}  // namespace muster

#include "muster/distribute/local_strategies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/log.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/distribute/local_devices.h"
#include "muster/distribute/replica_ops.h"
#include "muster/graph/dump.h"
#include "muster/runtime/worker/local_worker.h"
#include "muster/trace/control_flow.h"
#include "muster/trace/device_scope.h"
#include "muster/trace/rows.h"

namespace muster {
namespace {

using ::muster::testing_support::caught;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Before anybody uses the devices of this process.
[[maybe_unused]] const bool four_devices = [] {
  set_local_options({.devices = {.cpus = 4, .gpus = false}});
  return true;
}();

const std::vector<std::string> kTwoDevices{"/device:CPU:1", "/device:CPU:2"};

std::vector<float> floats_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(torch::kFloat).flatten().contiguous();
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}

std::vector<std::string> devices_of(const Program& program) {
  std::vector<std::string> devices;
  for (const Instruction& instruction : program.instructions) devices.push_back(program.devices[instruction.device]);
  return devices;
}

// ---- None
TEST(Strategy, ThatIsNoneChangesNothing) {
  const Strategy strategy;
  auto v = strategy.make<Variable>(torch::full({}, 2.0F));
  auto add = function([&](at::Tensor x) {
    v.assign_add(x);
    return x * 3;
  });

  EXPECT_EQ(strategy.num_replicas_in_sync(), 1);
  EXPECT_EQ(strategy.run(add, torch::ones({})).value().item<float>(), 3);
  EXPECT_EQ(v.value().item<float>(), 3);
  EXPECT_TRUE(v.copies().empty());
}

TEST(Strategy, TracesAFunctionOnceHoweverOftenItRuns) {
  const MirroredStrategy strategy(kTwoDevices);
  auto triple = function([](at::Tensor x) { return x * 3; });

  for (int i = 0; i < 5; ++i) {
    const PerReplica<at::Tensor> result = strategy.run(triple, torch::full({}, i));
    EXPECT_EQ(result.values.at(1).item<int>(), 3 * i);
  }

  EXPECT_EQ(triple.stats().misses, 1);
}

TEST(Strategy, DealsOutAPerReplicaAndPutsResultsTogether) {
  const MirroredStrategy strategy(kTwoDevices);
  auto twice = function([](at::Tensor x) { return std::vector<at::Tensor>{x * 2, x.sum()}; });
  const PerReplica<at::Tensor> given{{torch::tensor({1, 2}), torch::tensor({3, 4})}};

  const PerReplica<std::vector<at::Tensor>> results = strategy.run(twice, given);
  const PerReplica<at::Tensor> rows{{results.values[0][0], results.values[1][0]}};

  EXPECT_THAT(floats_of(strategy.gather(rows)), ElementsAre(2, 4, 6, 8));
  EXPECT_THAT(floats_of(strategy.reduce(ReduceOp::kSum, rows)), ElementsAre(8, 12));
  EXPECT_EQ(strategy.reduce(ReduceOp::kMean, rows, 0).item<float>(), 5);
  EXPECT_THAT(caught([&] { (void)strategy.gather({{torch::ones({})}}); }).message(), HasSubstr("has no axis"));
}

TEST(Strategy, AddsUpAndAveragesTheNumbersOfItsReplicas) {
  for (const int count : {1, 2, 4}) {
    std::vector<std::string> devices;
    for (int device = 0; device < count; ++device) devices.push_back(str_cat("/device:CPU:", device));
    const MirroredStrategy strategy(devices);
    auto number = function([] { return torch::full({}, replica_id() + 1.0F); });
    auto pair = function([] { return torch::tensor({1.0F, 2.0F}) + 2.0F * static_cast<float>(replica_id()); });

    const PerReplica<at::Tensor> numbers = strategy.run(number), pairs = strategy.run(pair);

    const auto size = static_cast<float>(count);
    EXPECT_EQ(strategy.reduce(ReduceOp::kSum, numbers).item<float>(), size * (size + 1) / 2);
    EXPECT_EQ(strategy.reduce(ReduceOp::kMean, numbers).item<float>(), (size + 1) / 2);
    EXPECT_THAT(floats_of(strategy.reduce(ReduceOp::kSum, pairs)), ElementsAre(size * size, size * (size + 1)));
    EXPECT_THAT(floats_of(strategy.reduce(ReduceOp::kMean, pairs)), ElementsAre(size, size + 1));
  }
}

TEST(Strategy, MakesOneOfValuesOnlyIfTheyAreAlike) {
  const MirroredStrategy strategy(kTwoDevices);
  const PerReplica<at::Tensor> rows{{torch::ones({3, 2}), torch::ones({1, 2})}},
      types{{torch::ones({2}), torch::ones({2}, torch::kLong)}}, missing{{torch::ones({2}), at::Tensor()}};

  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
    for (const auto& values : {rows, types, missing}) {
      EXPECT_EQ(caught([&] { (void)strategy.reduce(op, values); }).code(), StatusCode::kInvalidArgument);
    }
    EXPECT_EQ(caught([&] { (void)strategy.reduce(op, rows, 1); }).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(caught([&] { (void)strategy.reduce(ReduceOp::kSum, rows); }).message(),
              HasSubstr("reduce(sum) of float32[3, 2] in the first replica of this process and float32[1, 2]"));
  EXPECT_THAT(floats_of(strategy.reduce(ReduceOp::kSum, rows, 0)), ElementsAre(4, 4));
  EXPECT_EQ(caught([&] { (void)strategy.gather(rows, 1); }).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(caught([&] { (void)strategy.gather(types); }).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(caught([&] { (void)strategy.gather({}); }).code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(strategy.gather(rows).sizes(), ElementsAre(4, 2));
}

TEST(Strategy, FindsTheLeastAndTheMostAndWhetherAllOrAnyHold) {
  const MirroredStrategy strategy(kTwoDevices);
  const PerReplica<at::Tensor> numbers{{torch::tensor({1, 5}), torch::tensor({4, 2})}},
      flags{{torch::tensor({true, false}), torch::tensor({true, true})}};

  EXPECT_THAT(floats_of(strategy.reduce(ReduceOp::kMin, numbers)), ElementsAre(1, 2));
  EXPECT_THAT(floats_of(strategy.reduce(ReduceOp::kMax, numbers)), ElementsAre(4, 5));
  EXPECT_EQ(strategy.reduce(ReduceOp::kMax, numbers, 0).item<int64_t>(), 5);
  EXPECT_THAT(floats_of(strategy.reduce(ReduceOp::kMin, flags)), ElementsAre(1, 0));
  EXPECT_THAT(floats_of(strategy.reduce(ReduceOp::kMax, flags)), ElementsAre(1, 1));
  EXPECT_TRUE(strategy.reduce(ReduceOp::kMin, flags, 0).equal(torch::tensor(false)));
  EXPECT_THAT(caught([&] { (void)strategy.reduce(ReduceOp::kSum, flags); }).message(),
              HasSubstr("reduce(sum) of bool"));
}

TEST(Strategy, LeavesSharesWithoutRowsOutOfTheLeastAndTheMost) {
  const MirroredStrategy strategy(kTwoDevices);
  const PerReplica<at::Tensor> one_empty{{torch::empty({0, 2}), torch::tensor({{1.0F, 5.0F}, {4.0F, 2.0F}})}},
      both_empty{{torch::empty({0, 2}), torch::empty({0, 2})}};

  EXPECT_THAT(floats_of(strategy.reduce(ReduceOp::kMin, one_empty, 0)), ElementsAre(1, 2));
  EXPECT_THAT(floats_of(strategy.reduce(ReduceOp::kMax, one_empty, -2)), ElementsAre(4, 5));
  const Status refused = caught([&] { (void)strategy.reduce(ReduceOp::kMax, both_empty, 0); });
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("reduce(max) along axis 0: no replica has rows"));
}

TEST(Strategy, WaitsForNobodyAtABarrierIfItIsAloneAndInNoTracedFunction) {
  const MirroredStrategy strategy(kTwoDevices);
  auto inside = function([&](at::Tensor x) {
    strategy.barrier("the file");
    return x;
  });

  strategy.barrier("the file");

  EXPECT_THAT(caught([&] { inside(torch::ones({})); }).message(),
              HasSubstr("barrier for the file in a traced function"));
}

TEST(Strategy, MakesOneOfAValueForEachReplicaAndNoOther) {
  const MirroredStrategy strategy(kTwoDevices);
  const at::Tensor x = torch::ones({1});

  for (const size_t count : {0, 1, 3}) {
    const PerReplica<at::Tensor> values{std::vector<at::Tensor>(count, x)};
    const std::string numbers = str_cat("of the values of ", count, " replicas; the strategy has 2");
    EXPECT_THAT(caught([&] { (void)strategy.reduce(ReduceOp::kSum, values); }).message(), HasSubstr(numbers));
    EXPECT_THAT(caught([&] { (void)strategy.gather(values); }).message(), HasSubstr(numbers));
  }
}

TEST(Strategy, ReducesWhateverReplicasReturnTensorByTensor) {
  const MirroredStrategy strategy(kTwoDevices);
  auto list = function([](at::Tensor x) { return std::vector<at::Tensor>{x, x * 2}; });
  auto named = function([](at::Tensor x) { return std::map<std::string, at::Tensor>{{"a", x}, {"b", x * 2}}; });
  auto longer = function([](at::Tensor x) { return std::vector<at::Tensor>(replica_id() + 1, x); });
  const at::Tensor x = torch::ones({1});

  const std::vector<at::Tensor> sums = strategy.reduce(ReduceOp::kSum, strategy.run(list, x));
  const std::map<std::string, at::Tensor> means = strategy.reduce(ReduceOp::kMean, strategy.run(named, x));

  EXPECT_EQ(sums.at(1).item<float>(), 4);
  EXPECT_EQ(means.at("b").item<float>(), 2);
  EXPECT_THAT(caught([&] { (void)strategy.reduce(ReduceOp::kSum, strategy.run(longer, x)); }).message(),
              HasSubstr("different numbers of tensors"));
}

TEST(Strategy, DealsOutTheRowsOfEachBatch) {
  const MirroredStrategy strategy(kTwoDevices);
  auto rows = function([](Iterator& it) { return it.next<1>()[0] * 10; });
  Iterator batches = strategy.distribute(Dataset::range(10).batch(5).repeat());

  PerReplica<at::Tensor> first = strategy.run(rows, batches), second = strategy.run(rows, batches);

  EXPECT_THAT(floats_of(first.values[0]), ElementsAre(0, 10, 20));
  EXPECT_THAT(floats_of(first.values[1]), ElementsAre(30, 40));
  EXPECT_THAT(floats_of(second.values[0]), ElementsAre(50, 60, 70));
  EXPECT_THAT(floats_of(second.values[1]), ElementsAre(80, 90));
}

TEST(Strategy, GivesEachReplicaABatchOfItsOwnFromAFunction) {
  const MirroredStrategy strategy(kTwoDevices);
  auto rows = function([](Iterator& it) { return it.next<1>()[0] * 10; });
  Iterator batches = strategy.distribute([](const InputContext& context) {
    EXPECT_EQ(context.num_replicas_in_sync, 2);
    return Dataset::range(8).batch(context.per_replica_batch_size(4));
  });

  const PerReplica<at::Tensor> first = strategy.run(rows, batches);

  EXPECT_THAT(floats_of(first.values[0]), ElementsAre(0, 10));
  EXPECT_THAT(floats_of(first.values[1]), ElementsAre(20, 30));
}

// ---- One device
TEST(OneDeviceStrategy, PutsVariablesAndOpsThere) {
  const OneDeviceStrategy strategy("/device:CPU:3");
  auto v = strategy.make<Variable>(torch::ones({2}));
  auto step = function([&](at::Tensor x) { return v.value() + x; });

  EXPECT_THAT(v.device(), HasSubstr("/device:CPU:3"));
  EXPECT_THAT(floats_of(strategy.run(step, torch::ones({2})).value()), ElementsAre(2, 2));
  auto whole = function([&](at::Tensor x) { return strategy.run(step, x).value(); });
  EXPECT_THAT(devices_of(whole.program(torch::ones({2}))), ::testing::Each(HasSubstr("CPU:3")));
}

TEST(LocalStrategies, RefuseDevicesThatAreNotThereOrThereTwice) {
  EXPECT_THAT(caught([] { OneDeviceStrategy("/device:CPU:9"); }).message(), HasSubstr("CPU:9"));
  EXPECT_THAT(caught([] { MirroredStrategy({"/device:CPU:0", "/cpu:0"}); }).message(), HasSubstr("there twice"));
  EXPECT_EQ(MirroredStrategy().num_replicas_in_sync(), 4) << "all CPU devices, where there is no GPU";
}

TEST(LocalStrategies, SayHowThereWouldBeTheCpuDeviceThatIsMissing) {
  EXPECT_THAT(caught([] { MirroredStrategy({"/device:CPU:0", "/device:CPU:9"}); }).message(),
              AllOf(HasSubstr("CPU:3"), HasSubstr("muster::set_local_options({.devices = {.cpus = n}})")));
  EXPECT_THAT(caught([] { OneDeviceStrategy("/device:GPU:9"); }).message(),
              AllOf(HasSubstr("does not exist"), Not(HasSubstr("set_local_options"))));
}

TEST(LocalStrategies, NameTheDevicesThatNobodyHasChosen) {
  const auto said = [](const auto& make) {
    const LogCapture log;
    make();
    return log.lines();
  };

  EXPECT_THAT(said([] { MirroredStrategy(); }),
              ElementsAre(LogLine{LogLevel::kInfo, "MirroredStrategy: 4 replicas, on CPU:0, CPU:1, CPU:2, CPU:3"}));
  EXPECT_THAT(
      said([] { CentralStorageStrategy(); }),
      ElementsAre(LogLine{LogLevel::kInfo, "CentralStorageStrategy: 4 replicas, on CPU:0, CPU:1, CPU:2, CPU:3"}));
  EXPECT_THAT(said([] { const MirroredStrategy chosen(kTwoDevices); }), ElementsAre());
  EXPECT_THAT(replicas_in_words("MirroredStrategy", {"/job:localhost/replica:0/task:0/device:CPU:0"}),
              AllOf(HasSubstr("MirroredStrategy: 1 replica, on CPU:0; "), HasSubstr("muster::set_local_options(")));
  EXPECT_EQ(replicas_in_words("MirroredStrategy", {"/job:localhost/replica:0/task:0/device:GPU:0"}),
            "MirroredStrategy: 1 replica, on GPU:0");
}

// ---- Mirrored
TEST(MirroredStrategy, HasACopyOfEachVariableOnEachDevice) {
  const MirroredStrategy strategy(kTwoDevices);
  auto v = strategy.make<Variable>(InitialValue::normal({4}, 0, 1), VariableOptions{.name = "mirrored"});

  ASSERT_EQ(v.copies().size(), 2);
  EXPECT_THAT(v.copies()[0].device(), HasSubstr("CPU:1"));
  EXPECT_THAT(v.copies()[1].device(), HasSubstr("CPU:2"));
  EXPECT_TRUE(torch::equal(v.copies()[0].value(), v.copies()[1].value()));
  v.assign(torch::arange(4));
  for (const Variable& copy : v.copies()) EXPECT_THAT(floats_of(copy.value()), ElementsAre(0, 1, 2, 3));
}

TEST(MirroredStrategy, MakesVariablesWhereItIsToldIfItHasOneReplica) {
  const MirroredStrategy one({"/device:CPU:0"}), two(kTwoDevices);
  const auto device_of = [](const Strategy& strategy, const std::string& device) {
    return strategy.make<Variable>(torch::ones({2}), VariableOptions{.device = device}).device();
  };

  EXPECT_THAT(device_of(one, "/device:CPU:2"), HasSubstr("CPU:2"));
  EXPECT_THAT(device_of(one, "/job:localhost/task:0/device:CPU:2"), HasSubstr("CPU:2"));
  EXPECT_THAT(device_of(one, "/job:localhost"), HasSubstr("localhost/replica:0/task:0/device:CPU:0"));
  for (const std::string elsewhere : {"/job:ps/task:0/device:CPU:0", "/task:7/device:CPU:2", "/job:worker"}) {
    const Status refused = caught([&] { (void)device_of(one, elsewhere); });
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(refused.message(), HasSubstr(str_cat("device \"", elsewhere, "\" is one of another task")));
  }
  EXPECT_THAT(device_of(two, "/device:CPU:3"), HasSubstr("CPU:1")) << "each replica has all of its own on its device";
  const DeviceScope there("/device:CPU:3");
  EXPECT_THAT(device_of(one, ""), HasSubstr("CPU:3"));
}

TEST(MirroredStrategy, MakesOneWriteOfWhatReplicasWrite) {
  const MirroredStrategy strategy(kTwoDevices);
  auto make = [&](Aggregation aggregation) {
    return strategy.make<Variable>(torch::full({}, 5.0F), VariableOptions{.name = "v", .aggregation = aggregation});
  };
  Variable mean = make(Aggregation::kMean), sum = make(Aggregation::kSum), first = make(Aggregation::kOnlyFirstReplica),
           none = make(Aggregation::kNone);
  auto write = function([&] {
    mean.assign(torch::full({}, replica_id()));
    sum.assign_add(torch::full({}, replica_id() + 1));
    first.assign_sub(torch::full({}, replica_id() + 2));
  });
  auto write_any = function([&] { none.assign(torch::ones({})); });

  strategy.run(write);

  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(mean.copies()[i].value().item<float>(), 0.5F);
    EXPECT_EQ(sum.copies()[i].value().item<float>(), 8);
    EXPECT_EQ(first.copies()[i].value().item<float>(), 3);
  }
  EXPECT_THAT(caught([&] { strategy.run(write_any); }).message(), HasSubstr("VariableOptions::aggregation"));
}

TEST(MirroredStrategy, CountsNothingInABool) {
  const MirroredStrategy strategy(kTwoDevices);
  for (const Aggregation aggregation : {Aggregation::kSum, Aggregation::kMean, Aggregation::kOnlyFirstReplica}) {
    auto flag = strategy.make<Variable>(torch::zeros({}, torch::kBool), VariableOptions{.aggregation = aggregation});
    auto write = function([&] { flag.assign(torch::ones({}, torch::kBool)); });

    const Status status = caught([&] { strategy.run(write); });

    const bool first = aggregation == Aggregation::kOnlyFirstReplica;
    EXPECT_EQ(status.code(), first ? StatusCode::kOk : StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(flag.value().item<bool>(), first);
  }
}

TEST(MirroredStrategy, ReadsTheCopyOfTheReplica) {
  const MirroredStrategy strategy(kTwoDevices);
  auto v = strategy.make<Variable>(torch::zeros({3}));
  auto net = strategy.make<torch::nn::Linear>(3, 2);
  auto read = function([&](at::Tensor x) { return net->forward(x) + v.value().sum(); });
  auto whole = function([&](at::Tensor x) { return strategy.run(read, x); });

  const Program program = whole.program(torch::ones({1, 3}));

  EXPECT_EQ(program.variables.size(), 6) << "three, of two copies each";
  for (const auto& variable : program.variables) {
    const std::string& device = program.devices[variable.device];
    EXPECT_EQ(device.ends_with("CPU:2"), variable.name.find("/copy_1") != std::string::npos) << variable.name;
  }
  const PerReplica<at::Tensor> results = strategy.run(read, torch::ones({1, 3}));
  EXPECT_TRUE(torch::equal(results.values[0], results.values[1]));
  // Copies that differ show who reads which; only a test can make them so.
  adopted(net).at("bias").copies()[1].state()->cell->assign(torch::full({2}, 100.0F));
  v.copies()[1].state()->cell->assign(torch::full({3}, 1000.0F));
  const PerReplica<at::Tensor> changed = strategy.run(read, torch::ones({1, 3}));
  EXPECT_TRUE(torch::equal(changed.values[0], results.values[0]));
  EXPECT_GT(changed.values[1].min().item<float>(), 3'000);
}

TEST(MirroredStrategy, LeavesModulesAsTheyWereWhenAReplicaFails) {
  const MirroredStrategy strategy(kTwoDevices);
  auto net = strategy.make<torch::nn::Linear>(3, 2);
  const void* memory = net->weight.data_ptr();
  auto fail = function([&](at::Tensor x) {
    at::Tensor y = net->forward(x);
    if (replica_id() == 1) throw std::runtime_error("the second one fails");
    return y;
  });

  EXPECT_ANY_THROW(strategy.run(fail, torch::ones({1, 3})));

  EXPECT_EQ(net->weight.data_ptr(), memory);
  EXPECT_NO_THROW((void)adopted(net));
}

// What each replica makes of its share of the examples.
at::Tensor mean_square(torch::nn::Linear& net, const at::Tensor& x) { return net->forward(x).square().mean(); }

PerReplica<at::Tensor> two_batches() { return {{torch::ones({1, 3}), torch::full({1, 3}, 2.0F)}}; }

void expect_same_copies(const torch::nn::Linear& net) {
  for (const Variable& variable : adopted(net).all()) {
    EXPECT_TRUE(torch::equal(variable.copies()[0].value(), variable.copies()[1].value())) << variable.name();
  }
}

TEST(MirroredStrategy, RefusesWhatReplicasWouldWriteToACopyForThemselves) {
  const MirroredStrategy strategy(kTwoDevices);
  auto net = strategy.make<torch::nn::Linear>(3, 2);
  auto own = strategy.make<Variable>(torch::zeros({}), VariableOptions{.name = "own", .trainable = false});
  auto descend = function([&](at::Tensor x) {
    mean_square(net, x).backward();
    const torch::NoGradGuard no_gradients;
    for (at::Tensor& p : net->parameters()) p.sub_(0.1 * p.grad());
  });
  auto by_libtorch = function([&](at::Tensor x) {
    torch::optim::SGD sgd(net->parameters(), 0.1);
    mean_square(net, x).backward();
    sgd.step();
  });
  auto draw = function([&](at::Tensor) { net->weight.data().uniform_(); });
  auto count = function([&](at::Tensor x) { own.value().add_(x.sum()); });
  auto assign = function([&](at::Tensor x) { adopted(net).at("weight").assign_sub(x); });
  auto refusal = [&](const auto& step) {
    const Status status = caught([&] { strategy.run(step, two_batches()); });
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    return status.message();
  };

  EXPECT_THAT(refusal(descend), AllOf(HasSubstr("aten::sub_"), HasSubstr("variable \"weight\" in replica 0 of 2"),
                                      HasSubstr("drift apart"), HasSubstr("optimizer"), HasSubstr("aggregation"),
                                      HasSubstr("all_reduce")));
  EXPECT_THAT(refusal(by_libtorch), AllOf(HasSubstr("torch::optim::SGD"), HasSubstr("let an optimizer do it")));
  EXPECT_THAT(refusal(draw), HasSubstr("aten::uniform_"));
  EXPECT_THAT(refusal(count), HasSubstr("variable \"own\""));
  EXPECT_THAT(refusal(assign), HasSubstr("let an optimizer write what a module has"));
  expect_same_copies(net);
}

TEST(MirroredStrategy, RefusesWritesInBranchesThatSomeReplicasTake) {
  const MirroredStrategy strategy(kTwoDevices);
  auto v = strategy.make<Variable>(torch::zeros({}), VariableOptions{.name = "v", .trainable = false});
  auto if_positive = [&](const at::Tensor& x) {
    return cond(
        x > 0,
        [&] {
          v.value().add_(1);
          return torch::ones({});
        },
        [] { return torch::zeros({}); });
  };
  auto own = function([&](at::Tensor x) { return if_positive(x.sum()); });
  auto of_all = function([&](at::Tensor x) { return if_positive(all_reduce(ReduceOp::kSum, x.sum())); });

  EXPECT_THAT(caught([&] { (void)strategy.run(own, two_batches()); }).message(),
              AllOf(HasSubstr("variable \"v\" in replica 0 of 2"), HasSubstr("drift apart")));
  (void)strategy.run(of_all, two_batches());
  for (const Variable& copy : v.copies()) EXPECT_EQ(copy.value().item<float>(), 1);
}

TEST(MirroredStrategy, LetsReplicasWriteInPlaceWhatIsTheSameForAll) {
  const MirroredStrategy strategy(kTwoDevices);
  auto net = strategy.make<torch::nn::Linear>(3, 2);
  auto rate = strategy.make<Variable>(torch::full({}, 0.1F));
  auto step = function([&](at::Tensor x) {
    mean_square(net, x).backward();
    const torch::NoGradGuard no_gradients;
    for (at::Tensor& p : net->parameters()) {
      p.sub_(rate.value() * all_reduce(ReduceOp::kMean, p.grad()));
      p.clamp_(-0.5, 0.5);
    }
    net->bias.copy_(broadcast(x.flatten().narrow(0, 0, 2)) + all_gather(x.flatten()).sum());
  });
  auto twice = function([&](PerReplica<at::Tensor> x) {
    strategy.run(step, x);
    strategy.run(step, x);
  });
  const at::Tensor before = adopted(net).at("weight").value().clone();

  twice(two_batches());

  expect_same_copies(net);
  EXPECT_FALSE(torch::equal(adopted(net).at("weight").value(), before));
  EXPECT_THAT(floats_of(adopted(net).at("bias").value()), ElementsAre(10, 10));
}

TEST(MirroredStrategy, LeavesTheBuffersOfAModuleToEachReplica) {
  const MirroredStrategy strategy(kTwoDevices);
  auto norm = strategy.make<torch::nn::BatchNorm1d>(3);
  auto step = function([&](at::Tensor x) { return norm->forward(x.expand({2, 3})).sum(); });

  strategy.run(step, two_batches());

  EXPECT_THAT(floats_of(adopted(norm).at("running_mean").copies()[0].value()), ::testing::Each(0.1F));
  EXPECT_THAT(floats_of(adopted(norm).at("running_mean").copies()[1].value()), ::testing::Each(0.2F));
}

TEST(MirroredStrategy, RefusesWritesThatReachOneCopyOnly) {
  const MirroredStrategy strategy(kTwoDevices);
  auto net = strategy.make<torch::nn::Linear>(3, 2);
  auto outside = function([&](at::Tensor) { net->weight.data().clamp_(-0.5, 0.5); });
  auto first = function([&](at::Tensor) {
    if (replica_id() == 0) net->weight.data().mul_(0.5);
  });

  EXPECT_THAT(caught([&] { outside(torch::ones({})); }).message(),
              AllOf(HasSubstr("variable \"weight\" has a copy on each of 2 devices"), HasSubstr("by aten::clamp_"),
                    HasSubstr("by nothing"), HasSubstr("use Variable::assign()")));
  EXPECT_THAT(caught([&] { strategy.run(first, torch::ones({})); }).message(), HasSubstr("by aten::mul_"));
  expect_same_copies(net);
}

TEST(MirroredStrategy, RunsReplicasInLoops) {
  const MirroredStrategy strategy(kTwoDevices);
  auto net = strategy.make<torch::nn::Linear>(2, 1);
  auto count = strategy.make<Variable>(torch::zeros({}), VariableOptions{.aggregation = Aggregation::kSum});
  auto step = function([&](at::Tensor x) { count.assign_add(net->forward(x).sum()); });
  auto loop = function([&](at::Tensor x) { repeat(3, [&](at::Tensor) { strategy.run(step, x); }); });
  adopted(net).at("weight").assign(torch::ones({1, 2}));
  adopted(net).at("bias").assign(torch::zeros({1}));
  adopted(net).at("weight").copies()[1].state()->cell->assign(torch::full({1, 2}, 10.0F));

  loop(torch::ones({1, 2}));

  EXPECT_EQ(count.value().item<float>(), 3 * (2 + 20));
  // Each copy is itself there: a view by strides could not have a weight in columns.
  EXPECT_THAT(dump(loop.last_program().value()), Not(HasSubstr("strided")));
}

TEST(MirroredStrategy, ScattersRowsIntoAllCopies) {
  const MirroredStrategy strategy(kTwoDevices);
  auto table = strategy.make<Variable>(torch::zeros({4, 1}));
  auto write = function([&](at::Tensor ids) { scatter(table, Scatter::kAdd, ids, torch::ones({2, 1})); });

  write(torch::tensor({1, 3}));

  for (const Variable& copy : table.copies()) EXPECT_THAT(floats_of(copy.value()), ElementsAre(0, 1, 0, 1));
}

// ---- Central storage
TEST(CentralStorageStrategy, HasOneOfEachVariableForAllReplicas) {
  const CentralStorageStrategy strategy(kTwoDevices);
  auto v = strategy.make<Variable>(torch::ones({}), VariableOptions{.aggregation = Aggregation::kMean});
  auto add = function([&] { v.assign_add(torch::full({}, 2.0F)); });

  EXPECT_THAT(v.device(), HasSubstr("CPU:0"));
  strategy.run(add);
  EXPECT_EQ(v.value().item<float>(), 3);
  v.assign(torch::full({}, 3.0F));
  EXPECT_EQ(v.value().item<float>(), 3);
  EXPECT_THAT(CentralStorageStrategy({"/device:CPU:2"}).make<Variable>(torch::ones({})).device(), HasSubstr("CPU:2"));
}

TEST(CentralStorageStrategy, RefusesWhatEachReplicaWouldWriteInPlace) {
  const CentralStorageStrategy strategy(kTwoDevices);
  auto net = strategy.make<torch::nn::Linear>(3, 2);
  auto step = function([&](at::Tensor) { net->weight.data().mul_(0.5); });

  EXPECT_THAT(caught([&] { strategy.run(step, torch::ones({})); }).message(),
              AllOf(HasSubstr("variable \"weight\" in replica 0 of 2, and so does each of the others"),
                    HasSubstr("let an optimizer do it")));
}

}  // namespace
}  // namespace muster

#include "muster/distribute/servers/parameter_server_strategy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/log.h"
#include "muster/cluster/in_process_cluster.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/distribute/servers/ps_variables.h"
#include "muster/trace/device_scope.h"
#include "muster/trace/variable_arithmetic.h"

namespace muster {
namespace {

using namespace ::muster::testing_support;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::string ps(int index) { return str_cat("/job:ps/replica:0/task:", index, "/device:CPU:0"); }

std::vector<std::string> devices_of(const std::vector<Variable>& variables) {
  std::vector<std::string> devices;
  for (const Variable& variable : variables) devices.push_back(variable.device());
  return devices;
}

// Two parameter servers and a worker, without ports.
class Strategies : public ::testing::Test {
 protected:
  ParameterServerStrategy strategy(ParameterServerOptions options = {}) {
    return strategy_of(cluster_, Transport::kLocal, std::move(options));
  }

  InProcessCluster cluster_{{.workers = 1, .ps = 2, .transport = Transport::kLocal}};
};

// ---- Clusters
Status refusal_of(const std::map<std::string, std::vector<std::string>>& jobs, std::optional<std::string> type = {}) {
  SimpleClusterResolver resolver(ClusterSpec(jobs), {.task_type = std::move(type), .task_index = 0});
  return caught([&] { ParameterServerStrategy strategy(resolver); });
}

TEST(ParameterServerStrategy, RefusesClustersThatItCannotUse) {
  struct Case {
    std::map<std::string, std::vector<std::string>> jobs;
    std::string words;
  };
  const std::vector<Case> cases = {
      {{{"worker", {"w:1"}}, {"ps", {"p:1"}}, {"sidekick", {"s:1"}}}, "Disallowed task type found in"},
      {{{"chief", {"a:1", "b:1", "c:1"}}, {"worker", {"w:1"}}, {"ps", {"p:1"}}}, "at most one 'chief' job"},
      {{{"evaluator", {"a:1", "b:1"}}, {"worker", {"w:1"}}, {"ps", {"p:1"}}}, "at most one 'evaluator' job"},
      {{{"ps", {"p:1"}}}, "There must be at least one worker."},
      {{{"worker", {"w:1"}}}, "There must be at least one ps."},
      {{}, "There must be at least one"},
  };

  for (const Case& wrong : cases) {
    const Status status = refusal_of(wrong.jobs);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << wrong.words;
    EXPECT_THAT(status.message(), HasSubstr(wrong.words));
  }
  const Status status = refusal_of({{"worker", {"w:1"}}, {"ps", {"p:1"}}}, "foobar");
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("Unrecognized task_type: foobar"));
}

TEST(ParameterServerStrategy, NamesAParameterServerThatDoesNotCome) {
  InProcessCluster cluster({.workers = 1, .ps = 2});
  cluster.stop({"ps", 1});

  const Status status = caught([&] {
    ParameterServerStrategy strategy(cluster.resolver(), {.connect_timeout = std::chrono::milliseconds(50)});
  });

  EXPECT_THAT(status.code(), ::testing::AnyOf(StatusCode::kUnavailable, StatusCode::kDeadlineExceeded)) << status;
  EXPECT_EQ(status.task(), "/job:ps/replica:0/task:1");
}

TEST_F(Strategies, KnowTheTasksAndNeedNoWorkerToBegin) {
  cluster_.stop({"worker", 0});

  ParameterServerStrategy strategy = this->strategy();

  EXPECT_THAT(strategy.workers(), ElementsAre("/job:worker/replica:0/task:0"));
  EXPECT_THAT(strategy.parameter_servers(), ElementsAre("/job:ps/replica:0/task:0", "/job:ps/replica:0/task:1"));
}

// ---- Where variables go
TEST_F(Strategies, PutVariablesOnTheParameterServersInTurn) {
  ParameterServerStrategy strategy = this->strategy();
  Variable outside(torch::ones({}));
  std::vector<Variable> inside;
  {
    auto scope = strategy.scope();
    for (int i = 0; i < 3; ++i) inside.emplace_back(torch::full({}, static_cast<float>(i)));
    DeviceScope elsewhere("/job:ps/task:1");
    inside.emplace_back(torch::zeros({}));
    inside.emplace_back(torch::zeros({}));
  }
  Variable after(torch::ones({}));

  EXPECT_THAT(devices_of(inside), ElementsAre(ps(0), ps(1), ps(0), ps(1), ps(0)));
  for (const Variable& local : {outside, after}) EXPECT_THAT(local.device(), ::testing::Not(HasSubstr("/job:ps")));
  EXPECT_EQ(inside[2].value().item<float>(), 2);
  EXPECT_EQ(cluster_.worker({"ps", 0}).status().variables, 3u);
}

TEST_F(Strategies, LeaveVariablesThatAreMadeOutsideOfTheirScopeInThisProcess) {
  InProcessCluster cluster({.workers = 1, .ps = 3, .transport = Transport::kLocal});
  ParameterServerStrategy strategy = strategy_of(cluster, Transport::kLocal);
  Variable outside(torch::ones({}));
  std::vector<Variable> inside;
  for (int i = 0; i < 4; ++i) inside.push_back(strategy.make<Variable>(torch::ones({})));

  // TensorFlow says /job:chief; here it is a variable of this process that asks for no device.
  EXPECT_EQ(outside.device(), "");
  EXPECT_THAT(devices_of(inside), ElementsAre(ps(0), ps(1), ps(2), ps(0)));
}

TEST_F(Strategies, KeepTheValuesOfTheVariablesApart) {
  ParameterServerStrategy strategy = this->strategy();
  Variable first = strategy.make<Variable>(torch::zeros({})), second = strategy.make<Variable>(torch::ones({}));
  auto step = function([&] {
    first.assign_add(torch::full({}, 0.1F));
    second.assign_sub(torch::full({}, 0.2F));
  });
  ClusterCoordinator coordinator(strategy);

  coordinator.schedule(step);
  coordinator.join();

  EXPECT_NEAR(first.value().item<float>(), 0.1, 1e-6);
  EXPECT_NEAR(second.value().item<float>(), 0.8, 1e-6);
  EXPECT_THAT(strategy.variables()->all(), SizeIs(2));
}

TEST_F(Strategies, PutVariablesWhereTheFewestBytesAreIfAsked) {
  ParameterServerStrategy strategy = this->strategy({.placement = PsPlacement::kBalancedByBytes});
  auto scope = strategy.scope();

  std::vector<Variable> variables;
  for (int64_t size : {100, 10, 10, 10, 200}) variables.emplace_back(torch::zeros({size}));

  EXPECT_THAT(devices_of(variables), ElementsAre(ps(0), ps(1), ps(1), ps(1), ps(1)));
}

TEST_F(Strategies, PutAVariableBesideAnotherOne) {
  ParameterServerStrategy strategy = this->strategy({.partitioner = FixedShardsPartitioner{2}});
  Variable first = strategy.make<Variable>(torch::zeros({})), second = strategy.make<Variable>(torch::zeros({}));
  Variable table = strategy.make<Variable>(torch::zeros({4, 2}));

  auto beside = [&](const Variable& other) {
    auto scope = strategy.colocate_with(other);
    return Variable(torch::ones({6}));
  };

  EXPECT_EQ(beside(second).device(), second.device());
  EXPECT_EQ(beside(first).device(), first.device());
  Variable slot = beside(table.shards()[1]);
  EXPECT_EQ(slot.device(), table.shards()[1].device());
  EXPECT_THAT(slot.shards(), IsEmpty());
  EXPECT_TRUE(torch::equal(slot.value(), torch::ones({6})));
  for (const Variable& wrong : {table, Variable(torch::ones({}))}) {
    EXPECT_EQ(caught([&] { (void)strategy.colocate_with(wrong); }).code(), StatusCode::kInvalidArgument);
  }
}

// A creator of the user's that puts its variables on the second parameter server.
class OnSecond : public VariableCreator {
 public:
  explicit OnSecond(std::shared_ptr<PsVariables> variables, Variable there)
      : variables_(std::move(variables)), there_(std::move(there)) {}
  std::shared_ptr<Variable::State> create(const InitialValue& initial, VariableOptions options, bool) override {
    return variables_->create_beside(*there_.state(), initial, std::move(options));
  }

 private:
  const std::shared_ptr<PsVariables> variables_;
  const Variable there_;
};

TEST_F(Strategies, AreOverruledByCreatorsAroundTheirScopeAndNotByThoseInside) {
  ParameterServerStrategy strategy = this->strategy();
  Variable first = strategy.make<Variable>(torch::zeros({})), second = strategy.make<Variable>(torch::zeros({}));
  const auto creator = std::make_shared<OnSecond>(strategy.variables(), second);
  auto made = [] { return Variable(torch::zeros({})); };
  std::vector<Variable> alone, inside, around, beside;
  {
    VariableScope custom(creator);
    alone = {made(), made()};
  }
  {
    auto scope = strategy.scope();
    VariableScope custom(creator);
    inside = {made(), made()};
  }
  {
    VariableScope custom(creator);
    auto scope = strategy.scope();
    around = {made(), made(), strategy.make<Variable>(torch::zeros({}))};
  }
  {
    auto scope = strategy.scope();
    auto colocated = strategy.colocate_with(second);
    beside = {made(), made()};
  }

  EXPECT_THAT(devices_of(alone), ElementsAre(ps(1), ps(1)));
  EXPECT_THAT(devices_of(inside), ElementsAre(ps(0), ps(1))) << "in turn, as without a creator";
  EXPECT_THAT(devices_of(around), ElementsAre(ps(1), ps(1), ps(1)));
  EXPECT_THAT(devices_of(beside), ElementsAre(ps(1), ps(1)));
  EXPECT_THAT(VariableScope::current(), ::testing::IsNull());
}

TEST_F(Strategies, DecideInsideOfEachOthersScopes) {
  ParameterServerStrategy outer = this->strategy(), inner = this->strategy();
  auto scope = outer.scope();

  Variable v = inner.make<Variable>(torch::zeros({}));

  EXPECT_THAT(inner.variables()->all(), SizeIs(1));
  EXPECT_THAT(outer.variables()->all(), SizeIs(0));
}

// TensorFlow makes and cuts variables in traced functions, too. Here every trace would make them again.
TEST_F(Strategies, RefuseToMakeVariablesInATracedFunction) {
  ParameterServerStrategy strategy = this->strategy({.partitioner = FixedShardsPartitioner{2}});
  auto make =
      function([&] { return strategy.make<Variable>(torch::zeros({4}), VariableOptions{.name = "late"}).value(); });

  const Status status = caught([&] { strategy.run(make); });

  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), ::testing::AllOf(HasSubstr("\"late\""), HasSubstr("make it outside")));
  EXPECT_THAT(strategy.variables()->all(), IsEmpty());
}

// ---- Modules
struct TwoLayers : torch::nn::Module {
  explicit TwoLayers(int64_t width) {
    first = register_module("first", torch::nn::Linear(2, width));
    norm = register_module("norm", torch::nn::BatchNorm1d(width));
    scale = register_parameter("scale", torch::full({1}, 3.0F));
  }
  at::Tensor forward(const at::Tensor& x) { return norm(first(x)) * scale; }

  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  at::Tensor scale;
};

TEST_F(Strategies, PutTheParametersAndBuffersOfModulesOnTheParameterServers) {
  ParameterServerStrategy strategy = this->strategy();

  auto linear = strategy.make<torch::nn::Linear>(2, 3);
  auto net = strategy.make<TwoLayers>(4);
  auto shared = strategy.make<std::shared_ptr<TwoLayers>>(std::make_shared<TwoLayers>(5));

  EXPECT_THAT(strategy.variables()->all(), SizeIs(2 + 8 + 8));
  EXPECT_EQ(adopted(linear).all().size(), 2u);
  EXPECT_EQ(adopted(net).trainable().size(), 5u);
  EXPECT_EQ(adopted(shared).all().size(), 8u);
  EXPECT_THAT(devices_of(adopted(linear).all()), ElementsAre(ps(0), ps(1)));
  EXPECT_TRUE(torch::equal(adopted(net).at("first.weight").value(), net.first->weight.detach()));
  EXPECT_EQ(cluster_.worker({"ps", 0}).status().variables + cluster_.worker({"ps", 1}).status().variables, 18u);
}

TEST_F(Strategies, TrainModulesAndBringTheirValuesHome) {
  ParameterServerStrategy strategy = this->strategy();
  auto net = strategy.make<TwoLayers>(4);
  const at::Tensor before = net.scale.detach().clone();
  auto step = function([&](at::Tensor x) {
    at::Tensor loss = net.forward(x).square().mean();
    Variable scale = adopted(net).at("scale");
    scale.assign_sub(0.1 * gradient(loss, scale));
    return loss;
  });
  ClusterCoordinator coordinator(strategy);

  for (int i = 0; i < 4; ++i) coordinator.schedule(step, torch::randn({16, 2}));
  coordinator.join();

  EXPECT_TRUE(torch::equal(net.scale.detach(), before));
  adopted(net).write_back();
  EXPECT_LT(net.scale.item<float>(), before.item<float>());
  EXPECT_TRUE(torch::equal(net.scale.detach(), adopted(net).at("scale").value()));
  EXPECT_EQ(net.norm->num_batches_tracked.item<int64_t>(), 4) << "buffers, too";
}

TEST_F(Strategies, LetAModuleGoWithItsVariables) {
  ParameterServerStrategy strategy = this->strategy();
  for (int i = 0; i < 5; ++i) strategy.make<torch::nn::Linear>(2, 3);
  auto last = strategy.make<torch::nn::Linear>(2, 3);

  EXPECT_THAT(strategy.variables()->all(), SizeIs(2));
}

struct AdoptsItself {
  AdoptsItself() : variables(adopt(net)) {}
  torch::nn::Linear net{2, 3};
  ModuleVariables variables;
};

struct AdoptsAPart : torch::nn::Module {
  AdoptsAPart() : first(register_module("first", torch::nn::Linear(2, 3))), variables(adopt(first)) {
    second = register_module("second", torch::nn::Linear(3, 1));
  }
  torch::nn::Linear first;
  ModuleVariables variables;
  torch::nn::Linear second{nullptr};
};

TEST_F(Strategies, TakeModulesThatWereAdoptedInTheirConstructors) {
  ParameterServerStrategy strategy = this->strategy();

  auto model = strategy.make<AdoptsItself>();
  auto part = strategy.make<AdoptsAPart>();

  EXPECT_THAT(strategy.variables()->all(), SizeIs(6));
  EXPECT_EQ(adopted(model.net).at("weight").name(), model.variables.at("weight").name());
  EXPECT_EQ(adopted(part).at("first.weight").name(), part.variables.at("weight").name());
}

TEST_F(Strategies, SayThatAModuleWasNotMadeByOne) {
  torch::nn::Linear plain(2, 3);

  const Status status = caught([&] { adopted(plain); });

  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), ::testing::AllOf(HasSubstr("\"weight\""), HasSubstr("strategy.make")));
}

TEST_F(Strategies, MakeNamesUniqueAndKeepVariablesApart) {
  ParameterServerStrategy one = strategy(), other = strategy();
  Variable a = one.make<Variable>(torch::full({}, 1.0F), VariableOptions{.name = "w"});
  Variable b = one.make<Variable>(torch::full({}, 2.0F), VariableOptions{.name = "w"});
  Variable c = other.make<Variable>(torch::full({}, 3.0F), VariableOptions{.name = "w"});

  EXPECT_NE(a.name(), b.name());
  c.assign_add(torch::ones({}));

  EXPECT_EQ(a.value().item<float>(), 1);
  EXPECT_EQ(b.value().item<float>(), 2);
  EXPECT_EQ(c.value().item<float>(), 4);
  EXPECT_THAT(one.variables()->all(), SizeIs(2));
}

TEST_F(Strategies, TakeTheirVariablesWithThem) {
  std::optional<ParameterServerStrategy> strategy = this->strategy();
  std::optional<Variable> v = strategy->make<Variable>(torch::zeros({}));

  strategy.reset();
  EXPECT_EQ(v->value().item<float>(), 0) << "a variable keeps what it lives in";
  v.reset();

  EXPECT_EQ(cluster_.worker({"ps", 0}).status().variables, 0u);
}

// ---- Parts
TEST_F(Strategies, CutVariablesIntoPartsOfWholeRows) {
  ParameterServerStrategy strategy = this->strategy({.partitioner = FixedShardsPartitioner{4}});

  Variable v = strategy.make<Variable>(torch::arange(10), VariableOptions{.name = "ten"});

  std::vector<at::Tensor> parts;
  for (const Variable& part : v.shards()) parts.push_back(part.value());
  ASSERT_THAT(parts, SizeIs(4));
  for (size_t i = 0, first = 0; i < 4; first += parts[i].numel(), ++i) {
    EXPECT_TRUE(torch::equal(parts[i], torch::arange(10).narrow(0, first, i < 2 ? 3 : 2))) << i;
    EXPECT_EQ(v.shards()[i].name(), str_cat("ten/part_", i));
  }
  EXPECT_THAT(devices_of(v.shards()), ElementsAre(ps(0), ps(1), ps(0), ps(1)));
  EXPECT_TRUE(torch::equal(v.value(), torch::arange(10)));
  EXPECT_EQ(v.sizes(), at::IntArrayRef({10}));
  EXPECT_EQ(v.dtype(), torch::kLong);
}

TEST_F(Strategies, SpreadLargeVariablesUnlessAPartitionerLeavesThemWhole) {
  const at::Tensor large = torch::zeros({256, 256}), small = torch::zeros({255, 256});

  const ParameterServerStrategy usual = strategy(), told = strategy({.partitioner = fixed_size_partitioner(1)});

  EXPECT_THAT(devices_of(usual.make<Variable>(large).shards()), ElementsAre(ps(0), ps(1)));
  EXPECT_THAT(usual.make<Variable>(small).shards(), IsEmpty());
  EXPECT_THAT(told.make<Variable>(large).shards(), IsEmpty());
}

TEST_F(Strategies, DoNotCutWhatThePartitionerLeavesWhole) {
  EXPECT_THAT(strategy().make<Variable>(torch::zeros({10})).shards(), IsEmpty());
  ParameterServerStrategy large =
      strategy({.partitioner = MinSizePartitioner{.min_shard_bytes = 64 << 20, .max_shards = 2}});
  Variable a = large.make<Variable>(torch::zeros({10})), b = large.make<Variable>(torch::zeros({10}));

  for (const Variable& variable : {a, b}) EXPECT_THAT(variable.shards(), IsEmpty());

  EXPECT_THAT(devices_of({a, b}), ElementsAre(ps(0), ps(1)));
  ParameterServerStrategy fixed = strategy({.partitioner = FixedShardsPartitioner{2}});
  EXPECT_THAT(fixed.make<Variable>(torch::zeros({})).shards(), IsEmpty()) << "a scalar has no rows";
}

TEST_F(Strategies, RefuseAPartitionerThatAnswersNonsense) {
  for (const std::vector<int64_t>& answer :
       std::vector<std::vector<int64_t>>{{}, {0, 1, 1}, {2, 2, 1}, {2}, {100, 1, 1}}) {
    ParameterServerStrategy strategy = this->strategy({.partitioner = [&](const TensorSpec&) { return answer; }});

    const Status status = caught([&] { strategy.make<Variable>(torch::zeros({4, 4, 4})); });

    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << ::testing::PrintToString(answer);
    EXPECT_THAT(status.message(), HasSubstr("partitioner"));
  }
}

TEST_F(Strategies, WriteVariablesOfSeveralPartsAsOne) {
  ParameterServerStrategy strategy = this->strategy({.partitioner = FixedShardsPartitioner{3}});
  Variable v = strategy.make<Variable>(torch::zeros({4, 2}));
  at::Tensor rows = torch::arange(8, torch::kFloat).reshape({4, 2});

  EXPECT_TRUE(torch::equal(v.assign(rows).value(), rows));
  EXPECT_TRUE(torch::equal(v.shards()[0].value(), rows.narrow(0, 0, 2)));
  EXPECT_TRUE(torch::equal(v + v, rows + rows));
  EXPECT_TRUE((v == v).all().item<bool>());
  EXPECT_TRUE(torch::equal(v.assign_add(rows).value(), rows * 2));
  EXPECT_TRUE(torch::equal(v.assign_sub(torch::ones({4, 2})).value(), rows * 2 - 1));

  EXPECT_TRUE(torch::equal(v.shards()[2].value(), (rows * 2 - 1).narrow(0, 3, 1)));
  EXPECT_TRUE(torch::equal(torch::add(v, v), rows * 4 - 2)) << "it goes where a tensor goes";
}

TEST_F(Strategies, UseVariablesOfSeveralPartsInFunctions) {
  ParameterServerStrategy strategy = this->strategy({.partitioner = FixedShardsPartitioner{2}});
  Variable w = strategy.make<Variable>(torch::ones({4, 3}));
  auto train = function([&](at::Tensor x) {
    at::Tensor loss = torch::matmul(x, w).sum();
    at::Tensor change = gradient(loss, w);
    w.assign_sub(change * 0.5);
    return loss;
  });
  at::Tensor x = torch::arange(8, torch::kFloat).reshape({2, 4});

  at::Tensor here = strategy.run(train, x);
  ClusterCoordinator coordinator(strategy);
  at::Tensor there = coordinator.schedule(train, x).fetch();

  at::Tensor once = torch::ones({4, 3}) - x.sum(0).unsqueeze(1) * 0.5;
  EXPECT_TRUE(torch::allclose(here, torch::matmul(x, torch::ones({4, 3})).sum()));
  EXPECT_TRUE(torch::allclose(there, torch::matmul(x, once).sum()));
  EXPECT_TRUE(torch::allclose(w.value(), once - x.sum(0).unsqueeze(1) * 0.5));
}

// ---- Initial values
TEST_F(Strategies, AskForTheInitialValuePartByPart) {
  ParameterServerStrategy strategy = this->strategy({.partitioner = FixedShardsPartitioner{2}});
  std::vector<std::vector<int64_t>> asked;
  EXPECT_THROW(InitialValue::by_parts({4, 4}, nullptr), Error);
  auto identity = InitialValue::by_parts({4, 4}, [&](const std::vector<int64_t>& sizes, const auto& offset) {
    asked.push_back({sizes[0], sizes[1], offset[0], offset[1]});
    return torch::eye(4).narrow(0, offset[0], sizes[0]).contiguous();
  });

  Variable v = strategy.make<Variable>(identity);

  EXPECT_THAT(asked, ElementsAre(ElementsAre(2, 4, 0, 0), ElementsAre(2, 4, 2, 0)));
  EXPECT_TRUE(torch::equal(v.value(), torch::eye(4)));
}

TEST_F(Strategies, LetTheParameterServersFillLargeVariables) {
  for (int shards : {1, 2}) {
    ParameterServerStrategy strategy = this->strategy({.partitioner = FixedShardsPartitioner{shards}});

    Variable constant = strategy.make<Variable>(InitialValue::constant({6, 2}, 7));
    Variable uniform = strategy.make<Variable>(InitialValue::uniform({1'000, 4}, -1, 3, 5));
    Variable normal = strategy.make<Variable>(InitialValue::normal({1'000, 4}, 10, 2, 5));

    EXPECT_TRUE(torch::equal(constant.value(), torch::full({6, 2}, 7.0F)));
    at::Tensor drawn = uniform.value();
    EXPECT_THAT(drawn.min().item<float>(), ::testing::Ge(-1));
    EXPECT_THAT(drawn.max().item<float>(), ::testing::Lt(3));
    EXPECT_NEAR(drawn.mean().item<float>(), 1, 0.2);
    EXPECT_NEAR(normal.value().mean().item<float>(), 10, 0.3);
    EXPECT_NEAR(normal.value().std().item<float>(), 2, 0.3);
    if (shards == 2) {
      EXPECT_FALSE(torch::equal(normal.shards()[0].value(), normal.shards()[1].value())) << "each part draws its own";
    }
  }
}

// ---- Functions of this process
TEST_F(Strategies, RunFunctionsWithPartsOfLargerTensors) {
  ParameterServerStrategy strategy = this->strategy();
  auto second = function([](const at::Tensor& pair) { return pair.as_strided({1}, {1}, pair.storage_offset() + 1); });
  const at::Tensor many = torch::arange(6, torch::kFloat);

  EXPECT_EQ(strategy.run(second, many.narrow(0, 0, 2)).value().item<float>(), 1);
  EXPECT_EQ(strategy.run(second, many.narrow(0, 4, 2)).value().item<float>(), 5);
}

TEST_F(Strategies, RunFunctionsFromThisProcess) {
  ParameterServerStrategy strategy = this->strategy();
  Variable a = strategy.make<Variable>(torch::zeros({})), b = strategy.make<Variable>(torch::ones({}));
  auto step = function([&](at::Tensor x) {
    a.assign_add(x);
    b.assign_sub(x * 2);
    return a.value() + b.value();
  });

  at::Tensor sum = strategy.run(step, torch::full({}, 0.1F));

  EXPECT_FLOAT_EQ(a.value().item<float>(), 0.1F);
  EXPECT_FLOAT_EQ(b.value().item<float>(), 0.8F);
  EXPECT_FLOAT_EQ(sum.item<float>(), 0.9F);
}

// As TensorFlow has it: what computes does so here, with a warning, and what reads needs a coordinator.
TEST_F(Strategies, ComputeWithoutACoordinatorAndReadNothing) {
  const ParameterServerStrategy strategy = this->strategy();
  auto twice = function([](at::Tensor x) { return x * 2; });
  const Dataset numbers = Dataset::range(4).batch(2);
  LogCapture log;

  const at::Tensor all = strategy.gather(PerReplica<at::Tensor>{{torch::ones({2})}});
  const at::Tensor sum = strategy.reduce(ReduceOp::kSum, strategy.run(twice, all));

  EXPECT_TRUE(sum.cpu().equal(torch::full({2}, 2.0F)));
  EXPECT_TRUE(log.contains("ParameterServerStrategy::gather is invoked without ClusterCoordinator::schedule"));
  EXPECT_FALSE(log.contains("ParameterServerStrategy::run")) << "it warns once";
  for (const Status& refused : {caught([&] { strategy.distribute(numbers); }),
                                caught([&] { strategy.distribute([&](const InputContext&) { return numbers; }); })}) {
    EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(refused.message(), HasSubstr("ClusterCoordinator::create_per_worker_dataset"));
  }
  const Status here = caught([&] { strategy.distribute_dataset(numbers).iterator(); });
  EXPECT_THAT(here.message(), HasSubstr("ClusterCoordinator::create_per_worker_dataset"));
}

// ---- Several at once
TEST(ParameterServerStrategy, LeavesTheVariablesAndProgramsOfAnotherOneAlone) {
  for (Transport transport : {Transport::kGrpc, Transport::kLocal}) {
    InProcessCluster cluster({.workers = 1, .ps = 2, .transport = transport});
    ParameterServerStrategy first = strategy_of(cluster, transport), second = strategy_of(cluster, transport);
    auto make = [](const ParameterServerStrategy& strategy) {
      auto scope = strategy.scope();
      return Variable(torch::zeros({}), {.name = "v"});
    };
    Variable mine = make(first), theirs = make(second);
    auto add = [](const Variable& v) { return function([&v] { Variable(v).assign_add(torch::ones({})); }); };
    auto to_mine = add(mine), to_theirs = add(theirs);
    ClusterCoordinator one(first), two(second);

    for (int i = 0; i < 20; ++i) {
      one.schedule(to_mine);
      two.schedule(to_theirs);
      mine.assign_add(torch::ones({}));
      theirs.assign_add(torch::ones({}));
      EXPECT_NO_THROW(mine.value());
      EXPECT_NO_THROW(theirs.value());
    }
    one.join();
    two.join();

    EXPECT_EQ(mine.value().item<float>(), 40);
    EXPECT_EQ(theirs.value().item<float>(), 40);
  }
}

TEST(ParameterServerStrategy, LeavesNothingAtAnyTask) {
  for (Transport transport : {Transport::kGrpc, Transport::kLocal}) {
    InProcessCluster cluster({.workers = 1, .ps = 2, .transport = transport});
    {
      ParameterServerStrategy strategy = strategy_of(cluster, transport);
      auto scope = strategy.scope();
      Variable v(torch::zeros({}), {.name = "v"});
      auto add = function([&] { v.assign_add(torch::ones({})); });
      ClusterCoordinator coordinator(strategy);
      coordinator.schedule(add);
      coordinator.join();
      EXPECT_EQ(cluster.worker({"worker", 0}).status().programs, 1u);
    }
    for (const TaskId& task : cluster.spec().all_tasks()) {
      EXPECT_EQ(cluster.worker(task).status().programs, 0u) << task.to_string();
      EXPECT_EQ(cluster.worker(task).status().variables, 0u) << task.to_string();
    }
  }
}

}  // namespace
}  // namespace muster

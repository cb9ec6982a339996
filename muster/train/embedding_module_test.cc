// An embedding in a module: it follows the strategy of that, and is copied, converted and saved as other parts are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "muster/base/test_errors.h"
#include "muster/cluster/in_process_cluster.h"
#include "muster/distribute/local_strategies.h"
#include "muster/distribute/servers/parameter_server_strategy.h"
#include "muster/io/test_files.h"
#include "muster/trace/device_scope.h"
#include "muster/train/checkpoints.h"
#include "muster/train/embedding.h"
#include "muster/train/optimizers.h"

namespace muster::embedding_module_test {
namespace {

using testing_support::caught;
using testing_support::message_of;
using testing_support::ScopedDirectory;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

at::Tensor some_words() { return torch::tensor({{2, 0}, {4, 2}}); }

// The table is made with the module, and nobody has thought of a strategy yet.
struct WordsImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& ids) { return top->forward(words->forward(ids).mean(1)); }

  nn::Embedding words{register_module("words", nn::Embedding({.rows = 5, .dim = 3, .name = "words"}))};
  torch::nn::Linear top{register_module("top", torch::nn::Linear(3, 1))};
};
TORCH_MODULE(Words);

// Nobody has given the tables names.
struct RatingsImpl : torch::nn::Module {
  nn::Embedding users{register_module("users", nn::Embedding({.rows = 5, .dim = 3}))};
  nn::Embedding films{register_module("films", nn::Embedding({.rows = 4, .dim = 3}))};
};
TORCH_MODULE(Ratings);

std::vector<std::string> names_of(const ModuleVariables& variables) {
  std::vector<std::string> names;
  for (const Variable& variable : variables.all()) names.push_back(variable.name());
  return names;
}

torch::nn::Sequential sequential() {
  return torch::nn::Sequential(nn::Embedding({.rows = 5, .dim = 3}), torch::nn::Linear(3, 2));
}

at::Tensor weight_of(const torch::nn::Module& module) { return module.parameters()[0].detach(); }

// Each test is without a strategy, with a mirrored one, and with parameter servers that cut tables in two.
class EmbeddingMadeBeforeTheScope : public ::testing::TestWithParam<std::string> {
 protected:
  EmbeddingMadeBeforeTheScope() {
    if (GetParam() == "mirrored") strategy_ = MirroredStrategy({"/device:CPU:0", "/device:CPU:1"});
    if (GetParam() == "parameter_servers") {
      cluster_.emplace(InProcessClusterOptions{.workers = 1, .ps = 2});
      strategy_ = ParameterServerStrategy(cluster_->resolver(), {.partitioner = FixedShardsPartitioner{2}});
    }
  }
  template <class Module>
  ModuleVariables adopt_in_scope(Module& module) const {
    const VariableScope scope = strategy_.scope();
    return adopt(module);
  }
  void expect_to_be_of_the_strategy(const Variable& table) const {
    EXPECT_EQ(table.copies().size(), GetParam() == "mirrored" ? 2u : 0u);
    EXPECT_EQ(table.shards().size(), GetParam() == "parameter_servers" ? 2u : 0u);
  }

  std::optional<InProcessCluster> cluster_;
  Strategy strategy_;
};
INSTANTIATE_TEST_SUITE_P(All, EmbeddingMadeBeforeTheScope, ::testing::Values("alone", "mirrored", "parameter_servers"),
                         [](const auto& kind) { return kind.param; });

TEST_P(EmbeddingMadeBeforeTheScope, BecomesAVariableOfTheStrategyWithItsValues) {
  Words net;
  const at::Tensor values = weight_of(*net->words).clone();
  ASSERT_FALSE(values.equal(torch::zeros({5, 3})));

  const ModuleVariables variables = adopt_in_scope(net);

  expect_to_be_of_the_strategy(variables.at("words.weight"));
  EXPECT_EQ(variables.at("words.weight").state(), net->words.table().state());
  EXPECT_EQ(variables.at("words.weight").name(), "words");
  EXPECT_TRUE(variables.at("words.weight").value().equal(values));
  EXPECT_EQ(variables.trainable().size(), 3u);
}

TEST_P(EmbeddingMadeBeforeTheScope, IsCalledAsItsModuleCallsIt) {
  Ratings net;

  EXPECT_THAT(names_of(adopt_in_scope(net)), ElementsAre("users.weight", "films.weight"));
}

TEST_P(EmbeddingMadeBeforeTheScope, IsCalledTheSameIfItIsMadeInTheScope) {
  const auto net = strategy_.make<Ratings>();

  EXPECT_THAT(names_of(adopted(net)), ElementsAre("users.weight", "films.weight"));
  expect_to_be_of_the_strategy(net->users.table());
}

TEST_P(EmbeddingMadeBeforeTheScope, StandsInASequential) {
  torch::nn::Sequential net = sequential();
  const at::Tensor expected = net->forward(some_words()).detach();

  const ModuleVariables variables = adopt_in_scope(net);
  auto forward = function([&](const at::Tensor& ids) { return net->forward(ids); });

  expect_to_be_of_the_strategy(variables.at("0.weight"));
  EXPECT_TRUE(strategy_.run_here(forward, some_words()).to(at::kCPU).allclose(expected, 1e-5, 1e-6));
}

TEST_P(EmbeddingMadeBeforeTheScope, IsCalledOutsideOfFunctionsWithItsValuesOfNow) {
  torch::nn::Sequential net = sequential();
  const ModuleVariables variables = adopt_in_scope(net);
  Variable table = variables.at("0.weight");
  table.assign(torch::ones({5, 3}));

  const at::Tensor now = net->forward(some_words());

  EXPECT_TRUE(now.allclose(net[1]->as<torch::nn::Linear>()->forward(torch::ones({2, 2, 3}))));
}

TEST_P(EmbeddingMadeBeforeTheScope, IsWhatTheStrategyMakesAModuleOf) {
  const Words before;

  const auto net = strategy_.make<Words>(before);

  expect_to_be_of_the_strategy(adopted(net).at("words.weight"));
}

TEST_P(EmbeddingMadeBeforeTheScope, IsCopiedAndSavedWithItsValuesAfterwards) {
  torch::nn::Sequential net = sequential(), other = sequential();
  const ModuleVariables variables = adopt_in_scope(net);
  Variable table = variables.at("0.weight");
  const at::Tensor values = torch::arange(15, torch::kFloat).reshape({5, 3});
  table.assign(values);

  const auto copy = net->clone();
  std::stringstream file;
  torch::save(net, file);
  torch::load(other, file);
  table.assign(torch::zeros({5, 3}));

  EXPECT_TRUE(weight_of(*copy).equal(values));
  EXPECT_TRUE(weight_of(*other).equal(values));
}

TEST_P(EmbeddingMadeBeforeTheScope, IsLoadedIntoItsVariable) {
  torch::nn::Sequential saved = sequential(), net = sequential();
  std::stringstream file;
  torch::save(saved, file);
  const ModuleVariables variables = adopt_in_scope(net);

  torch::load(net, file);
  variables.read_module();  // of the others

  EXPECT_TRUE(variables.at("0.weight").value().equal(weight_of(*saved)));
  EXPECT_TRUE(variables.at("1.weight").value().equal(saved->parameters()[1].detach()));
  EXPECT_EQ(adopted(net).at("0.weight").state(), variables.at("0.weight").state());
}

TEST(EmbeddingModule, IsAPlainModuleUntilItIsAdopted) {
  nn::Embedding table({.rows = 5, .dim = 3});
  const at::Tensor weight = table->parameters()[0];

  const at::Tensor rows = table->forward(torch::tensor({{4, -1}, {0, 4}}));
  rows.sum().backward();

  EXPECT_TRUE(rows[0][0].equal(weight[4]));
  EXPECT_TRUE(rows[0][1].equal(torch::zeros({3})));
  EXPECT_TRUE(weight.grad().select(1, 0).equal(torch::tensor({1.0F, 0.0F, 0.0F, 0.0F, 2.0F})));
  EXPECT_THAT(message_of([&] { table->forward(torch::tensor({5})); }), HasSubstr("id 5 of a table with 5 rows"));
  EXPECT_THAT(message_of([&] { table->forward(torch::tensor({0.5F})); }), HasSubstr("expected int64"));
}

TEST(EmbeddingModule, CombinesBagsAsItsVariableDoes) {
  nn::Embedding table({.rows = 5, .dim = 3});
  const at::Tensor bags = torch::tensor({{2, -1}, {4, 2}});
  const at::Tensor expected = table(bags, {.combiner = Combiner::kMean}).detach();
  auto mean = function([&](const at::Tensor& ids) { return table(ids, {.combiner = Combiner::kMean}); });

  const Variable& variable = table.table();

  EXPECT_TRUE(mean(bags).allclose(expected));
  EXPECT_EQ(mean.program(bags).variables.size(), 1u);
  EXPECT_EQ(variable.sizes(), at::IntArrayRef({5, 3}));
}

TEST(EmbeddingModule, IsCalledAsItsModuleCallsItWithinThePrefix) {
  Ratings net;
  nn::Embedding alone({.rows = 5, .dim = 3}), in_prefix({.rows = 5, .dim = 3});

  EXPECT_THAT(names_of(adopt(net, {.prefix = "net"})), ElementsAre("net.users.weight", "net.films.weight"));
  EXPECT_THAT(names_of(adopt(in_prefix, {.prefix = "ids"})), ElementsAre("ids.weight"));
  EXPECT_THAT(names_of(adopt(alone)), ElementsAre("embedding"));
}

TEST(EmbeddingModule, SaysHowItIsCalledAndHowItWasInACheckpointOfOtherNames) {
  const ScopedDirectory directory;
  const CheckpointsOptions options{.directory = directory.path("checkpoints")};
  {
    const nn::Embedding as_it_was({.rows = 5, .dim = 3, .name = "embedding"});
    static_cast<void>(as_it_was.table());
    Checkpoints(Strategy(), options).save(1);
  }
  Ratings net;
  const ModuleVariables variables = adopt(net);
  Checkpoints checkpoints(Strategy(), options);

  EXPECT_THAT(message_of([&] { static_cast<void>(checkpoints.restore()); }),
              HasSubstr("has no values for \"films.weight\", \"users.weight\", but for \"embedding\""));
}

TEST(EmbeddingModule, MadeInAScopeIsOfThatStrategyWhereverItIsAdoptedOrUsedFirst) {
  const MirroredStrategy strategy({"/device:CPU:0", "/device:CPU:1"});
  const auto made_in_scope = [&] {
    const VariableScope scope = strategy.scope();
    return nn::Embedding({.rows = 5, .dim = 3, .seed = 1});
  };
  nn::Embedding to_adopt = made_in_scope();
  const nn::Embedding to_use = made_in_scope();
  const nn::Embedding same({.rows = 5, .dim = 3, .seed = 1});

  const ModuleVariables variables = adopt(to_adopt);

  EXPECT_EQ(variables.at("weight").copies().size(), 2u);
  EXPECT_TRUE(to_use(torch::tensor({4})).equal(weight_of(*same).slice(0, 4)));
  EXPECT_EQ(to_use.table().copies().size(), 2u);
}

TEST(EmbeddingModule, MadeInTheScopeOfADeviceLivesThereWhereverItIsAdopted) {
  const MirroredStrategy strategy({"/device:CPU:0"});
  for (const bool on_demand : {false, true}) {
    const auto made_there = [&] {
      const VariableScope scope = strategy.scope();
      const DeviceScope there("/device:CPU:1");
      return nn::Embedding({.rows = 5, .dim = 3, .on_demand = on_demand});
    };
    nn::Embedding table = made_there();

    const ModuleVariables variables = adopt(table);

    EXPECT_THAT(variables.at("weight").device(), HasSubstr("/device:CPU:1")) << on_demand;
  }
}

TEST(EmbeddingModule, WithRowsOnDemandIsAdoptedBeforeAFunctionUsesIt) {
  const nn::Embedding table({.rows = 5, .dim = 3, .on_demand = true});
  auto find = function([&](const at::Tensor& ids) { return table(ids); });

  EXPECT_THAT(message_of([&] { find(torch::tensor({1})); }),
              AllOf(HasSubstr("table \"embedding\" (float32[5, 3])"), HasSubstr("adopt the module, or call table()")));

  static_cast<void>(table.table());
  EXPECT_TRUE(find(torch::tensor({1})).equal(table.table().value().slice(0, 1, 2)));
}

TEST(EmbeddingModule, RefusesOptionsOfNoTable) {
  const auto refusal = [](const nn::EmbeddingOptions& options) {
    return message_of([&] { static_cast<void>(nn::Embedding(options)); });
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();

  EXPECT_THAT(refusal({.rows = 0, .dim = 3}), HasSubstr("Embedding: rows is 0, expected 1 or more"));
  EXPECT_THAT(refusal({.rows = 5, .dim = 0}), HasSubstr("Embedding: dim is 0, expected 1 or more"));
  EXPECT_THAT(refusal({.rows = 5, .dim = -2, .name = "users"}), HasSubstr("Embedding \"users\": dim is -2"));
  EXPECT_THAT(refusal({.rows = int64_t{1} << 60, .dim = 16}), HasSubstr("expected at most 144115188075855871 of 16"));
  for (const double deviation : {-0.5, nan, std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(refusal({.rows = 5, .dim = 3, .deviation = deviation}),
                AllOf(HasSubstr("Embedding: deviation is "), HasSubstr("expected a number of 0 or more")));
  }
}

TEST(EmbeddingModule, RefusesTensorsOfNoTableInItsOwnWords) {
  const auto refusal = [](const at::Tensor& values) {
    return message_of([&] { nn::EmbeddingImpl<void>({.rows = 5, .dim = 3}, values); });
  };
  const at::Tensor table = torch::ones({5, 3});

  EXPECT_THAT(refusal(torch::Tensor()), HasSubstr("the values are undefined, expected [5, 3] of floating-point"));
  EXPECT_THAT(refusal(torch::ones({5, 3}, torch::kLong)), HasSubstr("the values are int64[5, 3], expected [5, 3]"));
  EXPECT_THAT(message_of([&] { embedding_lookup(table, torch::Tensor()); }), HasSubstr("the ids are undefined"));
  EXPECT_THAT(message_of([&] { embedding_lookup(torch::Tensor(), torch::tensor({1})); }),
              HasSubstr("the table is undefined"));
}

TEST(EmbeddingModule, NamesATableThatThereIsNoMemoryForAndWhatNeedsLess) {
  const nn::EmbeddingOptions huge{.rows = int64_t{1} << 45, .dim = 16, .name = "users"};
  const MirroredStrategy strategy({"/device:CPU:0", "/device:CPU:1"});

  const Status alone = caught([&] { static_cast<void>(nn::Embedding(huge)); });
  const Status in_scope = caught([&] { static_cast<void>(strategy.make<nn::Embedding>(huge)); });

  for (const Status& refused : {alone, in_scope}) {
    EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(refused.message(),
                AllOf(HasSubstr("\"users\""), HasSubstr("float32[35184372088832, 16]"),
                      HasSubstr("needs 2251799813685248 bytes"), HasSubstr("EmbeddingOptions::on_demand")));
  }
}

TEST(EmbeddingModule, GivesUpItsMemoryWhenItBecomesAVariable) {
  const nn::Embedding table({.rows = 1000, .dim = 16});
  const at::Tensor weight = table->parameters()[0];
  EXPECT_EQ(weight.storage().nbytes(), 64'000u);

  static_cast<void>(table.table());

  EXPECT_EQ(weight.storage().nbytes(), 4u);
  EXPECT_EQ(weight.sizes(), at::IntArrayRef({1000, 16}));
}

TEST(EmbeddingModule, StaysFrozenWhenItIsAdopted) {
  Words net;
  net->words->parameters()[0].requires_grad_(false);

  const ModuleVariables variables = adopt(net);

  EXPECT_FALSE(variables.at("words.weight").trainable());
  EXPECT_EQ(variables.trainable().size(), 2u);
}

TEST(EmbeddingModule, BeginsWithValuesOfItsOwn) {
  EXPECT_FALSE(weight_of(*sequential()).equal(weight_of(*sequential())));
}

TEST(EmbeddingModule, IsClonedWithItsValues) {
  torch::nn::Sequential net = sequential();
  const at::Tensor values = weight_of(*net).clone();
  net->eval();

  const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
  {
    torch::NoGradGuard no_gradients;
    net->parameters()[0].zero_();
  }

  ASSERT_NE(copy, nullptr);
  EXPECT_TRUE(weight_of(*copy).equal(values));
  EXPECT_TRUE(copy->parameters()[0].requires_grad());
  EXPECT_FALSE(copy->children()[0]->is_training());
  EXPECT_FALSE(weight_of(*copy).equal(weight_of(*net)));
}

TEST(EmbeddingModule, IsConvertedAsOthersAre) {
  torch::nn::Sequential net = sequential();
  const at::Tensor values = weight_of(*net).clone();

  net->to(torch::kDouble);
  ModuleVariables variables = adopt(net);
  auto forward = function([&](const at::Tensor& ids) { return net->forward(ids); });

  EXPECT_EQ(variables.at("0.weight").dtype(), torch::kDouble);
  EXPECT_TRUE(variables.at("0.weight").value().equal(values.to(torch::kDouble)));
  EXPECT_EQ(forward(some_words()).scalar_type(), torch::kDouble);

  nn::Embedding small({.rows = 5, .dim = 3, .seed = 1});
  small->to(torch::kBFloat16);
  const nn::Embedding same({.rows = 5, .dim = 3, .seed = 1});
  EXPECT_TRUE(weight_of(*small).equal(weight_of(*same).to(torch::kBFloat16)));
}

TEST(EmbeddingModule, SaysThatAVariableIsNotConverted) {
  torch::nn::Sequential net = sequential();
  const ModuleVariables variables = adopt(net);
  const at::Tensor values = variables.at("0.weight").value().clone();

  EXPECT_THAT(message_of([&] { net->to(torch::kDouble); }),
              AllOf(HasSubstr("is float32[5, 3] and cannot become float64"), HasSubstr("before it is adopted")));

  EXPECT_TRUE(variables.at("0.weight").value().equal(values));
}

TEST(EmbeddingModule, ComesBackFromAFile) {
  Words saved, net;
  std::stringstream file;
  torch::save(saved, file);

  torch::load(net, file);

  EXPECT_TRUE(weight_of(*net->words).equal(weight_of(*saved->words)));
  EXPECT_TRUE(net->forward(some_words()).equal(saved->forward(some_words())));
}

TEST(EmbeddingModule, RefusesAFileOfATableOfAnotherSize) {
  for (const bool is_variable : {false, true}) {
    nn::Embedding saved({.rows = 1, .dim = 3}), table({.rows = 5, .dim = 3, .name = "users"});
    if (is_variable) static_cast<void>(table.table());
    const at::Tensor before = is_variable ? table.table().value().clone() : weight_of(*table).clone();
    std::stringstream file;
    torch::save(saved, file);

    EXPECT_THAT(message_of([&] { torch::load(table, file); }),
                AllOf(HasSubstr("table \"users\""), HasSubstr("float32[1, 3], expected [5, 3]")));
    EXPECT_TRUE(table.table().value().equal(before)) << is_variable;
  }
}

TEST(EmbeddingModule, WithRowsOnDemandIsNoPlainTensorAndItsCloneHasItsRows) {
  const nn::Embedding table({.rows = 5, .dim = 3, .on_demand = true});
  EXPECT_EQ(weight_of(*table).storage().nbytes(), 4u) << "it only shows what its variable will be";

  const auto copy = table->clone();

  EXPECT_TRUE(weight_of(*copy).equal(table.table().value()));
  EXPECT_FALSE(weight_of(*copy).equal(torch::zeros({5, 3})));
}

}  // namespace
}  // namespace muster::embedding_module_test

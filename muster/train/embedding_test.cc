#include "muster/train/embedding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "muster/base/test_errors.h"
#include "muster/cluster/in_process_cluster.h"
#include "muster/distribute/coordinator/cluster_coordinator.h"
#include "muster/train/optimizers.h"

namespace muster {
namespace {

at::Tensor ids_of(std::vector<int64_t> ids) { return torch::tensor(ids, torch::kLong); }

TEST(Embedding, GivesARowForEachIdAndZerosForPadding) {
  Variable table(torch::arange(6, torch::kFloat).reshape({3, 2}));
  auto find = function([&](const at::Tensor& ids) { return embedding_lookup(table, ids); });

  const at::Tensor rows = find(ids_of({2, -1, 0, 2}).reshape({2, 2}));

  EXPECT_TRUE(torch::equal(rows, torch::tensor({{{4.0F, 5.0F}, {0.0F, 0.0F}}, {{0.0F, 1.0F}, {4.0F, 5.0F}}})));
}

TEST(Embedding, CombinesBagsBySumMeanAndSqrtn) {
  Variable table(torch::arange(6, torch::kFloat).reshape({3, 2}));
  const at::Tensor bags = ids_of({2, 1, 0, -1, -1, -1}).reshape({3, 2}),
                   weights = torch::tensor({{1.0F, 3.0F}, {2.0F, 9.0F}, {1.0F, 1.0F}});
  auto combine = function([&](const at::Tensor& ids, const at::Tensor& w, int how) {
    return embedding_lookup(table, ids, {.combiner = static_cast<Combiner>(how), .weights = w});
  });

  const at::Tensor sum = torch::tensor({{10.0F, 14.0F}, {0.0F, 2.0F}, {0.0F, 0.0F}});
  EXPECT_TRUE(torch::allclose(combine(bags, weights, static_cast<int>(Combiner::kSum)), sum));
  EXPECT_TRUE(torch::allclose(combine(bags, weights, static_cast<int>(Combiner::kMean)),
                              sum / torch::tensor({{4.0F}, {2.0F}, {1.0F}})));
  EXPECT_TRUE(torch::allclose(combine(bags, weights, static_cast<int>(Combiner::kSqrtn)),
                              sum / torch::tensor({{std::sqrt(10.0F)}, {2.0F}, {1.0F}})));
}

// As TensorFlow's safe_embedding_lookup_sparse: mean and sqrtn leave out what has no positive weight, a sum does not.
TEST(Embedding, LeavesIdsOutOfMeansWhoseWeightIsNotPositive) {
  Variable table(torch::arange(8, torch::kFloat).reshape({4, 2}));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor bags = ids_of({2, 1, 0, 3, 1, -1, 2, 3, -1}).reshape({3, 3});
  const at::Tensor weights = torch::tensor({{1.0F, -3.0F, 0.0F}, {-1.0F, 0.0F, nan}, {1e-20F, nan, nan}});
  auto combine = function([&](const at::Tensor& ids, const at::Tensor& w, int how) {
    return embedding_lookup(table, ids, {.combiner = static_cast<Combiner>(how), .weights = w});
  });

  const at::Tensor row_or_none = torch::tensor({{4.0F, 5.0F}, {0.0F, 0.0F}, {4.0F, 5.0F}});
  EXPECT_TRUE(torch::allclose(combine(bags, weights, static_cast<int>(Combiner::kMean)), row_or_none));
  const at::Tensor large_enough = weights.masked_fill(weights.eq(1e-20F), 0.5);
  EXPECT_TRUE(torch::allclose(combine(bags, large_enough, static_cast<int>(Combiner::kSqrtn)), row_or_none));
  const at::Tensor sum = combine(bags.narrow(0, 0, 2), weights.narrow(0, 0, 2), static_cast<int>(Combiner::kSum));
  EXPECT_TRUE(torch::equal(sum, torch::tensor({{4.0F - 6, 5.0F - 9}, {-6.0F, -7.0F}})));
}

TEST(Embedding, DoesNotTrainWhatABagLeavesOut) {
  Variable table(torch::ones({4, 2}));
  const Adam adam({table}, {.learning_rate = 0.1});
  auto step = function([&](const at::Tensor& ids, const at::Tensor& weights) {
    adam.minimize(embedding_lookup(table, ids, {.combiner = Combiner::kMean, .weights = weights}).sum());
  });

  step(ids_of({0, 1, -1, 3}).reshape({1, 4}), torch::tensor({{1.0F, 0.0F, 1.0F, -1.0F}}));

  EXPECT_TRUE(torch::allclose(table.value(), torch::tensor({{0.9F, 0.9F}, {1.0F, 1.0F}, {1.0F, 1.0F}, {1.0F, 1.0F}})));
}

TEST(Embedding, HasGradientsByWeightsOfEmptyBagsToo) {
  Variable table(torch::ones({2, 2})), weights(torch::ones({2, 2}));
  auto slope = function([&](const at::Tensor& ids, int how) {
    return gradient(embedding_lookup(table, ids, {.combiner = static_cast<Combiner>(how), .weights = weights}).sum(),
                    weights);
  });

  for (const Combiner how : {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn}) {
    const at::Tensor found = slope(ids_of({0, 1, -1, -1}).reshape({2, 2}), static_cast<int>(how));
    EXPECT_TRUE(found.isfinite().all().item<bool>()) << found;
  }
}

TEST(Embedding, BeginsWithValuesOfItsOwn) {
  auto make = [](std::optional<uint64_t> seed, bool on_demand) {
    return nn::Embedding({.rows = 5, .dim = 3, .seed = seed, .on_demand = on_demand}).table().value();
  };
  for (const bool on_demand : {false, true}) {
    torch::manual_seed(1);
    const at::Tensor a = make({}, on_demand), b = make({}, on_demand);
    torch::manual_seed(1);
    const at::Tensor again = make({}, on_demand), seeded = make(7, on_demand), other = make(8, on_demand);

    EXPECT_FALSE(torch::equal(a, b));
    EXPECT_TRUE(torch::equal(a, again)) << "torch::manual_seed brings them back";
    EXPECT_TRUE(torch::equal(seeded, make(7, on_demand)));
    EXPECT_FALSE(torch::equal(seeded, other));
  }
  const Variable first(InitialValue::uniform({4}, 0, 1)), second(InitialValue::uniform({4}, 0, 1));
  EXPECT_FALSE(torch::equal(first.value(), second.value()));
}

struct BagOfWordsImpl : torch::nn::Module {
  BagOfWordsImpl() {
    words = register_module("words", nn::Embedding({.rows = 10, .dim = 4, .seed = 3}));
    top = register_module("top", torch::nn::Linear(4, 1));
  }
  at::Tensor forward(const at::Tensor& ids) { return top->forward(words->forward(ids).mean(1)); }

  nn::Embedding words{nullptr};
  torch::nn::Linear top{nullptr};
};
TORCH_MODULE(BagOfWords);

TEST(Embedding, IsAModuleWhoseTableIsAmongTheVariables) {
  BagOfWords net;
  const ModuleVariables variables = adopt(net);
  ASSERT_EQ(variables.all().size(), 3u);
  EXPECT_EQ(variables.at("words.weight").state(), net->words.table().state());
  EXPECT_EQ(adopted(net).trainable().size(), 3u);

  const Sgd sgd(net, {.learning_rate = 0.5});
  const at::Tensor before = net->words.table().value().clone();
  auto step = function([&](at::Tensor ids) { sgd.minimize((net->forward(ids) - 1).square().mean()); });
  step(torch::tensor({{2, 3}}));
  const at::Tensor changed = (net->words.table().value() != before).any(1);
  EXPECT_TRUE(torch::equal(changed.nonzero().flatten(), torch::tensor({2, 3})));
  variables.write_back();  // of the others: the module reads the table itself
}

TEST(Embedding, StandsInASequential) {
  torch::nn::Sequential net(nn::Embedding({.rows = 5, .dim = 3}), torch::nn::Linear(3, 2));
  auto variables = adopt(net);
  auto forward = function([&](at::Tensor ids) { return net->forward(ids); });
  const at::Tensor table = variables.at("0.weight").value();
  const at::Tensor expected = torch::linear(table.index_select(0, torch::tensor({4, 0})),
                                            variables.at("1.weight").value(), variables.at("1.bias").value());
  EXPECT_TRUE(torch::allclose(forward(torch::tensor({4, 0})), expected));
}

TEST(Embedding, IsOneVariableUnderTwoNames) {
  const nn::Embedding shared({.rows = 5, .dim = 3});
  torch::nn::Sequential net(shared, torch::nn::Linear(3, 3));
  net->register_module("again", shared.ptr());
  EXPECT_EQ(adopt(net).all().size(), 3u);
}

TEST(Embedding, HasAParameterThatIsNoTensorToComputeWith) {
  nn::Embedding table({.rows = 5, .dim = 3});
  const ModuleVariables variables = adopt(table);
  auto whole = function([&] { return table->parameters()[0] * 2; });
  try {
    whole();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("use the variable"));
  }
}

TEST(Embedding, OfAModuleIsCutByTheStrategy) {
  const InProcessCluster cluster({.workers = 1, .ps = 2});
  ParameterServerStrategy strategy(cluster.resolver(), {.partitioner = FixedShardsPartitioner{2}});
  auto net = strategy.make<BagOfWords>();
  EXPECT_EQ(net->words.table().shards().size(), 2u);
  EXPECT_EQ(adopted(net).at("words.weight").shards().size(), 2u);
}

TEST(Embedding, NamesAnIdThatIsTooLargeAndItsTable) {
  Variable table(torch::zeros({3, 2}), {.name = "words"});
  auto find = function([&](const at::Tensor& ids) { return embedding_lookup(table, ids); });
  find(ids_of({1}));

  try {
    find(ids_of({3}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kOutOfRange);
    EXPECT_THAT(error.what(), testing::HasSubstr("id 3 of a table with 3 rows"));
    EXPECT_THAT(error.what(), testing::HasSubstr("variable \"words\": id "));
  }
}

TEST(Embedding, NamesTheTableOnParameterServersThatAnIdIsTooLargeFor) {
  InProcessCluster cluster({.workers = 1, .ps = 2});
  ParameterServerStrategy strategy(cluster.resolver(), {.partitioner = FixedShardsPartitioner{.num_shards = 2}});
  auto table = strategy.make<Variable>(torch::zeros({4, 2}), VariableOptions{.name = "words"});
  ClusterCoordinator coordinator(strategy);
  auto find = function([&](const at::Tensor& ids) { return embedding_lookup(table, ids).sum(); });

  EXPECT_THAT(testing_support::message_of([&] { coordinator.schedule(find, ids_of({4})); }),
              testing::HasSubstr("variable \"words\": id "))
      << "while it is traced";
  coordinator.schedule(find, ids_of({3}));
  coordinator.join();
  coordinator.schedule(find, ids_of({4}));
  try {
    coordinator.join();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("id 4 of a table with 4 rows"));
    EXPECT_THAT(error.what(), testing::HasSubstr("\"words"));
  }
}

TEST(Embedding, TrainsTablesInPartsAsItTrainsThemWhole) {
  InProcessCluster cluster({.workers = 1, .ps = 2});
  ParameterServerStrategy strategy(cluster.resolver(), {.partitioner = FixedShardsPartitioner{.num_shards = 2}});
  torch::manual_seed(3);
  const at::Tensor start = torch::randn({7, 4}), other = torch::randn({5, 4});
  auto a = strategy.make<Variable>(start), b = strategy.make<Variable>(other);
  Variable whole_a(start), whole_b(other);
  auto make_step = [](const Variable& x, const Variable& y, const Optimizer& rule) {
    return function([&x, &y, &rule](const at::Tensor& ids) {
      at::Tensor loss = (lookup(x, ids) * lookup(y, ids.clamp_max(4))).sum() + lookup(x, ids.flip(0)).square().sum();
      rule.minimize(loss);
      return loss;
    });
  };
  Adagrad in_parts({a, b}, {.learning_rate = 0.1}), in_whole({whole_a, whole_b}, {.learning_rate = 0.1});
  auto step = make_step(a, b, in_parts), whole_step = make_step(whole_a, whole_b, in_whole);
  ClusterCoordinator coordinator(strategy);

  for (int i = 0; i < 3; ++i) {
    const at::Tensor ids = torch::randint(0, 7, {6}, torch::kLong);
    auto loss = coordinator.schedule(step, ids);
    EXPECT_NEAR(loss.fetch().item<float>(), whole_step(ids).item<float>(), 1e-3);
    coordinator.join();
  }

  EXPECT_TRUE(torch::allclose(a.value(), whole_a.value(), 1e-5, 1e-5));
  EXPECT_TRUE(torch::allclose(b.value(), whole_b.value(), 1e-5, 1e-5));
}

TEST(Embedding, NeverReadsItsTableAsAWhole) {
  InProcessCluster cluster({.workers = 1, .ps = 1});
  ParameterServerStrategy strategy(cluster.resolver());
  Variable table = [&] {
    auto scope = strategy.scope();
    return nn::Embedding({.rows = 1000, .dim = 4, .name = "users"}).table();
  }();
  auto find = function([&](const at::Tensor& ids) { return lookup(table, ids); });

  const Program program = find.program(ids_of({1, 2}));

  // Whatever leaves the table is a gather of rows: nothing else reads it.
  const ValueId value = program.variables.at(0).value;
  for (const Instruction& instruction : program.instructions) {
    bool reads = false;
    for (const Argument& argument : instruction.arguments) {
      for_each_value(argument, [&](ValueId used) { reads = reads || used == value; });
    }
    if (!reads) continue;
    EXPECT_EQ(program.op_of(instruction).name, "muster_rows::gather");
  }
  EXPECT_EQ(strategy.run(find, ids_of({1, 2})).value().size(0), 2);
}

TEST(Embedding, IsTrainedWithoutOneReadOfItsTable) {
  InProcessCluster cluster({.workers = 1, .ps = 2});
  ParameterServerStrategy strategy(cluster.resolver(), {.partitioner = FixedShardsPartitioner{.num_shards = 2}});
  for (const bool on_demand : {false, true}) {
    auto users = strategy.make<nn::Embedding>(
        nn::EmbeddingOptions{.rows = 1000, .dim = 4, .name = "users", .seed = 1, .on_demand = on_demand});
    const Adam adam({users.table()}, {.learning_rate = 0.05});
    auto step = function([&](at::Tensor ids) {
      at::Tensor loss = (users(ids) - 1).square().sum();
      adam.minimize(loss);
      return loss;
    });
    ClusterCoordinator coordinator(strategy);

    const at::Tensor ids = ids_of({1, 999, 500, 1});
    const float first = coordinator.schedule(step, ids).fetch().item<float>();
    for (int i = 0; i < 50; ++i) coordinator.schedule(step, ids);
    coordinator.join();

    EXPECT_LT(coordinator.schedule(step, ids).fetch().item<float>(), first / 10);
    for (int i = 0; i < 2; ++i) {
      for (const VariableInfo& info : cluster.worker({"ps", i}).variables()) {
        EXPECT_EQ(info.whole_reads, 0u) << info.name;
      }
    }
  }
}

}  // namespace
}  // namespace muster

#include <absl/synchronization/notification.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <sstream>

#include "muster/base/log.h"
#include "muster/base/test_errors.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/distribute/local_strategies.h"
#include "muster/fit/callbacks/callbacks.h"
#include "muster/fit/callbacks/rate_callbacks.h"
#include "muster/fit/model.h"
#include "muster/train/embedding.h"

namespace muster::model_strategies_test {
namespace {

using testing_support::caught;
using testing_support::message_of;

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kQuiet = 0;

// Each test is of one process, of two devices of it, and of parameter servers.
class FitUnderAnyStrategy : public ::testing::TestWithParam<std::string> {
 protected:
  FitUnderAnyStrategy() {
    if (GetParam() == "mirrored") strategy_ = MirroredStrategy({"/device:CPU:0", "/device:CPU:1"});
    if (GetParam() == "parameter_servers") {
      cluster_.emplace(InProcessClusterOptions{.workers = 2, .ps = 2, .transport = Transport::kLocal});
      strategy_ = testing_support::strategy_of(*cluster_, Transport::kLocal);
    }
  }
  template <class Module, class... Args>
  Module made(Args&&... args) const {
    torch::manual_seed(1);
    return strategy_.make<Module>(std::forward<Args>(args)...);
  }
  static at::Tensor weight_of(const Model& model) { return model.variables().all()[0].value().clone(); }

  std::optional<InProcessCluster> cluster_;
  Strategy strategy_;
  const at::Tensor x_ = (torch::manual_seed(2), torch::randn({32, 2})), y_ = x_.sum(1, true);
  const Dataset data_ = Dataset::tensors({x_, y_}).batch(8);
};
INSTANTIATE_TEST_SUITE_P(All, FitUnderAnyStrategy, ::testing::Values("alone", "mirrored", "parameter_servers"),
                         [](const auto& kind) { return kind.param; });

TEST_P(FitUnderAnyStrategy, TakesSingleBatchesWithWeights) {
  const auto compiled = [](torch::nn::Linear net) {
    return compile(std::move(net), {.optimizer = Sgd({.learning_rate = 0.1}), .loss = mean_squared_error});
  };
  torch::manual_seed(1);
  Model alone = compiled(torch::nn::Linear(2, 1));
  Model model = compiled(made<torch::nn::Linear>(2, 1));
  const ModelInput batch{x_, y_, torch::linspace(0, 2, 32)};

  const double before = model.test_on_batch(batch).at("loss");

  EXPECT_NEAR(before, alone.test_on_batch(batch).at("loss"), 1e-5);
  EXPECT_NEAR(model.train_on_batch(batch).at("loss"), before, 1e-5);
  EXPECT_LT(model.test_on_batch(batch).at("loss"), before);
  alone.train_on_batch(batch);
  EXPECT_TRUE(weight_of(model).allclose(weight_of(alone), 1e-4, 1e-5));
  EXPECT_EQ(model.optimizer().iterations(), 1);
}

TEST_P(FitUnderAnyStrategy, SaysThatASingleBatchIsNoStepOfSeveral) {
  Model model = compile(made<torch::nn::Linear>(2, 1), {.loss = mean_squared_error, .accumulate = 4});

  EXPECT_THAT(message_of([&] { model.train_on_batch(x_, y_); }),
              HasSubstr("train_on_batch: a step of this model takes 4 batches (accumulate)"));
  model.train_on_batch(data_);

  EXPECT_EQ(model.optimizer().iterations(), 1);
}

TEST_P(FitUnderAnyStrategy, TakesNoStepOfNoExamples) {
  Model model = compile(made<torch::nn::Linear>(2, 1), {.optimizer = Adam(), .loss = mean_squared_error});
  model.train_on_batch(x_, y_);  // from now on the means of gradients would move the weights
  const at::Tensor before = weight_of(model), x = torch::ones({0, 2}), y = torch::ones({0, 1});

  const Status trained = caught([&] { model.train_on_batch(x, y); });
  const Status tested = caught([&] { model.test_on_batch(x, y); });
  const Status fitted = caught([&] { model.fit({x, y}, {.verbose = kQuiet}); });

  for (const Status& status : {trained, tested, fitted}) {
    EXPECT_EQ(status.code(), StatusCode::kOutOfRange) << status;
    EXPECT_THAT(status.message(), HasSubstr("there are no examples"));
  }
  EXPECT_EQ(model.optimizer().iterations(), 1);
  EXPECT_TRUE(weight_of(model).equal(before));
}

TEST_P(FitUnderAnyStrategy, EvaluatesAndPredictsWithAModelThatHasNothingToTrain) {
  torch::nn::Linear net(2, 1);
  for (at::Tensor& parameter : net->parameters()) parameter.requires_grad_(false);
  const at::Tensor expected = net->forward(x_);
  Model model = compile(net, {.optimizer = Adam(), .loss = mean_squared_error, .strategy = strategy_});

  EXPECT_TRUE(model.predict(x_).allclose(expected, 1e-4, 1e-5));
  EXPECT_NEAR(model.evaluate(data_).at("loss"), (expected - y_).square().mean().item<double>(), 1e-4);
  EXPECT_NEAR(model.test_on_batch(x_, y_).at("loss"), model.evaluate(data_).at("loss"), 1e-4);
  EXPECT_THAT(message_of([&] { model.fit(data_, {.verbose = kQuiet}); }),
              HasSubstr("fit: the model has no parameter that is trained, so there is nothing to train; expected one "
                        "with requires_grad_(true), before it is compiled"));
  EXPECT_THAT(message_of([&] { model.train_on_batch(x_, y_); }), HasSubstr("train_on_batch: the model has no"));
}

TEST_P(FitUnderAnyStrategy, PredictsWithTheVariablesOfTheStrategy) {
  Model model = compile(made<torch::nn::Linear>(2, 1), {.loss = mean_squared_error});
  model.fit(data_, {.verbose = kQuiet});
  const at::Tensor weight = weight_of(model), bias = model.variables().all()[1].value();

  EXPECT_TRUE(model.predict(x_).allclose(torch::linear(x_, weight, bias), 1e-4, 1e-5));
}

TEST_P(FitUnderAnyStrategy, TrainsATableThatWasMadeBeforeTheStrategy) {
  torch::nn::Sequential net(nn::Embedding({.rows = 4, .dim = 3}), torch::nn::Linear(3, 1));
  const at::Tensor ids = torch::arange(32) % 3;
  Model model =
      compile(net, {.optimizer = Sgd({.learning_rate = 0.1}), .loss = mean_squared_error, .strategy = strategy_});
  const at::Tensor before = weight_of(model);

  model.fit(Dataset::tensors({ids, y_}).batch(8), {.verbose = kQuiet});

  EXPECT_TRUE(weight_of(model).ne(before).any(1).equal(torch::tensor({true, true, true, false})));
}

TEST_P(FitUnderAnyStrategy, BringsTheBestWeightsBack) {
  Model model = compile(made<torch::nn::Linear>(2, 1), {.loss = mean_squared_error});
  std::vector<at::Tensor> weights;
  // A rising number is worse: the first epoch is the best.
  const LambdaCallback look(
      {.add_logs = [](Training& training, Logs& logs) { logs.set("score", training.epoch); },
       .on_epoch_end = [&](Training& training, const Logs&) { weights.push_back(weight_of(training.model)); }});

  const History history = model.fit(
      data_, {.epochs = 9,
              .callbacks = {EarlyStopping({.monitor = "score", .patience = 2, .restore_best_weights = true}), look},
              .verbose = kQuiet});

  EXPECT_THAT(history.epochs(), ElementsAre(0, 1, 2));
  EXPECT_FALSE(weights[2].equal(weights[0]));
  EXPECT_TRUE(weight_of(model).equal(weights[0]));
}

struct TracedNetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    ++calls();
    return layer(x);
  }
  static std::atomic<int>& calls() {
    static std::atomic<int> count{0};
    return count;
  }
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(2, 1))};
};
TORCH_MODULE(TracedNet);

TEST_P(FitUnderAnyStrategy, ChangesTheRateWithoutANewTrace) {
  Model model = compile(made<TracedNet>(), {.optimizer = Sgd({.learning_rate = 0.4}), .loss = mean_squared_error});
  std::vector<int> calls;
  const LambdaCallback look({.on_epoch_end = [&](Training&, const Logs&) { calls.push_back(TracedNetImpl::calls()); }});
  std::vector<at::Tensor> weights{weight_of(model)};
  const LambdaCallback keep(
      {.on_epoch_end = [&](Training& training, const Logs&) { weights.push_back(weight_of(training.model)); }});

  // Batches that workers cannot share: a smaller one is another trace.
  const Dataset data = Dataset::tensors({x_, y_}).batch(GetParam() == "parameter_servers" ? 1 : 8);

  const History history = model.fit(
      data, {.epochs = 4,
             .callbacks = {LearningRateScheduler([](int epoch, double) { return epoch < 2 ? 0.1 : 0.0; }), look, keep},
             .verbose = kQuiet});

  EXPECT_THAT(history["learning_rate"], ElementsAre(0.1, 0.1, 0, 0));
  EXPECT_EQ(calls.front(), calls.back());
  EXPECT_FALSE(weights[1].equal(weights[0]));
  EXPECT_TRUE(weights[4].equal(weights[2])) << "at a rate of 0";
}

// The shares of two replicas: 3 and 2 rows, 2 and 1, 1 and none.
TEST(FitOfUnevenBatches, CountsEachReplicaAlikeAndOneWithoutRowsAsNothing) {
  const std::vector<std::string> devices{"/device:CPU:0", "/device:CPU:1"};
  for (const Strategy& strategy : std::vector<Strategy>{MirroredStrategy(devices), CentralStorageStrategy(devices)}) {
    for (const int64_t rows : {5, 3, 1}) {
      torch::manual_seed(2);
      const at::Tensor x = torch::randn({rows, 2}), y = x.sum(1, true);
      torch::manual_seed(1);
      torch::nn::Linear alone(2, 1);
      at::Tensor loss = torch::zeros({});
      for (const at::Tensor& share : torch::arange(rows).split((rows + 1) / 2)) {
        loss = loss + torch::mse_loss(alone->forward(x.index_select(0, share)), y.index_select(0, share)) / 2;
      }
      loss.backward();
      torch::manual_seed(1);
      auto net = strategy.make<torch::nn::Linear>(2, 1);
      Model model = compile(net, {.optimizer = Sgd({.learning_rate = 0.1}), .loss = mean_squared_error});

      model.fit(Dataset::tensors({x, y}).batch(rows), {.verbose = kQuiet});

      for (const auto& parameter : alone->named_parameters()) {
        const at::Tensor expected = parameter->detach() - 0.1 * parameter->grad();
        EXPECT_TRUE(adopted(net).at(parameter.key()).value().allclose(expected, 1e-4, 1e-6)) << parameter.key() << rows;
      }
    }
  }
}

TEST_P(FitUnderAnyStrategy, ReadsWhatAFunctionMakesForEachOfItsPipelines) {
  std::atomic<int64_t> rows{0};  // that it was asked for, of 8
  const auto make = [&, all = Dataset::tensors({x_, y_})](const InputContext& input) {
    rows = input.per_replica_batch_size(8);
    return all.shard(input).batch(rows);
  };
  Model model =
      compile(made<torch::nn::Linear>(2, 1), {.optimizer = Sgd({.learning_rate = 0}), .loss = mean_squared_error});
  int64_t steps = 0;
  const LambdaCallback count({.on_epoch_end = [&](Training& training, const Logs&) { steps = training.steps; }});

  const History history = model.fit(make, {.validation_data = make, .callbacks = {count}, .verbose = kQuiet});

  const double loss = model.evaluate(data_).at("loss");
  EXPECT_EQ(rows, GetParam() == "mirrored" ? 4 : 8);
  EXPECT_EQ(steps, 4);
  EXPECT_NEAR(history["loss"][0], loss, 1e-5);
  EXPECT_NEAR(history["val_loss"][0], loss, 1e-5);
  EXPECT_NEAR(model.evaluate(make).at("loss"), loss, 1e-5);
  EXPECT_TRUE(model.predict(make).allclose(model.predict(x_), 1e-4, 1e-5));
}

struct TypedNetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = layer(x);
    type() = y.scalar_type();
    return y;
  }
  static std::atomic<at::ScalarType>& type() {
    static std::atomic<at::ScalarType> of_last{at::kFloat};
    return of_last;
  }
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(2, 1))};
};
TORCH_MODULE(TypedNet);

TEST_P(FitUnderAnyStrategy, TrainsWithHalfOfTheDigitsAndKeepsTheVariables) {
  std::map<at::ScalarType, double> losses;
  for (const bool mixed : {false, true}) {
    Model model =
        compile(made<TypedNet>(),
                {.optimizer = Sgd({.learning_rate = 0.05}), .loss = mean_squared_error, .mixed_precision = mixed});
    const History history = model.fit(data_, {.epochs = 3, .verbose = kQuiet});

    EXPECT_LT(history["loss"].back(), history["loss"].front());
    EXPECT_EQ(weight_of(model).scalar_type(), at::kFloat);
    losses[TypedNetImpl::type()] = history["loss"].front();
  }
  ASSERT_TRUE(losses.contains(at::kBFloat16) && losses.contains(at::kFloat));
  // Workers of parameter servers take their steps in an order of their own.
  EXPECT_NEAR(losses[at::kBFloat16] / losses[at::kFloat], 1, GetParam() == "parameter_servers" ? 0.5 : 0.1);
}

TEST_P(FitUnderAnyStrategy, WeighsClassesAsOneProcessDoes) {
  const at::Tensor classes = torch::arange(32) % 3;
  const auto loss_of = [&](const torch::nn::Linear& net) {
    Model model = compile(net, {.optimizer = Sgd({.learning_rate = 0}), .loss = sparse_categorical_cross_entropy});
    return model.fit(Dataset::tensors({x_, classes}).batch(8),
                     {.class_weight = {{0, 3.0}, {2, 0.5}}, .verbose = kQuiet})["loss"][0];
  };
  const torch::nn::Linear net = made<torch::nn::Linear>(2, 3);
  torch::manual_seed(1);
  const torch::nn::Linear alone(2, 3);

  EXPECT_NEAR(loss_of(net), loss_of(alone), 1e-5);
}

TEST_P(FitUnderAnyStrategy, ShowsWhatLayersGiveOnceAStepWasTrained) {
  Model model = compile(made<torch::nn::Sequential>(nn::Embedding({.rows = 40, .dim = 4}), torch::nn::Flatten(),
                                                    torch::nn::Linear(12, 1)),
                        {.loss = mean_squared_error});
  const at::Tensor ids = torch::randint(0, 40, {32, 3}, torch::kLong);
  EXPECT_THAT(model.summary(), Not(HasSubstr("gives")));

  model.fit(Dataset::tensors({ids, y_}).batch(8), {.verbose = kQuiet});

  const std::string summary = model.summary();
  EXPECT_THAT(summary, ContainsRegex("^variable +shape +numbers  layer gives +where\n"));
  EXPECT_THAT(summary, ContainsRegex("\n0.weight[^ ]* +\\[40, 4\\] +160  \\[batch, 3, 4\\]  [^ ]"));
  EXPECT_THAT(summary, ContainsRegex("\n2.weight[^ ]* +\\[1, 12\\] +12  \\[batch, 1\\]     [^ ]"));
  EXPECT_THAT(summary, ContainsRegex("\n2.bias[^ ]* +\\[1\\] +1 {17}[^ ]")) << "each layer once";
  std::istringstream lines(summary);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

TEST(Summary, SaysWhichRowsOfATableAreWhere) {
  const InProcessCluster cluster({.workers = 1, .ps = 2, .transport = Transport::kLocal});
  const Strategy strategy =
      testing_support::strategy_of(cluster, Transport::kLocal, {.partitioner = fixed_size_partitioner(2)});
  const Model model = compile(strategy.make<nn::Embedding>(nn::EmbeddingOptions{.rows = 5001, .dim = 100}),
                              {.loss = mean_squared_error});

  const std::string summary = model.summary();

  EXPECT_THAT(summary, ContainsRegex("\n[^ ]+ +\\[5001, 100\\] +500,100  2 parts\n"
                                     "  rows 0 to 2,500 +\\[2501, 100\\] +250,100  /job:ps/[^\n]*task:0[^\n]*\n"
                                     "  rows 2,501 to 5,000 +\\[2500, 100\\] +250,000  /job:ps/[^\n]*task:1"));
  EXPECT_THAT(summary, HasSubstr("500,100 numbers are trained"));
}

TEST(CoordinatorOfAModel, IsOneForAllThatItDoes) {
  const InProcessCluster cluster({.workers = 1, .ps = 1, .transport = Transport::kLocal});
  const ParameterServerStrategy strategy = testing_support::strategy_of(cluster, Transport::kLocal);
  const at::Tensor x = torch::ones({8, 2});
  const auto coordinator = [&] {
    absl::MutexLock lock(&strategy.servers()->mu);
    return strategy.servers()->coordinator;
  };
  Model model = compile(strategy.make<torch::nn::Linear>(2, 1), {.loss = mean_squared_error});
  const auto of_model = coordinator();

  for (const auto& call : {std::function([&] { model.fit({x, x.sum(1, true)}, {.verbose = kQuiet}); }),
                           std::function([&] { model.evaluate({x, x.sum(1, true)}); }),
                           std::function([&] { model.train_on_batch(x, x.sum(1, true)); })}) {
    call();
    EXPECT_FALSE(of_model.expired()) << "its workers would be connected, and what they read opened, anew";
    EXPECT_EQ(coordinator().lock(), of_model.lock());
  }
}

// ---- Callbacks that only watch, on parameter servers
class FitBesideWatchers : public ::testing::Test {
 protected:
  History fit(int epochs, const Callbacks& callbacks) {
    return model_.fit(data_, {.epochs = epochs, .callbacks = callbacks, .verbose = kQuiet});
  }

  const InProcessCluster cluster_{{.workers = 2, .ps = 1, .transport = Transport::kLocal}};
  const Strategy strategy_ = testing_support::strategy_of(cluster_, Transport::kLocal);
  Model model_ = compile(strategy_.make<torch::nn::Linear>(2, 1), {.loss = mean_squared_error});
  // Four whole batches, of which no worker gets a part.
  const at::Tensor x_ = torch::ones({4, 8, 2});
  const Dataset data_ = Dataset::tensors({x_, x_.sum(2, true)});
};

TEST_F(FitBesideWatchers, TakesTheStepsOfTheNextEpochMeanwhile) {
  absl::Notification next_epoch_taken;
  const LambdaCallback steers({.on_epoch_end = [&](Training& training, const Logs&) {
    if (training.epoch == 1) next_epoch_taken.Notify();
  }});
  std::vector<std::string> seen;
  const LambdaCallback slow(
      {.on_epoch_begin = [&](Training& training) { seen.push_back(str_cat("begin ", training.epoch)); },
       .on_epoch_end =
           [&](Training& training, const Logs& logs) {
             if (training.epoch == 0) next_epoch_taken.WaitForNotification();
             seen.push_back(str_cat("end ", training.epoch, " after ", training.steps, ": ", logs.size()));
             training.stop = true;  // of its own copy
           },
       .on_epoch_over = [&](Training& training) { seen.push_back(str_cat("over ", training.epoch)); },
       .on_train_end = [&](Training&, const Logs&) { seen.emplace_back("all over"); },
       .only_watches = true});

  const History history = fit(2, {slow, steers});

  EXPECT_THAT(history.epochs(), ElementsAre(0, 1));
  EXPECT_THAT(
      seen, ElementsAre("begin 0", "end 0 after 4: 1", "over 0", "begin 1", "end 1 after 8: 1", "over 1", "all over"));
}

TEST_F(FitBesideWatchers, SaysOnceThatSeveralStepsAreNoProgramThere) {
  Model model =
      compile(strategy_.make<torch::nn::Linear>(2, 1), {.loss = mean_squared_error, .steps_per_execution = 2});
  const auto said = [&](const FitOptions& options) {
    const LogCapture log;
    model.fit(data_.repeat(options.steps_per_epoch ? std::nullopt : std::optional<int64_t>(1)), options);
    return std::ranges::count_if(log.lines(), [](const LogLine& line) {
      return line.text.find("steps_per_execution 2 has no effect") != std::string::npos;
    });
  };

  EXPECT_EQ(said({.epochs = 3, .verbose = kQuiet}), 1);
  EXPECT_EQ(said({.epochs = 3, .steps_per_epoch = 4, .verbose = kQuiet}), 0);
}

TEST_F(FitBesideWatchers, EndsWithWhatAWatcherThrows) {
  bool ended = false;
  const LambdaCallback full({.on_epoch_end = [&](Training&, const Logs&) { throw unavailable("the disk is full"); },
                             .on_train_end = [&](Training&, const Logs&) { ended = true; },
                             .only_watches = true});

  EXPECT_THAT(message_of([&] { fit(1, {full}); }), HasSubstr("the disk is full"));
  EXPECT_FALSE(ended);
  EXPECT_THAT(message_of([&] { fit(1'000'000'000, {full}); }), HasSubstr("the disk is full"));
}

TEST_F(FitBesideWatchers, LetsThemSeeAllEpochsOfATrainingThatFails) {
  int seen = 0;
  const LambdaCallback watches({.on_epoch_end = [&](Training&, const Logs&) { ++seen; }, .only_watches = true});
  const LambdaCallback dies({.on_epoch_end = [](Training& training, const Logs&) {
    if (training.epoch == 2) throw aborted("lost");
  }});

  EXPECT_THROW(fit(9, {watches, dies}), Error);

  EXPECT_EQ(seen, 3);
}

TEST_F(FitBesideWatchers, LetsThemAskWhatAStepDoesWhenItIsLeft) {
  Model model = compile(strategy_.make<torch::nn::Linear>(2, 2), {.loss = sparse_categorical_cross_entropy});
  const Dataset data = Dataset::tensors({x_, torch::zeros({4, 8}, torch::kLong)});
  std::function<std::optional<Program>()> program;
  const LambdaCallback keeps(
      {.on_epoch_end = [&](Training& training, const Logs&) { program = training.program; }, .only_watches = true});

  model.fit(data, {.class_weight = {{1, 2.0}}, .callbacks = {keeps}, .verbose = kQuiet});

  EXPECT_TRUE(program().has_value());
}

TEST_F(FitBesideWatchers, GoesOnAfterAnEpochInWhichNoWorkerHadEnoughBatchesForAStep) {
  Model model = compile(strategy_.make<torch::nn::Linear>(2, 1), {.loss = mean_squared_error, .accumulate = 4});
  int epochs = 0;
  const LambdaCallback count({.on_epoch_begin = [&](Training&) { ++epochs; }});
  const auto data = [&](int short_one) {
    const Dataset few = data_.take(3);
    return ModelInput::Make([&, few, short_one](const InputContext&) { return epochs == short_one ? few : data_; });
  };
  LogCapture log;

  EXPECT_THAT(message_of([&] { model.fit(data(0), {.verbose = kQuiet}); }),
              HasSubstr("fewer than the 4 of one worker that are one step (accumulate)"));
  const History history = model.fit(data(1), {.epochs = 3, .callbacks = {count}, .verbose = kQuiet});

  EXPECT_THAT(history.epochs(), ElementsAre(0, 2));
  EXPECT_TRUE(log.contains("epoch 2 has no step and no numbers: no worker got the 4 of one worker"));
}

}  // namespace
}  // namespace muster::model_strategies_test

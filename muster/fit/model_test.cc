#include "muster/fit/model.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <future>

#include "muster/base/log.h"
#include "muster/base/test_errors.h"
#include "muster/cluster/test_environment.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/distribute/local_strategies.h"
#include "muster/fit/callbacks/callbacks.h"
#include "muster/fit/test_events.h"

namespace muster {
namespace {

using testing_support::caught;
using testing_support::message_of;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using testing_support::strategy_of;

// Before anybody uses the devices of this process.
[[maybe_unused]] const bool two_devices_to_fit_on = [] {
  set_local_options({.devices = {.cpus = 2, .gpus = false}});
  return true;
}();

constexpr int kQuiet = 0;

struct Line {
  at::Tensor x = (torch::manual_seed(3), torch::randn({70, 3}));
  at::Tensor y = x.mm(torch::tensor({{1.F}, {-2.F}, {0.5F}})) + 0.25F;
  Dataset batches(int64_t size = 16) const { return Dataset::tensors({x, y}).batch(size); }
};

torch::nn::Linear small_net() {
  torch::manual_seed(1);
  return torch::nn::Linear(3, 1);
}

std::vector<at::Tensor> values_of(const Model& model) {
  std::vector<at::Tensor> values;
  for (const Variable& variable : model.variables().all()) values.push_back(variable.value().clone());
  return values;
}

// One batch of these, whose last column is the target.
Dataset named(const std::vector<at::Tensor>& tensors, const std::vector<std::string>& names) {
  const Dataset rows = Dataset::tensors(tensors).map_native([](Columns row) { return row; }, {}, names);
  return rows.label(names.back()).batch(tensors[0].size(0));
}

TEST(Fit, DoesWhatALoopOfStepsDoes) {
  const Line line;
  auto net = small_net(), other = small_net();
  Model model = compile(net, {.optimizer = Adam({.learning_rate = 0.05}), .loss = mean_squared_error});

  const History history = model.fit(line.batches(), {.epochs = 3, .verbose = kQuiet});

  const auto variables = adopt(other);
  const Adam adam(variables, {.learning_rate = 0.05});
  auto step = function([&](at::Tensor x, at::Tensor y) { adam.minimize((other->forward(x) - y).square().mean()); });
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (int64_t i = 0; i < 70; i += 16) step(line.x.slice(0, i, i + 16), line.y.slice(0, i, i + 16));
  }
  EXPECT_TRUE(torch::allclose(values_of(model)[0], variables.all()[0].value(), 1e-5, 1e-6));
  EXPECT_THAT(history.epochs(), ElementsAre(0, 1, 2));
  EXPECT_LT(history["loss"][2], history["loss"][0]);
  EXPECT_THAT(message_of([&] { history["accuracy"]; }), HasSubstr("there is no \"accuracy\"; there are loss"));
}

TEST(Fit, DoesTheSameWithSeveralStepsInOneProgram) {
  const Line line;
  std::vector<std::vector<at::Tensor>> values;
  std::vector<double> losses;
  for (const int64_t at_once : {1, 2, 3}) {
    Model model = compile(small_net(), {.optimizer = Sgd({.learning_rate = 0.1, .momentum = 0.9}),
                                        .loss = mean_squared_error,
                                        .steps_per_execution = at_once});
    losses.push_back(model.fit(line.batches(), {.epochs = 4, .verbose = kQuiet})["loss"].back());
    values.push_back(values_of(model));
  }

  for (const size_t i : {1, 2}) {
    EXPECT_TRUE(torch::allclose(values[i][0], values[0][0], 1e-6, 1e-7));
    EXPECT_NEAR(losses[i], losses[0], 1e-9);
  }
}

TEST(Fit, TakesOneStepForSeveralBatches) {
  const Line line;
  const at::Tensor x = line.x.slice(0, 0, 64), y = line.y.slice(0, 0, 64);
  const Dataset small = Dataset::tensors({x, y}).batch(8), large = Dataset::tensors({x, y}).batch(32);
  auto trained = [](const Loss& goes_down, const Dataset& data, int64_t accumulate) {
    Model model = compile(small_net(), {.optimizer = Adam({.learning_rate = 0.05}),
                                        .loss = goes_down,
                                        .clipping = {.global_norm = 0.5},
                                        .accumulate = accumulate});
    const double loss = model.fit(data, {.epochs = 2, .verbose = kQuiet})["loss"].back();
    EXPECT_EQ(model.optimizer().iterations(), 4);
    return std::pair(values_of(model)[0], loss);
  };

  for (const Loss& goes_down : {mean_squared_error, mean_squared_error.with(LossReduction::kSum)}) {
    const auto [in_parts, loss_of_parts] = trained(goes_down, small, 4);
    const auto [whole, loss_of_whole] = trained(goes_down, large, 1);

    EXPECT_TRUE(torch::allclose(in_parts, whole, 1e-4, 1e-5));
    EXPECT_NEAR(loss_of_parts, loss_of_whole, 1e-5 * std::max(1.0, loss_of_whole));
  }
}

TEST(Fit, ComputesInLowerPrecisionIfWanted) {
  const Line line;
  Model exact = compile(small_net(), {.optimizer = Adam({.learning_rate = 0.05}), .loss = mean_squared_error}),
        mixed =
            compile(small_net(),
                    {.optimizer = Adam({.learning_rate = 0.05}), .loss = mean_squared_error, .mixed_precision = true});
  const double loss = exact.fit(line.batches(), {.epochs = 5, .verbose = kQuiet})["loss"].back();
  EXPECT_NEAR(mixed.fit(line.batches(), {.epochs = 5, .verbose = kQuiet})["loss"].back(), loss, 0.1 * loss + 0.01);

  EXPECT_FALSE(torch::equal(values_of(exact)[0], values_of(mixed)[0]));
  EXPECT_EQ(values_of(mixed)[0].scalar_type(), torch::kFloat);
  EXPECT_EQ(mixed.predict(line.batches()).scalar_type(), torch::kFloat);
}

TEST(Fit, GoesOnInADatasetThatHasNoEnd) {
  const Line line;
  Model model = compile(small_net(), {.loss = mean_squared_error});

  const History history = model.fit(line.batches().repeat(), {.epochs = 10, .steps_per_epoch = 10, .verbose = kQuiet});

  EXPECT_THAT(history["loss"], SizeIs(10));
  EXPECT_THAT(message_of([&] { model.fit(line.batches().repeat()); }), HasSubstr("steps_per_epoch"));
}

TEST(Fit, EndsWithTheDataAndSaysSo) {
  const Line line;
  Model model = compile(small_net(), {.loss = mean_squared_error});
  LogCapture log;

  const History history = model.fit(line.batches(), {.epochs = 10, .steps_per_epoch = 3, .verbose = kQuiet});

  EXPECT_THAT(history["loss"], SizeIs(2));
  EXPECT_TRUE(log.contains("the data has ended after 2 of 3 steps of epoch 2"));
}

TEST(Fit, EndsWithTheDataAlsoBetweenTwoEpochs) {
  Model model = compile(small_net(), {.loss = mean_squared_error});
  bool ended = false;
  const LambdaCallback end({.on_train_end = [&](Training&, const Logs&) { ended = true; }});

  const History history = model.fit(Line().batches(35),  // two of them
                                    {.epochs = 3, .steps_per_epoch = 1, .callbacks = {end}, .verbose = kQuiet});

  EXPECT_THAT(history["loss"], SizeIs(2));
  EXPECT_TRUE(ended);
}

TEST(Fit, ListsTheNumbersThatThereAreForOneThatThereIsNot) {
  const Line line;
  Model model = compile(small_net(), {.loss = mean_squared_error, .metrics = {MeanAbsoluteError()}});

  const Status status = testing_support::caught([&] { model.evaluate(line.batches())["mean_absolute_eror"]; });

  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(status.message(),
            "there is no number \"mean_absolute_eror\"; there are loss, mean_absolute_error; "
            "did you mean \"mean_absolute_error\"?");
  EXPECT_EQ(testing_support::caught([&] { History()["loss"]; }).message(),
            "history: there is no \"loss\"; there are none");
}

TEST(Fit, SaysNothingOfUnevenBatchesThatAreOnlyEvaluated) {
  const Line line;
  const Strategy strategy = MirroredStrategy({"/device:CPU:0", "/device:CPU:1"});
  const VariableScope scope = strategy.scope();
  Model model = compile(small_net(), {.loss = mean_squared_error, .strategy = strategy});
  LogCapture log;

  model.evaluate(line.batches(7));

  EXPECT_FALSE(log.contains("rows for 2 replicas"));
  model.fit(line.batches(7), {.verbose = kQuiet});
  EXPECT_TRUE(log.contains("rows for 2 replicas"));
}

TEST(Fit, CountsEveryExampleOnceInItsMetrics) {
  const Line line;
  Model model = compile(small_net(), {.optimizer = Sgd({.learning_rate = 0}),
                                      .loss = mean_squared_error,
                                      .metrics = {MeanAbsoluteError(), R2Score()}});
  const at::Tensor said = model.predict({line.x, line.y});

  const Logs logs = model.evaluate(line.batches());
  const History history = model.fit(line.batches(), {.validation_data = line.batches(64), .verbose = kQuiet});

  const double loss = (said - line.y).square().mean().item<double>();
  EXPECT_NEAR(logs.at("loss"), loss, 1e-6);
  EXPECT_NEAR(logs.at("mean_absolute_error"), (said - line.y).abs().mean().item<double>(), 1e-6);
  for (const auto& [name, value] : logs) {
    EXPECT_NEAR(history[name][0], value, 1e-6) << name;
    EXPECT_NEAR(history["val_" + name][0], value, 1e-6) << name;
  }
}

TEST(Fit, WeighsExamplesAndClasses) {
  const at::Tensor x = torch::randn({8, 2}), y = torch::tensor({0, 1, 0, 1, 1, 1, 0, 2});
  const at::Tensor weights = torch::tensor({1.F, 3.F, 1.F, 3.F, 3.F, 3.F, 1.F, 1.F});
  auto trained = [&](const ModelInput& input, const std::map<int64_t, double>& by_class) {
    torch::manual_seed(5);
    Model model = compile(torch::nn::Linear(2, 3),
                          {.optimizer = Sgd({.learning_rate = 0.5}), .loss = sparse_categorical_cross_entropy});
    const History history = model.fit(input, {.class_weight = by_class, .batch_size = 8, .verbose = kQuiet});
    return std::pair(values_of(model)[0], history["loss"][0]);
  };

  const auto by_class = trained({x, y}, {{1, 3.0}});
  const auto by_example = trained(Dataset::tensors({x, y, weights}).batch(8), {});
  const auto by_name = trained(named({x, weights, y}, {"x", "sample_weight", "y"}), {});
  const auto as_in_keras = trained(Dataset::tensors({x, y, weights}).named({"x", "y", "sample_weight"}).batch(8), {});

  EXPECT_TRUE(torch::allclose(by_class.first, by_example.first));
  EXPECT_TRUE(torch::allclose(by_name.first, as_in_keras.first));
  EXPECT_THAT(message_of([&] { trained(Dataset::tensors({x, weights}).named({"x", "sample_weight"}).batch(8), {}); }),
              HasSubstr("the columns of the dataset are only x, sample_weight"));
  EXPECT_NEAR(by_class.second, by_example.second, 1e-6);
  EXPECT_TRUE(torch::allclose(by_class.first, by_name.first));
}

struct TwoInputsImpl : torch::nn::Module {
  TwoInputsImpl() { register_module("top", top); }
  at::Tensor forward(at::Tensor a, at::Tensor b) { return top->forward(torch::cat({a, b}, 1)); }
  torch::nn::Linear top{4, 1};
};
TORCH_MODULE(TwoInputs);

struct NamedInputsImpl : torch::nn::Module {
  NamedInputsImpl() { register_module("top", top); }
  at::Tensor forward(const Features& features) { return top->forward(features["b"] - features["a"]); }
  torch::nn::Linear top{2, 1};
};
TORCH_MODULE(NamedInputs);

TEST(Fit, GivesAModelItsInputsByPlaceOrByName) {
  const at::Tensor a = torch::randn({20, 2}), b = torch::randn({20, 2}), y = b.sum(1);
  const Dataset data = named({a, b, y}, {"a", "b", "y"});

  for (Model model :
       {compile(TwoInputs(), {.loss = mean_squared_error}), compile(NamedInputs(), {.loss = mean_squared_error})}) {
    const History history = model.fit(data, {.epochs = 5, .verbose = kQuiet});
    EXPECT_LT(history["loss"].back(), history["loss"].front());
    EXPECT_EQ(model.predict(data).sizes(), at::IntArrayRef({20, 1}));
  }
  Model one = compile(torch::nn::Linear(2, 1), {.loss = mean_squared_error});
  EXPECT_THAT(message_of([&] { one.fit(data); }),
              HasSubstr("forward() of the model takes 1 tensors, but an example has 2 inputs"));
}

TEST(Fit, EvaluatesInEvalModeAndTrainsInTrainMode) {
  torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4), torch::nn::Dropout(0.5),
                            torch::nn::Linear(4, 1));
  const Line line;
  Model model = compile(net, {.loss = mean_squared_error});
  model.fit(line.batches(), {.verbose = kQuiet});

  const Logs once = model.evaluate(line.batches()), again = model.evaluate(line.batches(7));

  EXPECT_NEAR(once.at("loss"), again.at("loss"), 1e-6);
  EXPECT_TRUE(net->is_training());
}

TEST(Fit, TakesSingleBatches) {
  const Line line;
  Model model = compile(small_net(), {.optimizer = Sgd({.learning_rate = 0.1}), .loss = mean_squared_error});

  const double before = model.test_on_batch(line.x, line.y).at("loss");
  EXPECT_NEAR(model.train_on_batch(line.x, line.y).at("loss"), before, 1e-6);
  EXPECT_LT(model.test_on_batch(line.x, line.y).at("loss"), before);
}

TEST(Fit, StopsEarly) {
  const Line line;
  Model model = compile(small_net(), {.optimizer = Sgd({.learning_rate = 0}), .loss = mean_squared_error});

  const History history = model.fit(line.batches(), {.epochs = 50,
                                                     .validation_data = line.batches(),
                                                     .callbacks = {EarlyStopping({.patience = 2})},
                                                     .verbose = kQuiet});

  EXPECT_THAT(history.epochs(), ElementsAre(0, 1, 2));
}

TEST(Fit, RefusesWhatCannotBeTrained) {
  const Line line;
  EXPECT_THAT(message_of([] { compile(small_net(), {}); }), HasSubstr("compile: no loss"));
  EXPECT_THAT(message_of([] { compile(small_net(), {.loss = hinge, .steps_per_execution = 0}); }),
              HasSubstr("steps_per_execution 0"));
  Model model = compile(small_net(), {.loss = mean_squared_error});
  EXPECT_THAT(message_of([&] { model.fit(Dataset::tensors({line.x}).batch(4)); }),
              HasSubstr("none is left for the target"));
  EXPECT_THAT(message_of([&] { model.fit(line.batches().take(0)); }), HasSubstr("empty"));
  EXPECT_THAT(message_of([&] { model.fit(line.batches(), {.epochs = -1}); }), HasSubstr("epochs is -1"));
  EXPECT_THAT(message_of([&] { model.evaluate(line.batches().repeat()); }), HasSubstr("number of steps"));
  EXPECT_THAT(message_of([&] { model.predict(line.batches().repeat()); }), HasSubstr("number of steps"));
}

TEST(Fit, PredictsATensor) {
  const at::Tensor x = torch::randn({5, 2});
  torch::nn::Linear net(2, 3);
  Model model = compile(net, {.loss = mean_squared_error});

  EXPECT_TRUE(torch::allclose(model.predict(x), net->forward(x)));
}

TEST(Fit, SaysThatADatasetOfSingleExamplesIsToBeBatched) {
  const Dataset rows = Dataset::tensors({torch::randn({5, 2}), torch::zeros({5}, torch::kLong)});
  for (const Loss& loss : {mean_squared_error, sparse_categorical_cross_entropy}) {
    Model model = compile(torch::nn::Linear(2, 3), {.loss = loss, .metrics = {Accuracy()}});

    EXPECT_THAT(message_of([&] { model.fit(rows); }), HasSubstr("of one example: batch() the dataset"));
  }
}

TEST(Fit, PredictsOnlyWhatHasARowForEachExample) {
  struct TotalImpl : torch::nn::Module {
    TotalImpl() { register_module("row", row); }
    at::Tensor forward(const at::Tensor& x) { return row->forward(x).sum(); }
    torch::nn::Linear row{2, 1};
  };
  TORCH_MODULE(Total);
  Model model = compile(Total(), {.loss = mean_squared_error});

  EXPECT_THAT(message_of([&] { model.predict({torch::ones({4, 2})}); }),
              HasSubstr("predict: output \"output\" is float32[] for a batch, expected a row for each example"));
}

TEST(Fit, SaysThatThereAreNoExamples) {
  Model model = compile(small_net(), {.loss = mean_squared_error});
  EXPECT_THAT(message_of([&] { model.fit({torch::ones({0, 3}), torch::ones({0, 1})}); }), HasSubstr("no examples"));
  const Dataset none = Line().batches().filter([](const at::Tensor& x, const at::Tensor&) { return x.sum() > 1e9; });
  EXPECT_THAT(message_of([&] { model.train_on_batch(none); }), HasSubstr("train_on_batch: there is no batch"));
  EXPECT_THAT(message_of([&] { model.test_on_batch(none); }), HasSubstr("there are no examples"));
}

TEST(Fit, TakesNoStepOfNoExamples) {
  Model model = compile(small_net(), {.loss = mean_squared_error});
  const at::Tensor x = torch::ones({0, 3}), y = torch::ones({0, 1});

  const Status trained = caught([&] { model.train_on_batch(x, y); });
  const Status tested = caught([&] { model.test_on_batch(x, y); });

  for (const Status& status : {trained, tested}) {
    EXPECT_EQ(status.code(), StatusCode::kOutOfRange) << status;
    EXPECT_THAT(status.message(), HasSubstr("there are no examples"));
  }
  EXPECT_EQ(model.optimizer().iterations(), 0);
}

TEST(Fit, SaysThatBatchesAreAllEmpty) {
  Model model = compile(small_net(), {.loss = mean_squared_error});
  const Dataset empty = Dataset::from_tensors({torch::ones({0, 3}), torch::ones({0, 1})});

  const Status status = caught([&] { model.fit(empty, {.verbose = kQuiet}); });

  EXPECT_EQ(status.code(), StatusCode::kOutOfRange) << status;
  EXPECT_THAT(status.message(), HasSubstr("fit: there are no examples"));
}

TEST(Fit, SaysWhichBatchDoesNotFit) {
  const Line line;
  Model model = compile(small_net(), {.loss = mean_squared_error});
  const Dataset single = Dataset::tensors({line.x, line.y.flatten()});
  const Dataset wide = Dataset::tensors({torch::ones({8, 5}), torch::ones({8, 1})}).batch(4);

  EXPECT_THAT(
      message_of([&] { model.fit(wide, {.verbose = kQuiet}); }),
      AllOf(HasSubstr("a batch of inputs float32[4, 5], target float32[4, 1]: mat1 and mat2"),
            HasSubstr("while tracing function \"fit\""), Not(HasSubstr("argument 0")), Not(HasSubstr("model.cc"))));
  EXPECT_THAT(message_of([&] { model.fit({torch::ones({8, 5}), torch::ones({8, 1})}, {.verbose = kQuiet}); }),
              AllOf(HasSubstr("a batch of inputs float32[8, 5]"), Not(HasSubstr("argument 0"))));
  EXPECT_THAT(message_of([&] { model.predict(torch::ones({8, 5})); }),
              AllOf(HasSubstr("function \"predict\""), HasSubstr("mat1 and mat2"), Not(HasSubstr("model.cc"))));
  Model two = compile(torch::nn::Linear(2, 1), {.loss = mean_squared_error});
  EXPECT_THAT(message_of([&] { two.fit(single, {.verbose = kQuiet}); }), HasSubstr("add batch(n) to the dataset"));
}

TEST(Fit, ShowsWhatAModelConsistsOf) {
  const Model model = compile(torch::nn::Linear(300, 10), {.loss = mean_squared_error});
  EXPECT_THAT(model.summary(),
              AllOf(HasSubstr("[10, 300]"), HasSubstr("3,000"), HasSubstr("3,010 numbers are trained")));
}

// ---- Under strategies
TEST(FitUnderStrategies, LearnsTheSameOnTwoDevices) {
  const Line line;
  auto trained = [&](const Strategy& strategy, int64_t at_once) {
    torch::manual_seed(1);
    Model model = compile(strategy.make<torch::nn::Linear>(3, 1), {.optimizer = Adam({.learning_rate = 0.05}),
                                                                   .loss = mean_squared_error,
                                                                   .metrics = {R2Score()},
                                                                   .steps_per_execution = at_once});
    const History history = model.fit(line.batches(14), {.epochs = 3, .verbose = kQuiet});
    const Logs logs = model.evaluate(line.batches());
    return std::tuple(values_of(model)[0], history["loss"], logs.at("r2_score"));
  };

  const auto [alone, losses, r2] = trained(Strategy(), 1);
  for (const Strategy& strategy : {Strategy(OneDeviceStrategy("/device:CPU:1")), Strategy(MirroredStrategy()),
                                   Strategy(CentralStorageStrategy())}) {
    for (const int64_t at_once : {1, 2}) {
      const auto [values, own_losses, own_r2] = trained(strategy, at_once);
      EXPECT_TRUE(torch::allclose(values, alone, 1e-4, 1e-5)) << at_once << " steps in one program";
      EXPECT_NEAR(own_losses.back(), losses.back(), 1e-5);
      EXPECT_NEAR(own_r2, r2, 1e-5);
    }
  }
}

class FitOnParameterServers : public ::testing::Test {
 protected:
  InProcessCluster cluster_{{.workers = 2, .ps = 2, .transport = Transport::kLocal}};
  ParameterServerStrategy strategy_ = strategy_of(cluster_, Transport::kLocal);
};

TEST_F(FitOnParameterServers, HasALossForEachEpoch) {
  const Line line;
  Model model = compile(strategy_.make<torch::nn::Linear>(3, 10),
                        {.optimizer = Sgd({.learning_rate = 0.05}), .loss = mean_squared_error});
  const at::Tensor y = line.y.expand({70, 10}).contiguous();

  const History history =
      model.fit([&](InputContext input) { return Dataset::tensors({line.x, y}).shard(input).batch(8).repeat(); },
                {.epochs = 10, .steps_per_epoch = 10, .verbose = kQuiet});

  EXPECT_THAT(history["loss"], SizeIs(10));
  EXPECT_LT(history["loss"].back(), history["loss"].front());
  EXPECT_THAT(model.summary(), HasSubstr("/job:ps"));
}

TEST_F(FitOnParameterServers, SeesEveryExampleOnceInAnEpoch) {
  const Line line;
  Model model =
      compile(strategy_.make<torch::nn::Linear>(3, 1),
              {.optimizer = Sgd({.learning_rate = 0}), .loss = mean_squared_error, .metrics = {MeanAbsoluteError()}});
  const at::Tensor said = model.predict({line.x, line.y});
  const double loss = (said - line.y).square().mean().item<double>();
  int64_t examples = 0;

  const History history = model.fit(
      line.batches(8),
      {.epochs = 2,
       .validation_data = line.batches(),
       .callbacks = {LambdaCallback({.on_epoch_end = [&](Training& now, const Logs&) { examples = now.examples; }})},
       .verbose = kQuiet});

  EXPECT_EQ(examples, 140);
  for (const double seen : history["loss"]) EXPECT_NEAR(seen, loss, 1e-6 * loss);
  EXPECT_NEAR(history["val_loss"][1], loss, 1e-6 * loss);  // workers may have a GPU, which rounds in another order
  EXPECT_NEAR(model.evaluate(line.batches()).at("mean_absolute_error"), (said - line.y).abs().mean().item<double>(),
              1e-6);
}

TEST_F(FitOnParameterServers, TrainsTwoModelsOnTwoThreads) {
  const Line line;
  Model models[] = {compile(strategy_.make<torch::nn::Linear>(3, 1), {.loss = mean_squared_error}),
                    compile(strategy_.make<torch::nn::Linear>(3, 1), {.loss = mean_squared_error})};
  auto examples_of = [&](Model& model) {
    int64_t examples = 0;
    const LambdaCallback count({.on_epoch_end = [&](Training& now, const Logs&) { examples = now.examples; }});
    model.fit(line.batches(2), {.epochs = 10, .callbacks = {count}, .verbose = kQuiet});
    return examples;
  };

  auto of_other = std::async(std::launch::async, [&] { return examples_of(models[1]); });

  EXPECT_EQ(examples_of(models[0]), 700);
  EXPECT_EQ(of_other.get(), 700);
}

TEST_F(FitOnParameterServers, ShowsTensorBoardTheirVariablesAndTheStep) {
  const Line line;
  const testing_support::ScopedDirectory directory;
  Model model = compile(strategy_.make<torch::nn::Linear>(3, 1), {.loss = mean_squared_error});
  const TensorBoard board({.directory = directory.path(), .histogram_freq = 1});

  model.fit(line.batches(), {.callbacks = {board}, .verbose = kQuiet});

  std::vector<std::string> tags;
  std::string graph;
  for (const proto::Event& event : testing_support::events_below(directory.path() + "/train")) {
    if (event.has_graph_def()) graph = event.graph_def();
    for (const auto& value : event.summary().value()) tags.push_back(value.tag());
  }
  const std::vector<Variable>& variables = model.variables().all();
  EXPECT_THAT(tags, ElementsAre("epoch_learning_rate", "epoch_loss", "weights/" + variables[0].name(),
                                "weights/" + variables[1].name()));
  EXPECT_THAT(graph, AllOf(HasSubstr("/job:ps"), HasSubstr("aten::")));
}

TEST_F(FitOnParameterServers, HasNoCallbacksOfSteps) {
  const Line line;
  Model model = compile(strategy_.make<torch::nn::Linear>(3, 1), {.loss = mean_squared_error});
  const LambdaCallback each({.on_steps = [](Training&, const Logs&) {}});

  EXPECT_THAT(message_of([&] { model.fit(line.batches(), {.callbacks = {each}}); }),
              HasSubstr("Batch-level `Callback`s are not supported"));
}

TEST_F(FitOnParameterServers, ThrowsWhatAStepThrows) {
  const Line line;
  Model model = compile(strategy_.make<torch::nn::Linear>(4, 1), {.loss = mean_squared_error});

  EXPECT_THAT(message_of([&] { model.fit(line.batches(), {.verbose = kQuiet}); }), HasSubstr("16x3 and 4x1"));
}

// ---- As a user of Keras or PyTorch expects it

TEST(Fit, TakesTheMeanOfALossThatGivesSeveralNumbersForAnExample) {
  const Line line;
  const at::Tensor weights = torch::linspace(0, 2, line.x.size(0));
  const auto loss_of = [&](const Loss& loss) {
    Model model = compile(small_net(), {.optimizer = Sgd({.learning_rate = 0}), .loss = loss});
    return model.evaluate({line.x, line.y, weights}).at("loss");
  };
  const double usual = loss_of(mean_squared_error);

  const auto in_columns = [](const at::Tensor& output, const at::Tensor& target) { return (output - target).square(); };
  EXPECT_NEAR(loss_of(Loss(in_columns)), usual, 1e-6);
  const auto twice = [](const at::Tensor& output, const at::Tensor& target) {
    return (output - target).square().expand({-1, 2});
  };
  EXPECT_NEAR(loss_of(Loss(twice)), usual, 1e-6);
  const auto one = [](const at::Tensor& output, const at::Tensor& target) { return torch::mse_loss(output, target); };
  EXPECT_THAT(message_of([&] { loss_of(Loss(one)); }), HasSubstr("weights of examples would be lost"));
}

TEST(Fit, SaysHowManyWeightsItExpects) {
  const Line line;
  Model model = compile(small_net(), {.loss = mean_squared_error});
  EXPECT_THAT(message_of([&] { model.evaluate({line.x, line.y, torch::ones({70, 2})}); }),
              HasSubstr("sample_weight: it is float32[32, 2], expected one for each of 32 examples"));
}

TEST(Fit, BeginsAgainWithTensorsThatEndWithinAnEpoch) {
  const Line line;  // 5 batches
  Model model = compile(small_net(), {.loss = mean_squared_error});
  const History history =
      model.fit({line.x, line.y}, {.epochs = 4, .steps_per_epoch = 3, .batch_size = 16, .verbose = kQuiet});
  EXPECT_THAT(history["loss"], SizeIs(4));
}

TEST(Fit, LeavesPartsInEvalThatWereInItBefore) {
  const Line line;
  torch::nn::BatchNorm1d frozen(3), trained(3);
  torch::nn::Sequential net(frozen, trained, torch::nn::Linear(3, 1));
  frozen->eval();
  Model model = compile(net, {.loss = mean_squared_error});
  model.fit(line.batches(), {.epochs = 2, .validation_data = line.batches(), .verbose = kQuiet});

  EXPECT_FALSE(frozen->is_training());
  EXPECT_TRUE(trained->is_training());
  adopted(*net).write_back();
  EXPECT_TRUE(torch::equal(frozen->running_mean, torch::zeros({3})));
  EXPECT_FALSE(torch::equal(trained->running_mean, torch::zeros({3})));
}

TEST(Fit, SaysThatAStepTakesSeveralBatchesIfThereAreFewer) {
  const Line line;
  Model model = compile(small_net(), {.loss = mean_squared_error, .accumulate = 40});
  EXPECT_THAT(message_of([&] { model.fit(line.batches(), {.verbose = kQuiet}); }), HasSubstr("(accumulate)"));
}

struct SumOfTwoImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& a, const at::Tensor& b) { return layer(a) + layer(b); }
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(3, 1))};
};
TORCH_MODULE(SumOfTwo);

TEST(Fit, TakesAsManyTensorsForInputsAsForwardDoes) {
  const Line line;
  Model model = compile(SumOfTwo(), {.loss = mean_squared_error});
  model.fit({line.x, line.x, line.y}, {.verbose = kQuiet});
  EXPECT_GT(model.evaluate({line.x, line.x, line.y, torch::ones({70})}).at("loss"), 0);
  EXPECT_EQ(model.predict({line.x, line.x}).size(0), 70);
  EXPECT_THAT(message_of([&] { model.evaluate({line.x, line.x}); }), HasSubstr("none is left for the target"));
}

}  // namespace
}  // namespace muster

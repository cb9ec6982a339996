#include <gmock/gmock.h>
#include <torch/torch.h>

#include "muster/base/test_errors.h"
#include "muster/cluster/test_environment.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/distribute/local_strategies.h"
#include "muster/fit/callbacks/callbacks.h"
#include "muster/fit/criteria/criteria.h"
#include "muster/fit/exported/export_model.h"
#include "muster/fit/exported/loaded_model.h"
#include "muster/fit/model.h"

namespace muster::model_outputs_test {
namespace {

using testing_support::message_of;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kQuiet = 0;

// A common layer and two heads: scores of three classes, and two numbers.
struct HeadsImpl : torch::nn::Module {
  HeadsImpl() {
    register_module("body", body);
    register_module("kind", kind);
    register_module("box", box);
  }
  std::pair<at::Tensor, at::Tensor> both(const at::Tensor& x) {
    const at::Tensor inner = torch::tanh(body->forward(x));
    return {kind->forward(inner), box->forward(inner)};
  }
  torch::nn::Linear body{4, 5}, kind{5, 3}, box{5, 2};
};

struct PairOfHeadsImpl : HeadsImpl {
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x) { return both(x); }
};
TORCH_MODULE(PairOfHeads);
struct NamedHeadsImpl : HeadsImpl {
  Features forward(const at::Tensor& x) {
    const auto [scores, place] = both(x);
    return {{"kind", "box"}, {scores, place}};
  }
};
TORCH_MODULE(NamedHeads);
struct TupleOfHeadsImpl : HeadsImpl {
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x) { return both(x); }
};
TORCH_MODULE(TupleOfHeads);
struct ListOfHeadsImpl : HeadsImpl {
  std::vector<at::Tensor> forward(const at::Tensor& x) {
    const auto [scores, place] = both(x);
    return {scores, place};
  }
};
TORCH_MODULE(ListOfHeads);
struct MapOfHeadsImpl : HeadsImpl {
  std::map<std::string, at::Tensor> forward(const at::Tensor& x) {
    const auto [scores, place] = both(x);
    return {{"kind", scores}, {"box", place}};
  }
};
TORCH_MODULE(MapOfHeads);

template <class Net>
Net seeded_net() {
  torch::manual_seed(7);
  return Net();
}

struct Things {
  at::Tensor x = (torch::manual_seed(3), torch::randn({40, 4}));
  at::Tensor kind = torch::randint(3, {40}), box = x.narrow(1, 0, 2) * 2 + 0.5;
  Dataset batches(int64_t size = 8) const { return Dataset::tensors({x, kind, box}).batch(size); }
  Dataset named(const std::vector<std::string>& names = {"x", "kind", "box"}) const {
    return Dataset::tensors({x, kind, box}).named(names).labels({names[1], names[2]}).batch(8);
  }
};

CompileOptions options_by_name() {
  return {.optimizer = Sgd({.learning_rate = 0.1, .momentum = 0.9}),
          .loss = {{"box", mean_squared_error}, {"kind", sparse_categorical_cross_entropy}},
          .loss_weights = {{"box", 0.3}},
          .metrics = {{"kind", Accuracy()}, {"box", {MeanAbsoluteError(), R2Score({.outputs = 2})}}}};
}
CompileOptions options_in_order() {
  return {.optimizer = Sgd({.learning_rate = 0.1, .momentum = 0.9}),
          .loss = {sparse_categorical_cross_entropy, mean_squared_error},
          .loss_weights = {1, 0.3},
          .metrics = {{Accuracy()}, {MeanAbsoluteError(), R2Score({.outputs = 2})}}};
}

std::vector<at::Tensor> values_of(const Model& model) {
  std::vector<at::Tensor> values;
  for (const Variable& variable : model.variables().all()) values.push_back(variable.value().clone());
  return values;
}

void expect_same(const std::vector<at::Tensor>& values, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(torch::allclose(values[i], expected[i], 1e-5, 1e-6)) << i;
}

std::vector<std::string> names_of(const Logs& logs) {
  std::vector<std::string> names;
  for (const auto& [name, value] : logs) names.push_back(name);
  return names;
}

TEST(FitSeveralOutputs, TakesTheStepsOfEagerPyTorch) {
  const Things things;
  auto eager = seeded_net<PairOfHeads>();
  torch::optim::SGD sgd(eager->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  std::vector<double> losses;
  for (int64_t i = 0; i < 40; i += 8) {
    const auto [scores, place] = eager->forward(things.x.slice(0, i, i + 8));
    const at::Tensor loss = torch::cross_entropy_loss(scores, things.kind.slice(0, i, i + 8)) +
                            0.3 * torch::mse_loss(place, things.box.slice(0, i, i + 8));
    sgd.zero_grad();
    loss.backward();
    sgd.step();
    losses.push_back(loss.item<double>());
  }

  auto net = seeded_net<PairOfHeads>();
  Model model = compile(net, options_in_order());
  for (int64_t i = 0; i < 40; i += 8) {
    const Logs logs = model.train_on_batch(
        {things.x.slice(0, i, i + 8), things.kind.slice(0, i, i + 8), things.box.slice(0, i, i + 8)});
    EXPECT_NEAR(logs.at("loss"), losses[static_cast<size_t>(i / 8)], 1e-6);
  }

  expect_same(values_of(model), eager->parameters());
}

TEST(FitSeveralOutputs, HasNumbersOfEachOutput) {
  const Things things;
  Model model = compile(seeded_net<NamedHeads>(), options_by_name());
  const History history =
      model.fit(things.batches(), {.epochs = 2, .validation_data = things.named(), .verbose = kQuiet});

  const Logs logs = model.evaluate(things.batches(16));

  const Features said = model.predict_all({things.x});
  EXPECT_THAT(said.names(), ElementsAre("kind", "box"));
  EXPECT_THAT(names_of(logs),
              ElementsAre("box_loss", "box_mean_absolute_error", "box_r2_score", "kind_accuracy", "kind_loss", "loss"));
  const double kind = torch::cross_entropy_loss(said["kind"], things.kind).item<double>(),
               box = torch::mse_loss(said["box"], things.box).item<double>();
  EXPECT_NEAR(logs.at("kind_loss"), kind, 1e-6);
  EXPECT_NEAR(logs.at("box_loss"), box, 1e-6);
  EXPECT_NEAR(logs.at("loss"), kind + 0.3 * box, 1e-6);
  EXPECT_NEAR(logs.at("kind_accuracy"),
              (said["kind"].argmax(1) == things.kind).to(torch::kDouble).mean().item<double>(), 1e-6);
  EXPECT_NEAR(logs.at("box_mean_absolute_error"), (said["box"] - things.box).abs().mean().item<double>(), 1e-6);
  for (const auto& [name, value] : logs) EXPECT_NEAR(history["val_" + name].back(), value, 1e-6) << name;
  EXPECT_LT(history["box_loss"][1], history["box_loss"][0]);
}

TEST(FitSeveralOutputs, TakesOptionsAndTargetsByNameOrInOrder) {
  const Things things;
  auto trained = [](auto net, const CompileOptions& options, const ModelInput& input) {
    Model model = compile(net, options);
    model.fit(input, {.epochs = 2, .batch_size = 8, .shuffle = false, .verbose = kQuiet});
    return values_of(model);
  };
  const auto in_order = trained(seeded_net<PairOfHeads>(), options_in_order(), things.batches());

  const Features x({"x"}, {things.x}), targets({"box", "kind"}, {things.box, things.kind});
  const Dataset turned = Dataset::tensors({things.box, things.x, things.kind})
                             .named({"box", "x", "kind"})
                             .labels({"box", "kind"})
                             .batch(8);
  for (const ModelInput& input : {ModelInput(things.batches()), ModelInput(things.named()), ModelInput(turned),
                                  ModelInput(things.named({"x", "a", "b"})), ModelInput(x, targets),
                                  ModelInput{things.x, things.kind, things.box}}) {
    expect_same(trained(seeded_net<NamedHeads>(), options_by_name(), input), in_order);
  }
  expect_same(trained(seeded_net<MapOfHeads>(), options_by_name(), things.named()), in_order);
  expect_same(trained(seeded_net<NamedHeads>(), options_in_order(), things.named()), in_order);
  expect_same(trained(seeded_net<TupleOfHeads>(), options_in_order(), things.named({"x", "a", "b"})), in_order);
  expect_same(trained(seeded_net<ListOfHeads>(), options_in_order(), things.batches()), in_order);
}

TEST(FitSeveralOutputs, HasOneLossAndMetricsForAllIfNotSaidOtherwise) {
  const Things things;
  const Dataset data = Dataset::tensors({things.x, torch::zeros({40, 3}), things.box}).batch(8);
  Model model = compile(seeded_net<PairOfHeads>(), {.loss = mean_squared_error, .metrics = {MeanAbsoluteError()}});

  const Logs logs = model.evaluate(data);

  EXPECT_THAT(names_of(logs), ElementsAre("loss", "output_0_loss", "output_0_mean_absolute_error", "output_1_loss",
                                          "output_1_mean_absolute_error"));
  EXPECT_NEAR(logs.at("loss"), logs.at("output_0_loss") + logs.at("output_1_loss"), 1e-9);
}

TEST(FitSeveralOutputs, TrainsNothingForOutputsWithoutALoss) {
  const Things things;
  Model model = compile(seeded_net<NamedHeads>(), {.loss = {{"box", mean_squared_error}}});
  const std::vector<at::Tensor> before = values_of(model);

  const History history = model.fit({things.x, things.box}, {.class_weight = {}, .batch_size = 8, .verbose = kQuiet});

  EXPECT_THAT(history.names(), ElementsAre("box_loss", "loss"));
  const std::vector<at::Tensor> after = values_of(model);
  for (size_t i = 0; i < after.size(); ++i) {
    const bool of_kind = model.variables().named()[i].first.starts_with("kind");
    EXPECT_EQ(torch::equal(before[i], after[i]), of_kind) << model.variables().named()[i].first;
  }
  EXPECT_EQ(model.predict_all({things.x}).tensors().size(), 2U);
  Model judged =
      compile(seeded_net<PairOfHeads>(), {.loss = {Loss(), mean_squared_error}, .metrics = {{Accuracy()}, {}}});
  EXPECT_THAT(names_of(judged.evaluate(things.batches())), ElementsAre("loss", "output_0_accuracy", "output_1_loss"));
}

TEST(FitSeveralOutputs, WeighsExamplesForAllOutputsOrForEach) {
  const Things things;
  const at::Tensor one = torch::rand({40}) + 0.5F, other = torch::rand({40});
  auto losses = [](const Dataset& data) {
    const Logs logs = compile(seeded_net<NamedHeads>(), options_by_name()).evaluate(data.batch(8));
    return std::vector{logs.at("kind_loss"), logs.at("box_loss")};
  };
  const Features said = compile(seeded_net<NamedHeads>(), options_by_name()).predict_all({things.x});
  const at::Tensor kind = torch::cross_entropy_loss(said["kind"], things.kind, {}, at::Reduction::None),
                   box = (said["box"] - things.box).square().mean(1);
  auto weighed = [](const at::Tensor& each, const at::Tensor& weights) {
    return ::testing::DoubleNear((each * weights).mean().item<double>(), 1e-6);
  };
  auto named = [&](const std::vector<at::Tensor>& weights, std::vector<std::string> names) {
    std::vector<at::Tensor> tensors{things.x, things.kind, things.box};
    tensors.insert(tensors.end(), weights.begin(), weights.end());
    names.insert(names.begin(), {"x", "kind", "box"});
    return Dataset::tensors(tensors).named(names).labels({"kind", "box"});
  };

  for (const Dataset& data :
       {Dataset::tensors({things.x, things.kind, things.box, one}), named({one}, {"sample_weight"})}) {
    EXPECT_THAT(losses(data), ElementsAre(weighed(kind, one), weighed(box, one)));
  }
  for (const Dataset& data : {Dataset::tensors({things.x, things.kind, things.box, one, other}),
                              named({other, one}, {"sample_weight_box", "sample_weight_kind"}),
                              named({other, one}, {"sample_weight_box", "sample_weight"})}) {
    EXPECT_THAT(losses(data), ElementsAre(weighed(kind, one), weighed(box, other)));
  }
}

TEST(FitSeveralOutputs, WeighsClassesOfOneOutputOnly) {
  const Things things;
  Model two = compile(seeded_net<NamedHeads>(), options_by_name());
  EXPECT_THAT(message_of([&] { two.fit(things.batches(), {.class_weight = {{1, 2.0}}, .verbose = kQuiet}); }),
              HasSubstr("class_weight: the model has the outputs kind, box, expected one"));

  Model one = compile(seeded_net<NamedHeads>(), {.loss = {{"kind", sparse_categorical_cross_entropy}}});
  one.fit({things.x, things.kind}, {.class_weight = {{1, 2.0}}, .verbose = kQuiet});
}

TEST(FitSeveralOutputs, RefusesOptionsOfOtherOutputs) {
  auto error_with = [](const CompileOptions& options) {
    return message_of([&] { compile(seeded_net<PairOfHeads>(), options); });
  };
  EXPECT_THAT(error_with({.loss = {hinge, hinge, hinge}}),
              HasSubstr("compile: loss is a list of 3, but the model has 2 outputs, output_0, output_1"));
  EXPECT_THAT(error_with({.loss = {{"output_1", hinge}, {"bax", hinge}}}),
              HasSubstr("loss is given for an output \"bax\", but the model has 2 outputs, output_0, output_1"));
  EXPECT_THAT(error_with({.loss = {{"output_1", hinge}, {"output_1", hinge}}}),
              HasSubstr("loss is given twice for output \"output_1\""));
  EXPECT_THAT(error_with({.loss = {{"output_1", hinge}, hinge}}),
              HasSubstr("loss has names of outputs for 1 of its 2 entries, expected for all or none"));
  EXPECT_THAT(error_with({.loss = hinge, .loss_weights = {1, 2, 3}}), HasSubstr("loss_weights is a list of 3"));
  EXPECT_THAT(error_with({.loss = hinge, .metrics = {{"bax", Accuracy()}}}),
              HasSubstr("metrics is given for an output"));
  EXPECT_THAT(message_of([] { CompileOptions{.loss = hinge, .metrics = {Accuracy(), {Accuracy()}}}; }),
              HasSubstr("1 metrics of all outputs and 1 lists of one output"));
  EXPECT_THAT(error_with({.loss = {Loss(), Loss()}}), HasSubstr("compile: no loss"));
  EXPECT_THAT(message_of([] { compile(torch::nn::Linear(4, 1), {.loss = {hinge, hinge}}); }),
              HasSubstr("loss is a list of 2, but the model has 1 output, output;"));

  const Things things;
  Model late = compile(seeded_net<NamedHeads>(), {.loss = {hinge, hinge, hinge}});
  EXPECT_THAT(message_of([&] { late.fit(things.batches(), {.verbose = kQuiet}); }),
              HasSubstr("loss is a list of 3, but the model has 2 outputs, kind, box"));
}

TEST(FitSeveralOutputs, RefusesTwoNumbersOfOneName) {
  auto refused = [](const std::vector<std::string>& outputs, const OutputMetrics& metrics) {
    return message_of([&] { Criteria(outputs, mean_squared_error, {}, metrics); });
  };

  EXPECT_THAT(refused({"val", "box"}, {}), HasSubstr("\"val_loss\" is of output \"val\", and of validation data"));
  EXPECT_THAT(refused({"box"}, {TopKAccuracy(1), TopKAccuracy(3)}),
              AllOf(HasSubstr("two numbers \"top_k_accuracy\""), HasSubstr("a name of its own")));
  EXPECT_THAT(refused({"box"}, {Accuracy("loss")}), HasSubstr("two numbers \"loss\""));
}

TEST(FitSeveralOutputs, RefusesOtherTargets) {
  const Things things;
  Model model = compile(seeded_net<NamedHeads>(), options_by_name());
  auto error_with = [&](const Dataset& data) {
    return message_of([&] { model.fit(data.batch(8), {.verbose = kQuiet}); });
  };

  EXPECT_THAT(error_with(Dataset::tensors({things.x, things.kind})),
              HasSubstr("a model with the outputs kind, box is trained with elements (inputs, 2 targets), and perhaps "
                        "weights after them, 1 or 2, but one has 2 tensors without names"));
  EXPECT_THAT(error_with(Dataset::tensors({things.x, things.box}).named({"x", "y"}).label("y")),
              HasSubstr("the data has 1 targets, y, but the model is trained for 2 outputs, kind, box"));
  EXPECT_THAT(error_with(Dataset::tensors({things.x, things.kind}).named({"x", "kind"}).label("kind")),
              HasSubstr("output \"box\" of the model has no target; the targets are kind"));
  EXPECT_THAT(message_of([&] { model.evaluate(things.named({"x", "kind", "bax"})); }),
              HasSubstr("target \"bax\" is of no output of the model, which are kind, box"));
  EXPECT_THAT(error_with(Dataset::tensors({things.x, things.kind, things.box}).named({"x", "kind", "box"})),
              HasSubstr("an example has 2 inputs; select() some, label() those that are targets"));
  EXPECT_THAT(error_with(Dataset::tensors({things.x, things.box, things.kind})),
              AllOf(HasSubstr("output \"kind\": loss sparse_categorical_cross_entropy: the output is float32[8, 3]"),
                    HasSubstr("the target float32[8, 2]")));
  EXPECT_THAT(error_with(Dataset::tensors({things.x, things.kind, things.box, things.kind})
                             .named({"x", "kind", "box", "sample_weight_bax"})
                             .labels({"kind", "box"})),
              HasSubstr("weights of an output \"bax\", but those of the model are kind, box"));
  EXPECT_THAT(message_of([&] { model.predict({things.x}); }),
              HasSubstr("the model has 2 outputs, kind, box; predict_all() gives all of them"));
}

TEST(FitSeveralOutputs, ShowsThemInItsSummary) {
  Model model = compile(seeded_net<NamedHeads>(), options_by_name());
  EXPECT_THAT(model.summary(), Not(HasSubstr("output")));

  model.evaluate(Things().batches());

  EXPECT_THAT(model.summary(), HasSubstr("output kind: sparse_categorical_cross_entropy, accuracy\n"
                                         "output box: mean_squared_error times 0.3, mean_absolute_error, r2_score\n"));
  EXPECT_THAT(compile(seeded_net<PairOfHeads>(), {.loss = {{"output_1", hinge}}}).summary(),
              HasSubstr("output output_0: no loss\noutput output_1: hinge\n"));
}

TEST(FitSeveralOutputs, StopsByTheNumbersOfOne) {
  const Things things;
  Model model =
      compile(seeded_net<NamedHeads>(),
              {.optimizer = Sgd({.learning_rate = 0}), .loss = options_by_name().loss, .steps_per_execution = 2});

  const History history =
      model.fit(things.batches(), {.epochs = 9,
                                   .validation_data = things.batches(),
                                   .callbacks = {EarlyStopping({.monitor = "val_box_loss", .patience = 1})},
                                   .verbose = kQuiet});

  EXPECT_THAT(history.epochs(), ElementsAre(0, 1));
}

TEST(FitSeveralOutputs, TakesOneStepForSeveralBatchesAndComputesInLowerPrecision) {
  const Things things;
  auto trained = [&](int64_t batch, int64_t accumulate, bool mixed) {
    CompileOptions options = options_by_name();
    options.accumulate = accumulate;
    options.mixed_precision = mixed;
    Model model = compile(seeded_net<NamedHeads>(), options);
    model.fit(things.batches(batch), {.verbose = kQuiet});
    for (const at::Tensor& output : model.predict_all({things.x}).tensors()) {
      EXPECT_EQ(output.scalar_type(), torch::kFloat);
    }
    return values_of(model);
  };

  const std::vector<at::Tensor> whole = trained(20, 1, false), mixed = trained(20, 1, true);

  expect_same(trained(5, 4, false), whole);
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(torch::allclose(mixed[i], whole[i], 0.1, 0.05)) << i;
  EXPECT_FALSE(torch::equal(mixed[0], whole[0]));
}

TEST(ExportSeveralOutputs, HasTheirNames) {
  const Things things;
  const testing_support::ScopedDirectory directory;
  const std::string file = directory.path() + "/heads.safetensors";
  Model model = compile(seeded_net<NamedHeads>(), options_by_name());
  model.fit(things.batches(), {.verbose = kQuiet});
  const Features said = model.predict_all({things.x});

  for (const bool of_module : {false, true}) {
    if (of_module) {
      export_model(seeded_net<NamedHeads>(), file, {things.x});
    } else {
      export_model(model, file, {things.x});
    }
    const LoadedModel loaded = LoadedModel::load(file);

    const auto outputs = loaded.run_named({{"input", things.x}});

    ASSERT_EQ(loaded.signature().outputs.size(), 2U);
    EXPECT_EQ(loaded.signature().outputs[0].to_string(), "kind: float32[batch, 3]");
    EXPECT_EQ(loaded.signature().outputs[1].to_string(), "box: float32[batch, 2]");
    EXPECT_EQ(torch::allclose(outputs.at("box"), said["box"], 1e-5, 1e-6), !of_module);
    EXPECT_EQ(torch::allclose(outputs.at("kind"), said["kind"], 1e-5, 1e-6), !of_module);
  }
  EXPECT_THAT(message_of([&] { export_model(model, file, {things.x}, {.outputs = {"a", "a"}}); }),
              HasSubstr("two outputs \"a\""));
}

// ---- Under strategies
TEST(FitSeveralOutputs, LearnsTheSameOnTwoDevices) {
  const Things things;
  auto trained = [&](const Strategy& strategy) {
    torch::manual_seed(7);
    Model model = compile(strategy.make<NamedHeads>(), options_by_name());
    const History history = model.fit(things.named(), {.epochs = 2, .verbose = kQuiet});
    return std::pair(values_of(model), model.evaluate(things.batches()));
  };

  const auto [alone, logs] = trained(Strategy());
  const auto [values, own_logs] = trained(Strategy(MirroredStrategy()));

  for (size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(torch::allclose(values[i], alone[i], 1e-4, 1e-5));
  for (const auto& [name, value] : logs) EXPECT_NEAR(own_logs.at(name), value, 1e-4) << name;
}

TEST(FitSeveralOutputs, SeesEveryExampleOnceOnParameterServers) {
  InProcessCluster cluster({.workers = 2, .ps = 2, .transport = Transport::kLocal});
  const ParameterServerStrategy strategy = testing_support::strategy_of(cluster, Transport::kLocal);
  const Things things;
  torch::manual_seed(7);
  CompileOptions options = options_by_name();
  options.optimizer = Sgd({.learning_rate = 0});
  Model model = compile(strategy.make<NamedHeads>(), options);
  const Logs expected = compile(seeded_net<NamedHeads>(), options_by_name()).evaluate(things.batches());

  const History history = model.fit(things.named(), {.validation_data = things.batches(), .verbose = kQuiet});

  for (const auto& [name, value] : expected) {
    EXPECT_NEAR(history[name][0], value, 1e-5) << name;
    EXPECT_NEAR(history["val_" + name][0], value, 1e-5) << name;
  }
  const Features said = model.predict_all({things.x});
  EXPECT_NEAR(torch::mse_loss(said["box"], things.box).item<double>(), expected.at("box_loss"), 1e-5);
}

struct SumOfTwo : torch::nn::Module {
  SumOfTwo() { register_module("top", top); }
  at::Tensor forward(const at::Tensor& a, const at::Tensor& b) { return top->forward(a + b); }
  torch::nn::Linear top{2, 1};
};

TEST(FitOfTwoInputs, SaysThatOneOfThemWasTakenAsTheTarget) {
  Model model = compile(std::make_shared<SumOfTwo>(), {.loss = mean_squared_error});
  const at::Tensor x = torch::ones({8, 2}), y = torch::ones({8, 1});

  EXPECT_THAT(message_of([&] { model.fit({x, y}, {.verbose = 0}); }),
              HasSubstr("an element has 2 tensors without names, and forward() takes 2: none is left for the target"));
  EXPECT_THAT(message_of([&] { model.fit(Dataset::tensors({x, y}).batch(4).named({"x", "y"}), {.verbose = 0}); }),
              AllOf(HasSubstr("forward() of the model takes 2 tensors, but an example has 1 inputs"),
                    HasSubstr("the last column \"y\" was taken as the target")));
}

TEST(FitOfTwoInputs, TakesValidationDataInBraces) {
  Model model = compile(std::make_shared<SumOfTwo>(), {.loss = mean_squared_error});
  const at::Tensor x = torch::ones({8, 2}), y = torch::ones({8, 1});

  const History history = model.fit({x, x, y}, {.validation_data = {x, x, y}, .verbose = 0});

  EXPECT_NEAR(history["val_loss"].back(), model.evaluate({x, x, y})["loss"], 1e-6);
}

}  // namespace
}  // namespace muster::model_outputs_test
